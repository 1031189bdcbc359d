"""Send bytes to a client as a plan says."""

import contextlib
import socket
import struct
import time

from harness.faults.plan import Fault, Plan

__all__ = ["Broken", "Sending", "reset"]

PATIENCE = 20
"""Seconds after which a client that does not hang up is given up."""


CHANGING = {Fault.CORRUPT, Fault.FLIPPED}
BREAKING = {Fault.CUT, Fault.RESET, Fault.HALF_CLOSE, Fault.HANG}


class Broken(Exception):  # noqa: N818 - what became of the connection
    """Say that the plan has broken the connection."""


class Sending:
    """Send an answer until its plan breaks the connection.

    Args:
        connection: to the client.
        plan: what happens to it.
    """

    def __init__(self, connection: socket.socket, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._sent = 0

    def send(self, data: bytes) -> None:
        """Send what comes before the fault.

        Raises:
            Broken: the fault has happened.
        """
        plan, place = self._plan, self._plan.at - self._sent
        if plan.fault in CHANGING and 0 <= place < len(data):
            byte = 0xFF if plan.fault is Fault.CORRUPT else data[place] ^ (1 << plan.at % 8)
            data = data[:place] + bytes([byte]) + data[place + 1 :]
        breaks = plan.fault in BREAKING and place <= len(data)
        self._pass(data[:place] if breaks else data)
        if breaks:
            self._break()
            raise Broken

    def _pass(self, data: bytes) -> None:
        step = self._plan.piece or max(1, len(data))
        for start in range(0, len(data), step):
            if self._plan.pause:
                time.sleep(self._plan.pause)
            self._connection.sendall(data[start : start + step])
        self._sent += len(data)

    def _break(self) -> None:
        match self._plan.fault:
            case Fault.CUT:
                # Closing alone does nothing while another thread reads from it.
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection.close()
            case Fault.RESET:
                reset(self._connection)
            case Fault.HALF_CLOSE:
                self._connection.shutdown(socket.SHUT_WR)
                self._wait()
            case Fault.HANG:
                self._wait()

    def _wait(self) -> None:
        """Wait until the client hangs up."""
        self._connection.settimeout(PATIENCE)
        with contextlib.suppress(OSError):
            while self._connection.recv(65536):
                pass


def reset(connection: socket.socket) -> None:
    """Close a connection with RST in place of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # Says nothing to the client, but wakes a thread that reads, without which nothing is closed.
    connection.shutdown(socket.SHUT_RD)
    connection.close()
