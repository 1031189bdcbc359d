"""Publishers that are killed while they answer, directly and behind nginx."""

import logging
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import httpx
import uvicorn
from harness.faults.account import WIRE, Account, Findings, naming
from harness.forks import forks
from harness.nginx_paths import Deployment, deployed, reserved_port
from harness.shop import metadata, orders
from harness.statements import add
from sqlalchemy import create_engine
from starlette.applications import Starlette

from zeroeventhub import Client, TableFeed, feed_routes

PARSERS = ("h11", *(["httptools"] if find_spec("httptools") else []))
"""What uvicorn reads and writes HTTP with, where it is installed."""

EVENTS = 450
LIMITS = (15, 50, 150)
"""Events of a page. With the fewest, nginx has room for all of it, and with the most for little."""

LENGTH = 1500  # characters of an event, about
KILLS = 12  # how often at most the publisher of one consumer is killed


class FatalSocket(socket.socket):
    """Listen, and kill this process when connections have sent so many bytes."""

    def __init__(self, number: int, strike: int | None) -> None:
        super().__init__(fileno=number)
        self.left = strike

    def accept(self) -> tuple["_Connection", object]:
        connection, address = super().accept()
        return _Connection(connection.detach(), self), address


class _Connection(socket.socket):
    def __init__(self, number: int, listening: FatalSocket) -> None:
        super().__init__(fileno=number)
        self._listening = listening

    def send(self, data: bytes, _flags: int = 0) -> int:
        sent = super().send(memoryview(data)[: self._listening.left])
        if self._listening.left is not None:
            self._listening.left -= sent
            if self._listening.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return sent

    def sendmsg(self, buffers: list[bytes], *_rest: object) -> int:
        return self.send(b"".join(buffers))


def _orders() -> TableFeed:
    return TableFeed(orders, data="data")


@contextmanager
def publishing(
    database: str,
    port: int,
    feed: Callable[[], TableFeed] = _orders,
    *,
    parser: str = "h11",
    strike: int | None = None,
) -> Iterator[None]:
    """Publish a feed of a database in a process of its own, which is killed in the end."""
    # It listens before it lives, so that there is no waiting for that.
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # What the kernel holds is delivered in spite of a kill; most is to be held by the process.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listening.bind(("127.0.0.1", port))
        listening.listen()
        arguments = (listening, database, feed, parser, strike)
        process = forks().Process(target=_publish, args=arguments, daemon=True)
        process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
        process.close()


def _publish(
    listening: socket.socket,
    database: str,
    feed: Callable[[], TableFeed],
    parser: str,
    strike: int | None,
) -> None:
    logging.disable()
    routes = feed_routes("/orders", feed(), create_engine(database))
    config = uvicorn.Config(Starlette(routes=routes), http=parser, log_config=None, loop="asyncio")
    uvicorn.Server(config).run(sockets=[FatalSocket(listening.detach(), strike)])


def killed_while_sending(
    deployment: Deployment, folder: Path, seeds: Iterable[int], kills: float = float("inf")
) -> Findings:
    """Read a feed with a new consumer for each seed, whose publishers are killed over and over."""
    found, dice = Findings(), random.Random(0)
    engine = create_engine(f"sqlite:///{folder / 'publisher.db'}")
    metadata.create_all(engine)
    # gzip cannot make a tenth of these texts.
    texts = (dice.randbytes(LENGTH // 2).hex() for _ in range(EVENTS))
    add(engine, orders, [{"data": {"n": n, "text": text}} for n, text in enumerate(texts)])
    engine.dispose()
    with (
        reserved_port() as port,
        deployed(deployment, f"http://127.0.0.1:{port}/orders") as url,
        Account.open(folder / "consumer.db") as account,
    ):
        published = partial(publishing, str(engine.url), port)
        for seed in seeds:
            if found.counts["kills"] >= kills:
                break
            name = f"killed publisher, {deployment}, seed {seed}"
            dice = random.Random(name)
            limit = dice.choice(LIMITS)
            read = partial(
                _read, account, url, name, limit, compressed=deployment is Deployment.PACKED
            )
            met: Counter[str] = Counter()
            with naming(name):
                while met.total() < KILLS:
                    strike = dice.randrange(2 * limit * LENGTH)
                    with published(parser=dice.choice(PARSERS), strike=strike):
                        error = read()
                    if error is None:
                        break
                    met[error] += 1
                else:
                    with published():
                        assert read() is None, met
            found.counts += met + Counter(trials=1, kills=met.total())
            found.compare(name, {0: range(EVENTS)}, account.seen(name))
    return found


def _read(account: Account, url: str, name: str, limit: int, *, compressed: bool) -> str | None:
    """Read on; return the name of the error that came before the head."""
    with httpx.Client(verify=False) as session:
        try:
            account.read_in_turn(Client(url, session, compressed=compressed), name, limit=limit)
        except WIRE as error:
            return type(error).__name__
        return None
