"""Publishers that are killed while they answer, directly and behind nginx."""

import logging
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
from sqlalchemy import create_engine, event, insert
from starlette.applications import Starlette

from harness.faults.account import WIRE, Account, Findings, hurry, naming
from harness.nginx_paths import Deployment, deployed, reserved_port
from harness.shop import metadata, orders
from zeroeventhub import Client, TableFeed, feed_routes

__all__ = ["PARSERS", "Publishers", "killed_while_sending"]

PATIENCE = 60  # seconds that the process that forks may take for anything
PARSERS = ("h11", *(["httptools"] if find_spec("httptools") else []))
"""What uvicorn reads and writes HTTP with, where it is installed."""

EVENTS = 450
LIMITS = (15, 50, 150)
"""Events of a page. With the fewest, nginx has room for all of it, and with the most for little."""

LENGTH = 1500  # characters of an event, about
KILLS = 12  # how often at most the publisher of one consumer is killed


class FatalSocket(socket.socket):
    """Listen on a shared port, and kill this process when connections have sent so many bytes."""

    def __init__(self, port: int, strike: int | None) -> None:
        super().__init__()
        self.left = strike
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # What the kernel holds is delivered in spite of a kill; most is to be held by the process.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.bind(("127.0.0.1", port))
        self.listen()

    def accept(self) -> tuple["_Connection", object]:
        """Accept a connection."""
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


class Publishers:
    """Fork publishers of the orders in an SQLite database, one after the other, on one port.

    They come from a process of their own, which has all that they need.
    """

    def __init__(self, url: str, line: Connection) -> None:
        self.url = url
        self._line = line

    @classmethod
    @contextmanager
    def open(cls, path: Path, texts: Iterable[str]) -> Iterator[Self]:
        """Write numbered events with these texts, start the process that forks, and end all."""
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "connect", hurry)
        metadata.create_all(engine)
        with engine.begin() as connection:
            rows = [{"data": {"n": n, "text": text}} for n, text in enumerate(texts)]
            connection.execute(insert(orders), rows)
        engine.dispose()
        context = get_context("spawn")
        line, theirs = context.Pipe()
        with reserved_port() as port:
            process = context.Process(target=_serve, args=(theirs, path, port), daemon=True)
            process.start()
            theirs.close()
            try:
                yield cls(f"http://127.0.0.1:{port}/orders", line)
            finally:
                line.close()
                process.join(PATIENCE)
                process.close()

    @contextmanager
    def publishing(self, *, parser: str = "h11", strike: int | None = None) -> Iterator[int]:
        """Let a publisher live, which listens already; yield its process, and kill it."""
        process = self._ask((parser, strike))
        try:
            yield process
        finally:
            self._ask(process)

    def _ask(self, question: tuple[str, int | None] | int) -> Any:
        self._line.send(question)
        if not self._line.poll(PATIENCE):
            raise TimeoutError("The process that forks does not answer.")
        return self._line.recv()


def _serve(line: Connection, path: Path, port: int) -> None:
    """Fork publishers and bury them, until the other end of the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()
    # All that a publisher has is made before, but its connections.
    feed = TableFeed(orders, data="data")
    routes = feed_routes("/orders", feed, create_engine(f"sqlite:///{path}"))
    options = {"log_config": None, "loop": "asyncio"}
    servers = {}
    for parser in PARSERS:
        config = uvicorn.Config(Starlette(routes=routes), http=parser, **options)
        config.load()
        servers[parser] = uvicorn.Server(config)
    living = set()
    with suppress(EOFError):
        while True:
            asked = line.recv()
            if isinstance(asked, int):
                living.remove(asked)
                line.send(_bury(asked))
            else:
                parser, strike = asked
                living.add(process := _fork(servers[parser], port, strike))
                line.send(process)
    for process in living:
        _bury(process)


def _fork(server: uvicorn.Server, port: int, strike: int | None) -> int:
    # It listens before it lives, so that there is no waiting for that.
    with FatalSocket(port, strike) as listening:
        process = os.fork()
        if process == 0:
            try:
                server.run(sockets=[listening])
            finally:
                os._exit(1)
        return process


def _bury(process: int) -> None:
    """Kill a publisher, unless that has happened, and wait until nothing is left of it."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def killed_while_sending(
    deployment: Deployment, folder: Path, seeds: Iterable[int], kills: float = float("inf")
) -> Findings:
    """Read a feed with a new consumer for each seed, whose publishers are killed over and over."""
    found, dice = Findings(), random.Random(0)
    # gzip cannot make a tenth of these texts.
    texts = (dice.randbytes(LENGTH // 2).hex() for _ in range(EVENTS))
    with (
        Publishers.open(folder / "publisher.db", texts) as publishers,
        deployed(deployment, publishers.url) as url,
        Account.open(folder / "consumer.db") as account,
    ):
        for seed in seeds:
            if found.counts["kills"] >= kills:
                break
            name = f"killed publisher, {deployment}, seed {seed}"
            dice = random.Random(name)
            limit = dice.choice(LIMITS)
            read = partial(_read, account, url, name, limit, compressed=deployment.compressed)
            met: Counter[str] = Counter()
            with naming(name):
                while met.total() < KILLS:
                    with _dying(publishers, dice, limit):
                        error = read()
                    if error is None:
                        break
                    met[error] += 1
                else:
                    with publishers.publishing():
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


@contextmanager
def _dying(publishers: Publishers, dice: random.Random, limit: int) -> Iterator[None]:
    """Serve the feed until a byte of an answer."""
    strike = dice.randrange(2 * limit * LENGTH)
    with publishers.publishing(parser=dice.choice(PARSERS), strike=strike):
        yield
