"""The forms in which a page can be sent: lines or Arrow, packed or not."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.status import HTTP_200_OK

from zeroeventhub.arrow import MEDIA_TYPE as ARROW_TYPE
from zeroeventhub.ndjson import MEDIA_TYPE
from zeroeventhub.protocol import ARROW
from zeroeventhub.server.caching import edition_of, is_held, page_response, tag_of
from zeroeventhub.server.content_coding import ContentCoding, asked_for
from zeroeventhub.server.negotiation import prefers
from zeroeventhub.server.pages import EncodedPage
from zeroeventhub.server.source import Source

__all__ = ["PageForms"]

LARGE = 32 * 1024
"""How many bytes are packed for as long as the event loop may be kept."""


class PageForms:
    """Send pages in the form that a client would rather have.

    Args:
        source: works on pages.
        as_arrow: makes an Arrow stream of a page's lines; None if the feed sends lines only.
        codings: in which pages are packed for those who ask for it, the better ones first.
    """

    def __init__(
        self,
        source: Source,
        as_arrow: Callable[[bytes], bytes] | None = None,
        codings: Sequence[ContentCoding] = (),
    ) -> None:
        self._source = source
        self._as_arrow = as_arrow
        self._codings = codings

    @property
    def extensions(self) -> frozenset[str]:
        """What discovery says of them."""
        return frozenset() if self._as_arrow is None else frozenset({ARROW})

    async def response(self, request: Request, page: EncodedPage, *, shared: bool) -> Response:
        """Answer with a page.

        Args:
            request: what was asked.
            page: the page in lines.
            shared: whether caches that serve several clients may keep it.
        """
        media_type = MEDIA_TYPE
        if self._as_arrow is not None and prefers(request, ARROW_TYPE, MEDIA_TYPE):
            media_type = ARROW_TYPE
            body = await self._source.work(len(page.body), self._as_arrow, page.body)
            tag = None if page.tag is None else tag_of(page.cursor, body)
            page = replace(page, body=body, tag=tag)
        coding = asked_for(request, len(page.body), self._codings) if self._codings else None
        if coding is not None:
            page = await self._packed(request, page, coding)
        response = page_response(request, page.body, page.tag, media_type=media_type, shared=shared)
        if coding is not None and response.status_code == HTTP_200_OK:
            response.headers["Content-Encoding"] = coding.name
        if self._as_arrow is not None:
            response.headers.add_vary_header("Accept")
        if self._codings:
            response.headers.add_vary_header("Accept-Encoding")
        return response

    async def _packed(
        self, request: Request, page: EncodedPage, coding: ContentCoding
    ) -> EncodedPage:
        """Pack a page, unless the client has it."""
        tag = None if page.tag is None else edition_of(page.tag, coding.edition)
        if tag is not None and is_held(request, tag):
            return replace(page, tag=tag)
        body = await self._source.work(len(page.body), coding.pack, page.body, large=LARGE)
        return replace(page, body=body, tag=tag)
