"""Publishers that are forked from a process which has all that they need, and that are killed."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import uvicorn
from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.faults.fatal_socket import Countdown, FatalSocket
from harness.nginx import reserved_port
from harness.shop import orders
from zeroeventhub import TableFeed, feed_routes

__all__ = ["PARSERS", "Publishers"]

PATIENCE = 60
"""Seconds that the process that forks may take for anything."""

PARSERS = ("h11", *(["httptools"] if find_spec("httptools") else []))
"""What uvicorn reads and writes HTTP with, where it is installed."""


@dataclass(frozen=True)
class Birth:
    """Say what becomes of a publisher.

    Attributes:
        parser: what it reads and writes HTTP with.
        strike: how many bytes of answers it has sent when it is killed; None to let it be.
    """

    parser: str
    strike: int | None


class Publishers:
    """Fork publishers of the orders in an SQLite database, one after the other, on one port.

    Args:
        path: of the database.
        port: where they listen.
    """

    def __init__(self, path: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/orders"
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, path, port), daemon=True)
        self._process.start()
        theirs.close()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Start the process that forks; end it, and all that have come from it."""
        with reserved_port() as port:
            publishers = cls(path, port)
            try:
                yield publishers
            finally:
                publishers.close()

    @contextmanager
    def publishing(self, *, parser: str = "h11", strike: int | None = None) -> Iterator[int]:
        """Let a publisher live, which listens already; yield its process, and kill it.

        Args:
            parser: what it reads and writes HTTP with.
            strike: how many bytes of answers it has sent when it is killed before.
        """
        process = self._ask(Birth(parser, strike))
        try:
            yield process
        finally:
            self._ask(process)

    def close(self) -> None:
        """End the process that forks."""
        self._line.close()
        self._process.join(PATIENCE)
        self._process.close()

    def _ask(self, question: Birth | int) -> Any:
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
    servers = {parser: _server(Starlette(routes=routes), parser) for parser in PARSERS}
    living = set()
    while True:
        try:
            asked = line.recv()
        except EOFError:
            break
        if isinstance(asked, Birth):
            process = _fork(servers[asked.parser], port, asked.strike)
            living.add(process)
            line.send(process)
        else:
            _bury(asked)
            living.remove(asked)
            line.send(None)
    for process in living:
        _bury(process)


def _server(application: Starlette, parser: str) -> uvicorn.Server:
    config = uvicorn.Config(application, log_config=None, loop="asyncio", http=parser)
    config.load()
    return uvicorn.Server(config)


def _fork(server: uvicorn.Server, port: int, strike: int | None) -> int:
    # It listens before it lives, so that nobody has to wait for that.
    with FatalSocket(port, Countdown(strike)) as listening:
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
