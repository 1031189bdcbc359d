"""Bodies as they were before they were compressed, in pieces of a bounded size."""

import zlib
from collections.abc import Iterator
from typing import Protocol

from zeroeventhub.errors import ProtocolError

__all__ = ["ContentCoding", "content_coding"]

PIECE = 64 * 1024
"""Bytes that are unpacked at once."""

STEP = 512
"""Bytes of zstd that are unpacked at once: at most 128 KiB come of each four of them."""

WINDOW = 8 * 1024 * 1024
"""How far zstd may look back (RFC 9659)."""

_GZIP_ONLY = 16 + zlib.MAX_WBITS


class ContentCoding(Protocol):
    """Undo a content coding (RFC 9110, section 8.4.1)."""

    @property
    def whole(self) -> bool:
        """Whether what came so far may be all."""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what the next bytes stand for.

        Raises:
            ProtocolError: they stand for nothing.
        """


class _Gzip:
    """Unpack gzip (RFC 1952): one member or several, each with its checksum."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_ONLY)
        self._packed = 0
        self._unpacked = 0

    @property
    def whole(self) -> bool:
        return self._member.eof

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        piece = b""
        self._packed += len(chunk)
        # A piece that is full may have more after it, even where no bytes are left to read.
        while chunk or len(piece) == PIECE:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_ONLY)
            try:
                piece = self._member.decompress(chunk, PIECE)
            except zlib.error:
                raise ProtocolError("The answer says that it is gzip, and is not.") from None
            self._unpacked += len(piece)
            yield piece
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof:
                piece = b""
        # Members without content and endless names: bytes that a bound of content never counts.
        if self._packed > 2 * self._unpacked + PIECE:
            raise ProtocolError("The answer is gzip that is longer than what it holds.")


class _Zstd:
    """Unpack zstd (RFC 8878): one frame or several."""

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415 - of another extra

        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._packed = 0
        self._unpacked = 0

    @property
    def whole(self) -> bool:
        return self._frame.eof

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        self._packed += len(chunk)
        for start in range(0, len(chunk), STEP):
            rest = chunk[start : start + STEP]
            while rest:
                if self._frame.eof:
                    self._frame = self._unpacker.decompressobj()
                try:
                    piece = self._frame.decompress(rest)
                except self._error:
                    raise ProtocolError("The answer says that it is zstd, and is not.") from None
                self._unpacked += len(piece)
                yield piece
                rest = self._frame.unused_data if self._frame.eof else b""
        # Frames that are passed over: bytes that a bound of content never counts.
        if self._packed > 2 * self._unpacked + PIECE:
            raise ProtocolError("The answer is zstd that is longer than what it holds.")


class _Unknown:
    """Refuse a body, if there is one."""

    whole = True

    def pieces(self, chunk: bytes) -> Iterator[bytes]:  # noqa: ARG002 - as the protocol has it
        raise ProtocolError("The answer is in a content coding that was not asked for.")


def content_coding(header: str, *, zstd: bool = False) -> ContentCoding | None:
    """Choose how a body is unpacked; None where it is not packed.

    Args:
        header: its Content-Encoding.
        zstd: whether that was asked for.
    """
    names = [name.strip().lower() for name in header.split(",")]
    match [name for name in names if name not in {"", "identity"}]:
        case []:
            return None
        case ["gzip" | "x-gzip"]:
            return _Gzip()
        case ["zstd"] if zstd:
            return _Zstd()
        case _:
            return _Unknown()
