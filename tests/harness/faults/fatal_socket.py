"""A listening socket whose process is killed when its connections have sent so many bytes."""

import os
import signal
import socket
from dataclasses import dataclass

__all__ = ["Countdown", "FatalSocket"]


@dataclass
class Countdown:
    """Kill this process when it has sent so many bytes.

    Attributes:
        left: how many they are; None to let it be.
    """

    left: int | None

    def send(self, connection: socket.socket, data: bytes) -> int:
        """Send some of the bytes; return how many."""
        sent = socket.socket.send(connection, memoryview(data)[: self.left])
        if self.left is not None:
            self.left -= sent
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return sent


class FatalSocket(socket.socket):
    """Listen on a port that several sockets share, and count what connections send.

    Args:
        port: which one.
        countdown: hears of every byte.
    """

    def __init__(self, port: int, countdown: Countdown) -> None:
        super().__init__()
        self._countdown = countdown
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # What the kernel holds is delivered in spite of a kill; most is to be held by the process.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.bind(("127.0.0.1", port))
        self.listen()

    def accept(self) -> tuple["_Connection", object]:
        """Accept a connection."""
        connection, address = super().accept()
        return _Connection(connection.detach(), self._countdown), address


class _Connection(socket.socket):
    def __init__(self, number: int, countdown: Countdown) -> None:
        super().__init__(fileno=number)
        self._countdown = countdown

    def send(self, data: bytes, _flags: int = 0) -> int:
        return self._countdown.send(self, data)

    def sendmsg(self, buffers: list[bytes], *_rest: object) -> int:
        return self._countdown.send(self, b"".join(buffers))
