"""The guide to pages in columns does what it says."""

import re
from pathlib import Path

import httpx
import pyarrow.parquet
from harness.shop import metadata, orders, place
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, Client, TableFeed, feed_routes
from zeroeventhub.arrow.arrow_page import EVENTS

GUIDE = (Path(__file__).parents[2] / "docs" / "arrow.md").read_text()


def test_feed_becomes_a_file(sqlite, tmp_path, monkeypatch):
    """The piece of the guide writes all events of a feed into a file, as they were published."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 12)
    (piece,) = re.findall(r"<!-- arrow -->\n```python\n(.*?)```", GUIDE, re.DOTALL)
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite, arrow=True)
    monkeypatch.chdir(tmp_path)
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        client = Client(f"{url}/orders", http)
        exec(piece, {"pyarrow": pyarrow, "EVENTS": EVENTS, "FIRST": FIRST, "client": client})
        expected = [event.raw.decode() for event in client.fetch(0, FIRST).events]
    assert pyarrow.parquet.read_table("orders.parquet")["data"].to_pylist() == expected
    assert len(expected) == 12
