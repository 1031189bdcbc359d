"""A host in a process of its own, to be told to end by a signal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.shop import metadata, orders
from harness.waiting import until
from zeroeventhub import Capacity, Event, FeedInfo, Page, TableFeed, feed_routes

FOLDER = Path(__file__).parents[1]


class Large:
    """A feed whose pages are larger than what a system takes for a reader that does not read."""

    async def info(self) -> FeedInfo:
        return FeedInfo.of(1)

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        return Page([Event(b'"%b"' % (b"x" * 16_000_000))], "1")


def application() -> Starlette:
    """Make a host with a feed over a table at /orders, and one of large pages at /large."""
    engine = create_engine(os.environ["DATABASE"])
    metadata.create_all(engine)
    options = {"capacity": Capacity(patience=60), "server_sent_events": True}
    of_orders = feed_routes("/orders", TableFeed(orders, data="data"), engine, **options)
    return Starlette(routes=[*of_orders, *feed_routes("/large", Large(), name="large")])


@dataclass
class Server:
    """A server that runs."""

    url: str
    process: subprocess.Popen
    log: Path

    def end(self) -> float:
        """Tell it to end; return how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - began


@contextmanager
def uvicorn(folder: Path, *options: str) -> Iterator[Server]:
    """Run the host until it is told to end; its database and its log are in a folder."""
    log = folder / "uvicorn.log"
    words = [sys.executable, "-m", "uvicorn", f"{__name__}:application", "--factory", "--port", "0"]
    database = {"DATABASE": f"sqlite:///{folder / 'orders.db'}", "PYTHONPATH": str(FOLDER)}
    with log.open("w") as out:
        process = subprocess.Popen(
            [*words, *options], stdout=out, stderr=out, env={**os.environ, **database}
        )
    try:
        yield Server(_address(log, process), process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def _address(log: Path, process: subprocess.Popen) -> str:
    until(lambda: "running on " in log.read_text() or process.poll() is not None, "uvicorn starts")
    _, started, rest = log.read_text().partition("running on ")
    assert started, f"uvicorn did not start: {log.read_text()}"
    url = rest.split()[0]
    httpx.get(url)
    return url
