"""A TCP proxy in this process, between a client and a real server."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socket import SHUT_WR, create_connection, socket
from urllib.parse import urlsplit

from harness.faults.plan import Fault, Plan
from harness.faults.sending import Broken, Sending, reset
from harness.faults.server import listening

__all__ = ["Bytes", "Lines", "Proxy", "proxying"]

END_OF_LINE = b"}\n"


class Lines:
    """Do something between two lines of all that a server sends.

    Args:
        line: behind which line, from 1 on.
        action: what is done.
        again: after how many more lines it is done again, every time.
    """

    def __init__(self, line: int, action: Callable[[], object], *, again: int) -> None:
        self.count = 0
        self._line = line
        self._action = action
        self._again = again
        self._counting = threading.Lock()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut bytes before every end of a line, and act when the line has come."""
        while END_OF_LINE in data:
            place = data.index(END_OF_LINE) + 1
            yield data[:place]
            # The line goes out whole when its end does, and that is behind the action.
            with self._counting:
                self.count += 1
                beyond = self.count - self._line
                if beyond >= 0 and beyond % self._again == 0:
                    self._action()
            yield data[place : place + 1]
            data = data[place + 1 :]
        yield data


class Bytes:
    """Do something once, when so many bytes have come from a server.

    Args:
        count: of all connections together.
        action: what is done.
    """

    def __init__(self, count: int, action: Callable[[], object]) -> None:
        self._left = count
        self._action = action

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Cut bytes where the place is, and act there."""
        if 0 <= self._left < len(data):
            yield data[: self._left]
            self._action()
            data = data[self._left :]
            self._left = -1
        self._left -= len(data)
        yield data


@dataclass
class Proxy:
    """Pass connections on to a server.

    Attributes:
        target: the server's address.
        plans: what happens to the next connections; nothing to those behind them.
        beside: what is done between two bytes; None for nothing.
        happened: the plans that were carried out.
    """

    target: tuple[str, int]
    plans: Iterator[Plan] = field(default_factory=lambda: iter(()))
    beside: Lines | Bytes | None = None
    happened: list[Plan] = field(default_factory=list)
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, plans: Iterable[Plan]) -> None:
        """Break the next connections as plans say."""
        self.plans, self.happened = iter(plans), []

    def serve(self, connection: socket) -> None:
        """Pass one connection on, in both directions."""
        with self._taking:
            plan = next(self.plans, Plan())
            self.happened.append(plan)
        if plan.fault is Fault.REFUSE:
            reset(connection)
            return
        with create_connection(self.target) as server:
            threading.Thread(target=_pass_on, args=[connection, server], daemon=True).start()
            sending = Sending(connection, plan)
            with suppress(Broken):
                while data := server.recv(65536):
                    for piece in self.beside.pieces(data) if self.beside else (data,):
                        sending.send(piece)


def _pass_on(source: socket, target: socket) -> None:
    """Pass on what a client sends, until it hangs up."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(SHUT_WR)


@contextmanager
def proxying(url: str) -> Iterator[tuple[Proxy, str]]:
    """Stand before a server; yield the proxy, and the URL to reach the server through it."""
    parts = urlsplit(url)
    proxy = Proxy((parts.hostname, parts.port))
    with listening(proxy.serve) as through:
        yield proxy, through + parts.path
