"""Connections that break as plans say, and a TCP proxy that breaks them before a real server."""

import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

__all__ = ["Broken", "Fault", "Lines", "Plan", "Proxy", "Sending", "draw", "listening", "proxying"]

PATIENCE = 20
"""Seconds after which a client that does not hang up is given up."""

POLL = 0.02
"""Seconds until a server that is closed has seen it."""

END_OF_LINE = b"}\n"


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
    HALF_CLOSE = "half-close"
    HANG = "hang"
    CORRUPT = "corrupt"
    FLIPPED = "flipped"

    @property
    def changes(self) -> bool:
        """Whether a byte arrives that was not sent."""
        return self in {Fault.CORRUPT, Fault.FLIPPED}

    @property
    def breaks(self) -> bool:
        """Whether the connection ends within an answer."""
        return self in {Fault.CUT, Fault.RESET, Fault.HALF_CLOSE, Fault.HANG}


@dataclass(frozen=True)
class Plan:
    """Say what happens to one connection.

    Attributes:
        fault: what breaks.
        at: how many bytes of the answer pass before it does.
        piece: how many bytes are sent at a time; 0 for all that there are.
        pause: seconds before each piece.
    """

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
    Fault.HALF_CLOSE: 100,
    Fault.CORRUPT: 120,
    # Costs a client's patience, which is a second at least.
    Fault.HANG: 2,
}


def draw(dice: random.Random, length: int) -> Plan:
    """Draw a plan for an answer of so many bytes, about."""
    fault = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    piece, pause = 0, 0.0
    if dice.random() < 0.2:
        piece = dice.choice((1, 7, 64))
        pause = dice.choice((0.0, 0.0, 0.0002)) if piece > 1 else 0.0
    return Plan(fault, dice.randrange(length + 1), piece, pause)


class Broken(Exception):  # noqa: N818 - what became of the connection
    """Say that the plan has broken the connection."""


class Sending:
    """Send an answer to a client until its plan breaks the connection."""

    def __init__(self, connection: socket.socket, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._sent = 0
        if plan.fault is Fault.REFUSE:
            self._reset()
            raise Broken

    def send(self, data: bytes) -> None:
        """Send what comes before the fault.

        Raises:
            Broken: the fault has happened.
        """
        plan, place = self._plan, self._plan.at - self._sent
        if plan.fault.changes and 0 <= place < len(data):
            byte = 0xFF if plan.fault is Fault.CORRUPT else data[place] ^ (1 << plan.at % 8)
            data = data[:place] + bytes([byte]) + data[place + 1 :]
        breaks = plan.fault.breaks and place <= len(data)
        data = data[:place] if breaks else data
        step = plan.piece or max(1, len(data))
        for start in range(0, len(data), step):
            if plan.pause:
                time.sleep(plan.pause)
            self._connection.sendall(data[start : start + step])
        self._sent += len(data)
        if breaks:
            self._break()
            raise Broken

    def _break(self) -> None:
        match self._plan.fault:
            case Fault.CUT:
                # Closing alone does nothing while another thread reads from it.
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection.close()
            case Fault.RESET:
                self._reset()
            case Fault.HALF_CLOSE:
                self._connection.shutdown(socket.SHUT_WR)
                self._await_end()
            case Fault.HANG:
                self._await_end()

    def _await_end(self) -> None:
        """Wait until the client hangs up."""
        self._connection.settimeout(PATIENCE)
        with suppress(OSError):
            while self._connection.recv(65536):
                pass

    def _reset(self) -> None:
        """Close the connection with RST in place of FIN."""
        linger = struct.pack("ii", 1, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # Says nothing to the client, but wakes a thread that reads, before which nothing is closed.
        self._connection.shutdown(socket.SHUT_RD)
        self._connection.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError, Broken):  # the client has hung up, which is its right
            self._serve(request)


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve every connection in a thread of its own; yield the URL without a slash at the end."""
    with _Server(serve) as server:
        thread = threading.Thread(target=server.serve_forever, args=[POLL])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Lines:
    """Do something between two lines of all that a server sends.

    Args:
        line: behind which line, from 1 on.
        action: what is done.
        again: after how many more lines it is done again, every time.
    """

    def __init__(self, line: int, action: Callable[[], object], *, again: int) -> None:
        self._count = 0
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
                self._count += 1
                beyond = self._count - self._line
                if beyond >= 0 and beyond % self._again == 0:
                    self._action()
            yield data[place : place + 1]
            data = data[place + 1 :]
        yield data


@dataclass
class Proxy:
    """Pass connections on to a server.

    Attributes:
        target: the server's address.
        plans: what happens to the next connections; nothing to those behind them.
        beside: what is done between two lines; None for nothing.
        happened: the plans that were carried out.
    """

    target: tuple[str, int]
    plans: Iterator[Plan] = field(default_factory=lambda: iter(()))
    beside: Lines | None = None
    happened: list[Plan] = field(default_factory=list)
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def follow(self, plans: Iterable[Plan]) -> None:
        """Break the next connections as plans say."""
        self.plans, self.happened = iter(plans), []

    def serve(self, connection: socket.socket) -> None:
        """Pass one connection on, in both directions."""
        with self._taking:
            plan = next(self.plans, Plan())
            self.happened.append(plan)
        sending = Sending(connection, plan)
        with socket.create_connection(self.target) as server:
            threading.Thread(target=_pass_on, args=[connection, server], daemon=True).start()
            while data := server.recv(65536):
                for piece in self.beside.pieces(data) if self.beside else (data,):
                    sending.send(piece)


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
