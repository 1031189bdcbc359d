"""What is sent for one request, down to how it is framed and where it breaks off."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

__all__ = ["NDJSON", "Reply"]

NDJSON = "application/x-ndjson"


@dataclass(frozen=True)
class Reply:
    """Hold an answer.

    Attributes:
        body: the bytes of the whole answer.
        status: its status.
        media_type: its media type; None for none.
        headers: more headers.
        framing: how its end is told: by Content-Length, in chunks, or by closing.
        length: the Content-Length to claim; None for the true one.
        cut: after how many bytes of the body the connection is closed; None for the end.
        pause: seconds between one byte and the next; 0 for none.
        hang_up: whether the connection is closed without an answer.
    """

    body: bytes = b""
    status: int = 200
    media_type: str | None = NDJSON
    headers: tuple[tuple[str, str], ...] = ()
    framing: Literal["length", "chunked", "close"] = "length"
    length: int | None = None
    cut: int | None = None
    pause: float = 0.0
    hang_up: bool = False

    def send(self, write: Callable[[bytes], object]) -> None:
        """Write the answer; the connection is closed behind it."""
        if self.hang_up:
            return
        write(self._head())
        body = self.body if self.cut is None else self.body[: self.cut]
        if self.pause:
            for place in range(len(body)):
                write(body[place : place + 1])
                time.sleep(self.pause)
        elif self.framing == "chunked":
            for place in range(0, len(body), 7):
                chunk = body[place : place + 7]
                write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if self.cut is None:
                write(b"0\r\n\r\n")
        else:
            write(body)

    def _head(self) -> bytes:
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {phrase}", "Connection: close", "Cache-Control: no-store"]
        if self.media_type is not None:
            lines.append(f"Content-Type: {self.media_type}")
        if self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif self.framing == "length":
            length = len(self.body) if self.length is None else self.length
            lines.append(f"Content-Length: {length}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join((*lines, "", "")).encode()
