"""The response with a page: its media type, content coding, and the headers for caches."""

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from zeroeventhub.errors import require
from zeroeventhub.extensions import ARROW
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import EncodedPage
from zeroeventhub.server.sending import BUFFERED, ResponseInParts
from zeroeventhub.wire import ARROW_TYPE, NDJSON_TYPE


def qualities(request: Request, header: str) -> dict[str, float]:
    """Return the quality of each item of a header's list, from 0 to 1; 0 if it is malformed."""
    found = {}
    for item in ",".join(request.headers.getlist(header)).lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights = [one[2:] for one in parameters if one.startswith("q=")]
        try:
            weight = float(weights[0]) if weights else 1.0
        except ValueError:
            weight = 0.0
        if name:
            found[name] = weight if 0 <= weight <= 1 else 0.0
    return found


def prefers_arrow(request: Request) -> bool:
    """Return whether a client names Arrow, and does not prefer lines to it."""
    accepted = qualities(request, "accept")
    kinds = (NDJSON_TYPE, NDJSON_TYPE.partition("/")[0] + "/*", "*/*")
    of_lines = next((accepted[kind] for kind in kinds if kind in accepted), 0.0)
    return accepted.get(ARROW_TYPE, 0.0) > 0 and accepted[ARROW_TYPE] >= of_lines


LEAST = 1_400
"""Bytes of a body from which compression pays: a smaller one fits into one packet."""

# A higher level costs several times more work than it saves in bytes.
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1


class ContentCoding(NamedTuple):
    """A way to compress bodies."""

    name: str  # in HTTP
    edition: str  # another text whenever the same bytes may be compressed differently
    compress: Callable[[bytes], bytes]


def content_codings() -> Sequence[ContentCoding]:
    """Return the available codings, the better ones first; zstd only where it is installed."""
    compress = partial(zlib.compress, level=_GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
    gzip = ContentCoding("gzip", f"gzip-{zlib.ZLIB_RUNTIME_VERSION}-{_GZIP_LEVEL}", compress)
    if find_spec("zstandard") is None:
        return [gzip]
    import zstandard  # noqa: PLC0415 - of another extra

    def zstd(body: bytes) -> bytes:
        # A compressor is not for use by several threads at once.
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(body)

    edition = ".".join(map(str, zstandard.ZSTD_VERSION))
    return [ContentCoding("zstd", f"zstd-{edition}-{_ZSTD_LEVEL}", zstd), gzip]


def preferred_coding(
    request: Request, size: int, codings: Sequence[ContentCoding]
) -> ContentCoding | None:
    """Return the coding that a client names and prefers to an uncompressed body of this size."""
    accepted = qualities(request, "accept-encoding")
    if accepted.get("identity", accepted.get("*", 1.0)) == 0:
        # A client that refuses an uncompressed body need not name a coding.
        accepted = {coding.name: accepted.get("*", 0.0) for coding in codings} | accepted
    elif size < LEAST:
        return None
    best = max(codings, key=lambda coding: accepted.get(coding.name, 0.0))
    quality = accepted.get(best.name, 0.0)
    return best if quality > 0 and quality >= accepted.get("identity", 0.0) else None


FRESH = {"Cache-Control": "no-store"}
"""The headers of a response that caches must not store."""

YEAR = 31_536_000

LARGE = 32 * 1024
"""Bytes from which compression would block the event loop for too long."""


class Renderer:
    """Send pages in the form that a client prefers; `feed_routes` documents the options.

    Raises:
        MissingExtra: `arrow` needs pyarrow.
    """

    def __init__(self, runner: FeedRunner, *, arrow: bool, compressed: bool) -> None:
        self._runner = runner
        self._as_arrow: Callable[[bytes, bytes], bytes] | None = None
        if arrow:
            require("pyarrow", extra="arrow", user="A feed that sends Arrow")
            from zeroeventhub.wire.arrow import encode_page  # noqa: PLC0415 - of another extra

            self._as_arrow = encode_page
        self._codings = content_codings() if compressed else ()
        vary = ["Accept"] * arrow + ["Accept-Encoding"] * compressed
        self._vary = {"Vary": ", ".join(vary)} if vary else {}
        self.extensions = frozenset({ARROW} if arrow else ())
        """The extensions that discovery announces because of these forms."""

    async def response(self, request: Request, page: EncodedPage, *, shared: bool) -> Response:
        """Return the response with a page, which caches may store if it has a tag.

        With `shared`, those of several clients may, too.
        """
        parts: tuple[bytes, ...] = (page.lines, page.checkpoint)
        size, tag, media_type = page.size, page.tag, NDJSON_TYPE
        headers = FRESH | self._vary
        if self._as_arrow is not None and prefers_arrow(request):
            media_type = ARROW_TYPE
            parts = (await self._runner.work(size, self._as_arrow, *parts),)
            size = len(parts[0])
            # The two forms of a page may have as many bytes as each other.
            tag = None if tag is None else f'{tag[:-1]}-arrow-{size}"'
        coding = preferred_coding(request, size, self._codings) if self._codings else None
        if tag is not None:
            tag = tag if coding is None else f'{tag[:-1]}-{coding.edition}"'
            scope = "public" if shared else "private"
            headers["Cache-Control"] = f"{scope}, max-age={YEAR}, immutable"
            headers["ETag"] = tag
            # The tags of what the client holds (RFC 9110, If-None-Match).
            if held := request.headers.getlist("if-none-match"):
                tags = [one.strip().removeprefix("W/") for one in ",".join(held).split(",")]
                if tag in tags or "*" in tags:
                    return Response(status_code=304, headers=headers)
        if coding is not None:
            body = b"".join(parts)
            parts = (await self._runner.work(size, coding.compress, body, large=LARGE),)
            size = len(parts[0])
            headers["Content-Encoding"] = coding.name
        if size <= BUFFERED:
            return Response(b"".join(parts), media_type=media_type, headers=headers)
        return ResponseInParts(parts, media_type=media_type, headers=headers)
