"""Decompress bodies in pieces of a bounded size."""

import zlib
from collections.abc import Iterator

from zeroeventhub.errors import ProtocolError

PIECE = 64 * 1024
"""Bytes of content that gzip yields at once."""

STEP = 512
"""Bytes of a zstd body that are decompressed at once: four bytes yield at most 128 KiB."""

WINDOW = 8 * 1024 * 1024
"""The largest window of a zstd frame, in bytes (RFC 9659)."""

_GZIP_ONLY = 16 + zlib.MAX_WBITS


class Decompressor:
    """Undo a content coding (RFC 9110, section 8.4.1); this base class refuses unknown codings."""

    name = ""
    error: type[Exception] = zlib.error
    _packed = 0
    _unpacked = 0

    @property
    def whole(self) -> bool:
        """Whether the body may end here."""
        return True

    def _unpack(self, chunk: bytes) -> Iterator[bytes]:  # noqa: ARG002 - subclasses use it
        """Yield the content of the next bytes in pieces; this class knows no coding."""
        raise ProtocolError("The answer is in a content coding that was not asked for.")

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of the next bytes."""
        self._packed += len(chunk)
        try:
            for piece in self._unpack(chunk):
                self._unpacked += len(piece)
                yield piece
        except self.error:
            raise ProtocolError(
                f"The answer's body is not {self.name}, as its Content-Encoding says."
            ) from None
        # Empty members and frames, and endless names, have no content that a bound would count.
        if self._packed > 2 * self._unpacked + PIECE:
            raise ProtocolError(
                f"The {self.name} body is more than twice as long as its content; refused."
            )


class _Gzip(Decompressor):
    """Decompress gzip (RFC 1952): one member or several, each with its checksum."""

    name = "gzip"

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_ONLY)

    @property
    def whole(self) -> bool:
        return self._member.eof

    def _unpack(self, chunk: bytes) -> Iterator[bytes]:
        piece = b""
        # The decompressor may hold more content after a full piece, with no bytes left to read.
        while chunk or len(piece) == PIECE:
            if self._member.eof:
                self._member = zlib.decompressobj(_GZIP_ONLY)
            piece = self._member.decompress(chunk, PIECE)
            yield piece
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof:
                piece = b""


class _Zstd(Decompressor):
    """Decompress zstd (RFC 8878): one frame or several."""

    name = "zstd"

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415 - of another extra

        self.error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW)
        self._frame = self._unpacker.decompressobj()

    @property
    def whole(self) -> bool:
        return self._frame.eof

    def _unpack(self, chunk: bytes) -> Iterator[bytes]:
        for start in range(0, len(chunk), STEP):
            rest = chunk[start : start + STEP]
            while rest:
                if self._frame.eof:
                    self._frame = self._unpacker.decompressobj()
                yield self._frame.decompress(rest)
                rest = self._frame.unused_data if self._frame.eof else b""


def decompressor_of(header: str, *, zstd: bool = False) -> Decompressor | None:
    """Return the decompressor for a body by its Content-Encoding; None if it is not compressed.

    `zstd` says whether the request accepted that coding.
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
            return Decompressor()  # it refuses every body that is not empty
