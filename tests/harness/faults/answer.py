"""Answers byte for byte: three framings, packed or not."""

import gzip
import zlib
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CHUNK", "Answer", "Framing", "head"]

CHUNK = 23
"""Bytes of a chunk: few, so that lines and characters are spread over several."""


class Framing(StrEnum):
    """Name what says where an answer's body ends."""

    LENGTH = "Content-Length"
    CHUNKED = "chunked"
    CLOSE = "close-delimited"


def head(*fields: str, status: str = "200 OK", kind: str = "application/x-ndjson") -> bytes:
    """Write what comes before a body."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode()


@dataclass(frozen=True)
class Answer:
    """Hold an answer as it goes over the wire.

    Attributes:
        pieces: its bytes, in pieces that are of the body, or are not.
        packed: whether the body is compressed.
    """

    pieces: tuple[tuple[bytes, bool], ...]
    packed: bool

    @classmethod
    def of(
        cls, text: bytes, framing: Framing, *, packed: bool = False, chunk: int = CHUNK
    ) -> "Answer":
        """Frame a text.

        Args:
            text: of the body, before it is packed.
            framing: how its end is said.
            packed: whether gzip is to pack it.
            chunk: how many bytes are in a chunk.
        """
        body = gzip.compress(text, mtime=0) if packed else text
        return cls(tuple(_framed(body, framing, packed=packed, chunk=chunk)), packed)

    @property
    def wire(self) -> bytes:
        """All of its bytes."""
        return b"".join(data for data, _ in self.pieces)

    @property
    def body_places(self) -> list[int]:
        """Where the bytes of the body are in those of the wire."""
        marks = [is_body for data, is_body in self.pieces for _ in data]
        return [place for place, is_body in enumerate(marks) if is_body]

    def received(self, count: int) -> bytes:
        """Unpack what the first so many bytes hold of the body."""
        body = b""
        for data, is_body in self.pieces:
            body += data[: max(0, count)] if is_body else b""
            count -= len(data)
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body) if self.packed else body


def _framed(body: bytes, framing: Framing, *, packed: bool, chunk: int):
    fields = ["Content-Encoding: gzip"] if packed else []
    match framing:
        case Framing.LENGTH:
            yield head(f"Content-Length: {len(body)}", *fields), False
            yield body, True
        case Framing.CLOSE:
            yield head(*fields), False
            yield body, True
        case Framing.CHUNKED:
            yield head("Transfer-Encoding: chunked", *fields), False
            for start in range(0, len(body), chunk):
                piece = body[start : start + chunk]
                yield b"%x\r\n" % len(piece), False
                yield piece, True
                yield b"\r\n", False
            yield b"0\r\n\r\n", False
