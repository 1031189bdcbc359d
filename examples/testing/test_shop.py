"""Tests of the publisher."""

from shop import make_app, place, tables

from zeroeventhub import FIRST
from zeroeventhub.testing import client_of, sqlite_engine


def test_order_is_published():
    """What is placed can be read, and what is placed later follows."""
    engine = sqlite_engine()
    tables.create_all(engine)
    client = client_of(make_app(engine), path="/orders")
    place(engine, number=1, customer="ada", amount=12)
    page = client.fetch(0, FIRST)
    assert [event.data["customer"] for event in page.events] == ["ada"]
    place(engine, number=2, customer="bob", amount=7)
    page = client.fetch(0, page.cursor)
    assert [event.data["customer"] for event in page.events] == ["bob"]
