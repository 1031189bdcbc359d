"""A host in a process of its own, to be told to end by a signal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.command_line import Server, logged
from harness.shop import metadata, orders
from zeroeventhub import Capacity, Event, FeedInfo, Page, TableFeed, feed_routes

FOLDER = Path(__file__).parents[1]


class Large:
    """A feed whose pages are all the same, and have some megabytes."""

    def __init__(self, size: int) -> None:
        self.page = Page([Event(b'{"n":"%b"}' % (b"x" * size))], "1")
        self.pages = 0

    async def info(self) -> FeedInfo:
        return FeedInfo.of(1)

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        if cursor == "head":
            return Page([], "head", caught_up=True)
        self.pages += limit > 1
        return self.page


def application() -> Starlette:
    """Make a host with a feed over a table at /orders, and one of large pages at /large."""
    engine = create_engine(os.environ["DATABASE"])
    metadata.create_all(engine)
    options = {"capacity": Capacity(patience=60), "server_sent_events": True}
    of_orders = feed_routes("/orders", TableFeed(orders, data="data"), engine, **options)
    return Starlette(routes=[*of_orders, *feed_routes("/large", Large(16_000_000), name="large")])


@contextmanager
def uvicorn(folder: Path, *options: str) -> Iterator[Server]:
    """Run the host until it is told to end; its database and its log are in a folder."""
    words = [sys.executable, "-m", "uvicorn", f"{__name__}:application", "--factory", "--port", "0"]
    database = {"DATABASE": f"sqlite:///{folder / 'orders.db'}", "PYTHONPATH": str(FOLDER)}
    with logged([*words, *options], folder / "uvicorn.log", **database) as server:
        httpx.get(server.url)
        yield server
