"""The response with a page: its media type, content coding, and the headers for caches."""

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from starlette.requests import Request
from starlette.responses import Response

from zeroeventhub.errors import require
from zeroeventhub.protocol import ARROW
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import EncodedPage, tag_of
from zeroeventhub.wire import ARROW_TYPE, NDJSON_TYPE

__all__ = [
    "FRESH",
    "Renderer",
]


def prefers(request: Request, wanted: str, usual: str) -> bool:
    """Return whether a client names a media type, and does not name the usual one as the better.

    A client that takes everything gets the usual one.

    Args:
        request: the client's.
        wanted: the media type in question.
        usual: what is sent otherwise.
    """
    accepted = qualities(request.headers.getlist("accept"))
    kinds = (usual, usual.partition("/")[0] + "/*", "*/*")
    of_usual = next((accepted[kind] for kind in kinds if kind in accepted), 0.0)
    return accepted.get(wanted, 0.0) > 0 and accepted[wanted] >= of_usual


def qualities(headers: Iterable[str]) -> dict[str, float]:
    """Read how much a client likes each of what a header of preferences lists, from 0 to 1.

    What does not say it in a number is not wanted.
    """
    found = {}
    for item in ",".join(headers).lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights = [one[2:] for one in parameters if one.startswith("q=")]
        if name:
            found[name] = _number(weights[0]) if weights else 1.0
    return found


def _number(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 and math.isfinite(weight) else 0.0


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
        edition: changes when the same bytes may be packed differently.
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
    if accepted.get("identity", accepted.get("*", 1.0)) == 0:  # it refuses what is not packed
        accepted = {coding.name: accepted.get("*", 0.0) for coding in codings} | accepted
    elif size < LEAST:
        return None
    best = max(codings, key=lambda coding: accepted.get(coding.name, 0.0))
    liking = accepted.get(best.name, 0.0)
    return best if liking > 0 and liking >= accepted.get("identity", 0.0) else None


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, _GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)


def _zstd() -> ContentCoding:
    import zstandard  # noqa: PLC0415 - of another extra

    def pack(body: bytes) -> bytes:
        # Not for use by several threads at once.
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(body)

    edition = ".".join(map(str, zstandard.ZSTD_VERSION))
    return ContentCoding("zstd", f"zstd-{edition}-{_ZSTD_LEVEL}", pack)


FRESH = {"Cache-Control": "no-store"}
"""Headers of what is true only now."""

YEAR = 31_536_000


def is_held(request: Request, tag: str) -> bool:
    """Return whether the client holds what has this tag (RFC 9110, If-None-Match)."""
    held = ",".join(request.headers.getlist("if-none-match")).split(",")
    return any(one.strip().removeprefix("W/") in {tag, "*"} for one in held)


LARGE = 32 * 1024
"""How many bytes are packed for as long as the event loop may be kept."""


class Renderer:
    """Send pages in the form that a client prefers.

    Args:
        runner: works on pages.
        arrow: whether clients may have them as Arrow record batches; else in lines only.
        compressed: whether clients may have them packed.

    Raises:
        MissingExtra: `arrow` needs pyarrow.
    """

    def __init__(self, runner: FeedRunner, *, arrow: bool, compressed: bool) -> None:
        self._runner = runner
        self._as_arrow: Callable[[bytes], bytes] | None = None
        if arrow:
            require("pyarrow", extra="arrow", user="A feed that sends Arrow")
            from zeroeventhub.wire.arrow import encode_page  # noqa: PLC0415 - of another extra

            self._as_arrow = encode_page
        self._codings = content_codings() if compressed else ()
        self.extensions = frozenset({ARROW} if arrow else ())
        """What discovery announces of them."""

    async def response(self, request: Request, page: EncodedPage, *, shared: bool) -> Response:
        """Answer with a page.

        Args:
            request: what was asked.
            page: the page in lines; it may be kept for ever if it has a tag.
            shared: whether caches that serve several clients may keep it.
        """
        media_type = NDJSON_TYPE
        if self._as_arrow is not None and prefers(request, ARROW_TYPE, NDJSON_TYPE):
            media_type = ARROW_TYPE
            body = await self._runner.work(len(page.body), self._as_arrow, page.body)
            tag = None if page.tag is None else tag_of(page.cursor, body)
            page = replace(page, body=body, tag=tag)
        coding = asked_for(request, len(page.body), self._codings) if self._codings else None
        body, tag, headers = page.body, page.tag, dict(FRESH)
        if tag is not None:
            tag = tag if coding is None else f'{tag[:-1]}-{coding.edition}"'
            scope = "public" if shared else "private"
            headers = {"Cache-Control": f"{scope}, max-age={YEAR}, immutable", "ETag": tag}
        if tag is not None and is_held(request, tag):
            response = Response(status_code=304, headers=headers)
        else:
            if coding is not None:
                body = await self._runner.work(len(body), coding.pack, body, large=LARGE)
                headers["Content-Encoding"] = coding.name
            response = Response(body, media_type=media_type, headers=headers)
        if self._as_arrow is not None:
            response.headers.add_vary_header("Accept")
        if self._codings:
            response.headers.add_vary_header("Accept-Encoding")
        return response
