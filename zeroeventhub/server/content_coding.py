"""Answers packed for those who ask for it (RFC 9110, section 8.4)."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from starlette.requests import Request

from zeroeventhub.server.negotiation import qualities

__all__ = ["ContentCoding", "asked_for", "content_codings"]

LEAST = 1_400
"""How many bytes are worth packing: fewer travel in one piece anyway."""

# What a higher level saves of bytes it costs several times in work.
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1


@dataclass(frozen=True)
class ContentCoding:
    """Pack bodies in one way.

    Attributes:
        name: what it is called in HTTP.
        edition: another one if the same bytes may be packed to others.
        pack: packs a body.
    """

    name: str
    edition: str
    pack: Callable[[bytes], bytes]


def content_codings() -> Sequence[ContentCoding]:
    """Return the codings that there are, the better ones first; zstd only where it is installed."""
    gzip = ContentCoding("gzip", f"gzip-{zlib.ZLIB_RUNTIME_VERSION}-{_GZIP_LEVEL}", _gzip)
    return [gzip] if find_spec("zstandard") is None else [_zstd(), gzip]


def asked_for(
    request: Request, size: int, codings: Sequence[ContentCoding]
) -> ContentCoding | None:
    """Return the coding that a client would rather have than none.

    It has to name the coding, unless it takes nothing that is not packed.

    Args:
        request: the client's.
        size: how many bytes there are to pack.
        codings: those to choose from, the better ones first.
    """
    accepted = qualities(request.headers.getlist("accept-encoding"))
    if _takes_only_packed(accepted):
        accepted = {coding.name: accepted.get("*", 0.0) for coding in codings} | accepted
    elif size < LEAST:
        return None
    best = max(codings, key=lambda coding: accepted.get(coding.name, 0.0))
    liking = accepted.get(best.name, 0.0)
    return best if liking > 0 and liking >= accepted.get("identity", 0.0) else None


def _takes_only_packed(accepted: Mapping[str, float]) -> bool:
    """Tell whether a client refuses what is not packed."""
    return accepted.get("identity", accepted.get("*", 1.0)) == 0


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, _GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)


def _zstd() -> ContentCoding:
    import zstandard  # noqa: PLC0415 - of another extra

    def pack(body: bytes) -> bytes:
        # Not for use by several threads at once.
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(body)

    edition = ".".join(map(str, zstandard.ZSTD_VERSION))
    return ContentCoding("zstd", f"zstd-{edition}-{_ZSTD_LEVEL}", pack)
