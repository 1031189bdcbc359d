"""Connections that break as plans say, and a TCP proxy that breaks them before a real server."""

import random
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from harness.web import listening


class Fault(StrEnum):
    """Name what breaks.

    What is truncated ends well for HTTP, as behind a proxy that took the beginning for the whole.
    A byte that is corrupt becomes 0xFF, which is not in any UTF-8 text and no digit of a chunk's
    size: what the protocol can tell. That another letter stands in an event's text, only the
    checksum of a compressed body can: one bit is flipped there and nowhere else.
    """

    NONE = "none"
    REFUSE = "refuse"
    TRUNCATED = "truncated"
    CUT = "cut"
    RESET = "reset"
    CORRUPT = "corrupt"
    FLIPPED = "flipped"

    @property
    def changes(self) -> bool:
        """Whether a byte arrives that was not sent."""
        return self in {Fault.CORRUPT, Fault.FLIPPED}


@dataclass(frozen=True)
class Plan:
    """Say what happens to one connection."""

    fault: Fault = Fault.NONE
    at: int = 0
    piece: int = 0
    pause: float = 0.0


WEIGHTS = {
    Fault.NONE: 200,
    Fault.REFUSE: 60,
    Fault.TRUNCATED: 100,
    Fault.CUT: 200,
    Fault.RESET: 200,
    Fault.CORRUPT: 120,
}


def draw(dice: random.Random, length: int) -> Plan:
    """Draw a plan for an answer of so many bytes, about."""
    fault = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    piece, pause = 0, 0.0
    if dice.random() < 0.2:
        piece = dice.choice((1, 7, 64))
        pause = dice.choice((0.0, 0.0, 0.0002)) if piece > 1 else 0.0
    return Plan(fault, dice.randrange(length + 1), piece, pause)


class Sending:
    """Send an answer to a client until its plan breaks the connection."""

    def __init__(self, connection: socket.socket, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._sent = 0
        if plan.fault is Fault.REFUSE:
            self._reset()
            raise ConnectionError(plan.fault)

    def send(self, data: bytes) -> None:
        """Send what comes before the fault."""
        plan, place = self._plan, self._plan.at - self._sent
        if plan.fault.changes and 0 <= place < len(data):
            byte = 0xFF if plan.fault is Fault.CORRUPT else data[place] ^ (1 << plan.at % 8)
            data = data[:place] + bytes([byte]) + data[place + 1 :]
        breaks = plan.fault in {Fault.CUT, Fault.RESET} and place <= len(data)
        data = data[:place] if breaks else data
        step = plan.piece or max(1, len(data))
        for start in range(0, len(data), step):
            if plan.pause:
                time.sleep(plan.pause)
            self._connection.sendall(data[start : start + step])
        self._sent += len(data)
        if breaks:
            if plan.fault is Fault.RESET:
                self._reset()
            else:
                # Closing alone does nothing while another thread reads from it.
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection.close()
            raise ConnectionError(plan.fault)

    def _reset(self) -> None:
        """Close the connection with RST in place of FIN."""
        linger = struct.pack("ii", 1, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # Says nothing to the client, but wakes a thread that reads, before which nothing is closed.
        self._connection.shutdown(socket.SHUT_RD)
        self._connection.close()


class Proxy:
    """Pass connections on to a server."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._taking = threading.Lock()
        self.follow([])

    def follow(self, plans: Iterable[Plan]) -> None:
        """Break the next connections as plans say."""
        self._plans, self.happened = iter(plans), []

    def serve(self, connection: socket.socket) -> None:
        """Pass one connection on, in both directions."""
        with self._taking:
            plan = next(self._plans, Plan())
            self.happened.append(plan)
        sending = Sending(connection, plan)
        with socket.create_connection(self._target) as server:
            threading.Thread(target=_pass_on, args=[connection, server], daemon=True).start()
            while data := server.recv(65536):
                sending.send(data)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on what a client sends, until it hangs up."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def proxying(url: str) -> Iterator[tuple[Proxy, str]]:
    """Stand before a server; yield the proxy, and the URL to reach the server through it."""
    parts = urlsplit(url)
    proxy = Proxy((parts.hostname, parts.port))
    with listening(proxy.serve) as through:
        yield proxy, through + parts.path
