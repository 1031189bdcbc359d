"""The guide to keys does what it says."""

import httpx
import pytest
from harness.guides import DOCUMENTS, guide
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import Client, ExpectedVersion, NewEvent, feed_routes
from zeroeventhub.errors import Conflict


@pytest.fixture
def piece(tmp_path, monkeypatch):
    """Run a piece of the guide as it stands, in an empty folder, behind those before it."""
    monkeypatch.chdir(tmp_path)
    with guide("keys.md") as piece:
        yield piece


def test_handler_decides_again_when_somebody_was_quicker(piece):
    """A handler that meets a conflict reads what has come, and a command twice is one event."""
    names = piece("handler")
    orders, engine, cancel = (names[name] for name in ("orders", "engine", "cancel"))
    assert cancel("o1", "c1") == "cancelled"
    assert cancel("o1", "c1") == "cancelled"
    read, quicker = orders.read_key, []

    def meddling(connection, key):
        events = read(connection, key)
        if not quicker:
            quicker.append(key)
            with engine.connect() as other:
                shipped = [NewEvent("OrderShipped", {})]
                orders.append_to(other, key, shipped, expected_version=ExpectedVersion.ANY)
                other.commit()
        return events

    orders.read_key = meddling
    assert cancel("o2", "c2") == "too late"
    orders.read_key = read
    with engine.connect() as connection:
        types = [event.type for event in read(connection, "o1")]
    assert types == ["OrderCancelled"]


def test_own_table_is_guarded(piece):
    """The account of the guide cannot be overdrawn by two who read at the same time."""
    engine = piece("handler")["engine"]
    names = piece("own")
    names["movements"].create(engine)
    accounts, withdraw = names["accounts"], names["withdraw"]
    with engine.begin() as connection:
        start = [{"command": "c0", "amount": 10}]
        accounts.append(connection, "ada", start, expected_version=0)
        assert withdraw(connection, "ada", "c1", 6) == 2
        assert withdraw(connection, "ada", "c1", 6) == 2
        with pytest.raises(ValueError, match="not enough"):
            withdraw(connection, "ada", "c2", 6)
        with pytest.raises(Conflict):
            accounts.append(
                connection, "ada", [{"command": "c3", "amount": -6}], expected_version=1
            )


def test_history_over_http(piece):
    """The client of the guide reads a key to its end, as curl shows it."""
    names = piece("handler")
    orders, engine = names["orders"], names["engine"]
    with engine.begin() as connection:
        events = [NewEvent("x", {"n": n}) for n in range(3)] + [NewEvent("Paid", {"paid": 12.5})]
        orders.append_to(connection, "order-17", events, expected_version=0)
    routes = feed_routes("/orders", orders.feed(key_history=True), engine)
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        found = piece("client")["history"](Client(f"{url}/orders", http), "order-17")
        query = {"key": "order-17", "after-version": 3}
        shown = http.get(f"{url}/orders/key-history", params=query).text
    assert [event.data for event in found] == [{"n": 0}, {"n": 1}, {"n": 2}, {"paid": 12.5}]
    assert shown in (DOCUMENTS / "keys.md").read_text()
