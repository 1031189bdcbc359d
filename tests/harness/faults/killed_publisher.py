"""A publisher in a process of its own, which is killed while it sends."""

import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import uvicorn
from sqlalchemy import create_engine, event, insert
from starlette.applications import Starlette

from harness.faults.account import WIRE, Account, hurry
from harness.faults.findings import Findings, naming
from harness.faults.proxy import Bytes, proxying
from harness.shop import metadata, orders
from zeroeventhub import Client, TableFeed, feed_routes

__all__ = ["Killed"]

EVENTS = 450
LIMIT = 150
PADDING = "x" * 1500
"""Makes a page so long that sending it takes a while."""

LONGEST = 0.06
"""Seconds after which a publisher is killed at the latest; it is read in about as many."""

BYTES = EVENTS * (len(PADDING) + 40)
"""How long all pages are together, about."""

KILLS = 4
"""How often at most the publisher of one consumer is killed."""

_context = get_context("forkserver")
_context.set_forkserver_preload(["zeroeventhub.server", "zeroeventhub.publisher", "uvicorn"])


def serve(path: str, listening: socket.socket) -> None:
    """Serve the orders until killed."""
    # What the kernel holds is delivered in spite of the kill; most is to be held by the process.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    engine = create_engine(f"sqlite:///{path}")
    feed = TableFeed(orders, data="data")
    application = Starlette(routes=feed_routes("/orders", feed, engine))
    config = uvicorn.Config(application, log_level="error")
    uvicorn.Server(config).run(sockets=[listening])


class Killed:
    """Read a feed whose publisher is killed over and over.

    Args:
        folder: for the databases.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "publisher.db"
        self.account = Account(folder / "consumer.db")
        engine = create_engine(f"sqlite:///{self._path}")
        event.listen(engine, "connect", hurry)
        metadata.create_all(engine)
        with engine.begin() as connection:
            rows = [{"data": {"n": n, "text": PADDING}} for n in range(EVENTS)]
            connection.execute(insert(orders), rows)
        engine.dispose()

    def run(self, seed: int) -> Findings:
        """Read the feed with a new consumer.

        With an even seed the consumer is connected to the publisher itself, which is killed at
        moments; with an odd one through a proxy, by which it is killed at bytes of its answers.
        """
        name = f"killed_publisher, seed {seed}"
        dice = random.Random(name)
        met: Counter[str] = Counter()
        killed = _by_the_clock if seed % 2 == 0 else _by_the_byte
        with naming(name):
            for _ in range(KILLS):
                with self._publishing() as (process, url), killed(process, url, dice) as shown:
                    done = self._read(shown, name, met)
                if done:
                    break
            else:
                with self._publishing() as (_, url):
                    assert self._read(url, name, met), met
        findings = Findings(met + Counter(trials=1, kills=met.total()))
        findings.compare(name, {0: range(EVENTS)}, self.account.seen(name))
        return findings

    def _read(self, url: str, name: str, met: Counter[str]) -> bool:
        """Read on; return whether this came to the head, else count the error."""
        with httpx.Client() as session:
            try:
                self.account.read_in_turn(Client(url, session), name, limit=LIMIT)
            except WIRE as error:
                met[type(error).__name__] += 1
                return False
            return True

    @contextmanager
    def _publishing(self) -> Iterator[tuple[BaseProcess, str]]:
        """Serve the feed in a process; yield that, and the URL."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            process = _context.Process(target=serve, args=[str(self._path), listening])
            process.start()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/orders"
        try:
            httpx.get(url)
            yield process, url
        finally:
            process.kill()
            process.join()
            process.close()


@contextmanager
def _by_the_clock(process: BaseProcess, url: str, dice: random.Random) -> Iterator[str]:
    """Kill a publisher some time after this."""
    timer = threading.Timer(dice.uniform(0, LONGEST), process.kill)
    timer.start()
    yield url
    timer.join()


@contextmanager
def _by_the_byte(process: BaseProcess, url: str, dice: random.Random) -> Iterator[str]:
    """Kill a publisher when it has sent so many bytes."""

    def kill() -> None:
        process.kill()
        process.join()

    with proxying(url) as (proxy, through):
        proxy.beside = Bytes(dice.randrange(BYTES), kill)
        yield through
