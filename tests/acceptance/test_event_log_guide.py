"""The guide to logs does what it says."""

import httpx
import pytest
from harness.guides import guide
from harness.web import serving
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, Client


@pytest.fixture
def piece(tmp_path, monkeypatch):
    """Run a piece of the guide as it stands, in an empty folder, behind those before it."""
    monkeypatch.chdir(tmp_path)
    with guide("event_log.md") as piece:
        yield piece


def told(names):
    """What a reader of the feed over HTTP hears, in all partitions."""
    with serving(names["app"]) as url, httpx.Client() as http:
        client = Client(f"{url}/orders", http)
        pages = [client.fetch(each.id, FIRST) for each in client.discover().partitions]
    return sorted((event.data["id"], event.data["data"]) for page in pages for event in page.events)


def test_log_in_a_few_lines(piece):
    """The first two pieces make a table, append to it, once if they are run again, and publish
    it.
    """
    piece("log")
    piece("log")
    assert told(piece("feed")) == [("checkout-1", {"amount": 12}), ("checkout-2", {"amount": 7.5})]


@pytest.mark.anyio
async def test_async_piece(piece):
    """The async function appends in the transaction that it is lent."""
    piece("log")
    names = piece("async")
    engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    async with engine.begin() as connection:
        await names["place"](connection, {"customer": "cy", "amount": 1})
    await engine.dispose()
    assert {"customer": "cy", "amount": 1} in [data for _, data in told(piece("feed"))]
