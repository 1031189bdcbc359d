"""One request and what has come of its answer, within the client's limits; no I/O."""

from typing import TYPE_CHECKING, Any

import httpx

from zeroeventhub._http.content_coding import ContentCoding, content_coding
from zeroeventhub._http.deadline import Deadline, Patience
from zeroeventhub.arrow import MEDIA_TYPE as ARROW_TYPE
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.limits import Limits
from zeroeventhub.ndjson import PageDecoder
from zeroeventhub.protocol import Page

if TYPE_CHECKING:
    from zeroeventhub.arrow.arrow_page import ArrowPage
    from zeroeventhub.arrow.page_decoder import ArrowDecoder

__all__ = ["Exchange"]

DOCUMENT_BYTES = 8 * 1024 * 1024
"""What an answer other than a page may have: a thousand of the longest cursors, and more."""

PROBLEM_BYTES = 64 * 1024
"""What is read of an answer that refuses."""

_BLOCKING = ("connect", "write")


def _shared(timeouts: dict[str, float | None], seconds: float) -> dict[str, float | None]:
    """Let waiting for a connection, connecting and TLS end by themselves before the deadline.

    A handshake that is cancelled from outside would leave its connection open.
    """
    third = seconds / 3
    bounds = {name: timeouts[name] for name in ("pool", "connect")}
    return timeouts | {
        name: third if bound is None else min(bound, third) for name, bound in bounds.items()
    }


class Exchange:
    """Hold a request, and take in its answer.

    Args:
        url: where to ask.
        headers: what to ask with.
        patience: the timeouts of the caller's httpx client, with the wait that was asked for.
        limits: the client's.
        wait: seconds that the feed was asked to wait.
        page: what to take a page into, where a page was asked for.
        arrow_page: what to take it into if it comes as Arrow, where that was asked for.
        method: of HTTP.
    """

    def __init__(
        self,
        url: httpx.URL,
        headers: dict[str, str],
        patience: httpx.Timeout,
        limits: Limits,
        *,
        wait: float = 0.0,
        page: PageDecoder | None = None,
        arrow_page: "ArrowDecoder | None" = None,
        method: str = "GET",
    ) -> None:
        self.url = url
        self.headers = headers
        self.method = method
        self.deadline = Deadline(limits, wait)
        self.timeouts = _shared(patience.as_dict(), limits.seconds)
        self.status = 0
        self.answer_headers = httpx.Headers()
        self._asks_page = page is not None
        self._page: PageDecoder | ArrowDecoder | None = page
        self._arrow_page = arrow_page
        self._reading = Patience(self.deadline, self.timeouts["read"])
        self._coding: ContentCoding = content_coding("")
        self._document = bytearray()

    @property
    def socket_timeouts(self) -> dict[str, Any]:
        """The timeouts for sockets that block: httpx hands them down as they are."""
        blocking = {name: Patience(self.deadline, self.timeouts[name]) for name in _BLOCKING}
        return {**self.timeouts, **blocking, "read": self._reading}

    def begin(self, answer: httpx.Response) -> None:
        """Take an answer's headers.

        Raises:
            TimeoutError: they came too late.
        """
        self._reading.check()
        self.deadline.begin()
        self.status, self.answer_headers = answer.status_code, answer.headers
        if self.is_refusal:
            self._page = None
        elif self._arrow_page is not None and self._media_type == ARROW_TYPE:
            self._page = self._arrow_page
        # A hook of the caller's may have read it; httpx has unpacked it then.
        if not answer.is_stream_consumed:
            asks_zstd = "zstd" in self.headers.get("Accept-Encoding", "")
            header = answer.headers.get("content-encoding", "")
            self._coding = content_coding(header, zstd=asks_zstd)

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes of the body; tell whether more are of use.

        Raises:
            ProtocolError: they are not what was asked for, or more than the client takes.
            TimeoutError: they came too late.
        """
        self.deadline.receive(len(chunk))
        keep = self._keep if self._page is None else self._page.feed
        try:
            for piece in self._coding.pieces(chunk):
                keep(piece)
        except ProtocolError:
            if not self.is_refusal:
                raise
            # Whatever its body is, what the status says holds.
            self._document.clear()
            return False
        self._reading.check()
        if self.deadline.left < 0:
            raise TimeoutError(self.deadline.reason)
        return True

    def page(self) -> Page:
        """Return the page that came as lines, up to its last checkpoint.

        Raises:
            CutPage: it has none.
        """
        if not isinstance(self._page, PageDecoder):
            raise CutPage("There is no page.")
        return self._page.page()

    def arrow_page(self) -> "ArrowPage | None":
        """Return the page that came as Arrow, up to its last checkpoint; None if it came as lines.

        Raises:
            CutPage: it has none.
        """
        arrow_page = self._arrow_page
        return arrow_page.page() if arrow_page and arrow_page is self._page else None

    @property
    def is_in_page(self) -> bool:
        """Whether a page has begun to come."""
        return self.status != 0 and self._page is not None

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a page in what came so far."""
        return self._page is not None and self._page.has_checkpoint

    @property
    def body(self) -> bytes:
        """The body of an answer that is no page."""
        return bytes(self._document)

    @property
    def is_whole(self) -> bool:
        """Whether what came so far may be all."""
        return self._coding.whole

    @property
    def is_refusal(self) -> bool:
        """Whether the answer is none to what was asked."""
        return self.status != httpx.codes.OK or (self._asks_page and self.is_web_page)

    @property
    def is_web_page(self) -> bool:
        """Whether the answer is somebody else's: a proxy's or a login form's."""
        return self._media_type == "text/html"

    @property
    def _media_type(self) -> str:
        content_type: str = self.answer_headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()

    def _keep(self, piece: bytes) -> None:
        self._document += piece
        bound = PROBLEM_BYTES if self.is_refusal else DOCUMENT_BYTES
        if len(self._document) > bound:
            raise ProtocolError(f"The answer is longer than {bound:,} bytes, and is no page.")
