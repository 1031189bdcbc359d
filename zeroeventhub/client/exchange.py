"""One request and the part of its response received so far, within the client's limits; no I/O."""

import math
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError, Unreachable
from zeroeventhub.protocol import Page
from zeroeventhub.settings import Limits
from zeroeventhub.wire import ARROW_TYPE
from zeroeventhub.wire.compression import ContentCoding, content_coding
from zeroeventhub.wire.ndjson import PageDecoder

if TYPE_CHECKING:
    from zeroeventhub.wire.arrow import ArrowDecoder, ArrowPage

__all__ = ["Exchange"]

DOCUMENT_BYTES = 8 * 1024 * 1024
"""Bytes of a response other than a page, at most: room for a thousand of the longest cursors."""

PROBLEM_BYTES = 64 * 1024
"""Bytes that are read of an error response."""


class Deadline:
    """The moment at which to give up a response; each byte received moves it.

    Args:
        limits: the client's limits: a deadline for the whole response, and a least rate of bytes.
        wait: seconds that the feed may wait at the head.
    """

    def __init__(self, limits: Limits, wait: float) -> None:
        self._limits = limits
        self._wait = wait
        self._end = monotonic() + limits.seconds + wait
        self._moment = self._end
        self._begun = 0.0
        self._received = 0

    def receive(self, count: int) -> None:
        """Count received bytes of the body; call it with 0 when the headers have arrived."""
        if not count:
            self._begun = monotonic()
        self._received += count
        if rate := self._limits.bytes_per_second:
            earned = self._limits.grace + self._wait + self._received / rate
            self._moment = min(self._end, self._begun + earned)

    @property
    def left(self) -> float:
        """The seconds that are left; negative if there are none."""
        return self._moment - monotonic()

    @property
    def reason(self) -> str:
        """Return why no time is left."""
        if self._moment < self._end:
            return f"it sent fewer than {self._limits.bytes_per_second:g} bytes a second"
        return f"it took longer than {self._limits.seconds + self._wait:g} seconds"


class SocketTimeout:
    """A timeout whose value is the time left, computed whenever a socket reads it.

    Sockets convert it to a number before each read, so the deadline also ends a response that
    arrives byte by byte. They convert to whole seconds: fractions are rounded up, and the shortest
    wait is one second. `check` refuses bytes that arrived in that extra time.

    Args:
        deadline: that of the whole answer.
        seconds: the caller's own bound for one operation; None for none.
    """

    def __init__(self, deadline: Deadline, seconds: float | None) -> None:
        self._deadline = deadline
        self._seconds = math.inf if seconds is None else seconds
        self._asked: float | None = None

    def __repr__(self) -> str:
        """Show the caller's own bound: httpcore logs it."""
        return f"{self._seconds:g}"

    def __index__(self) -> int:
        """The whole seconds that an operation may take that starts now.

        Raises:
            TimeoutError: there is no time left.
        """
        self._asked = monotonic()
        return max(1, math.ceil(float(self)))

    def __float__(self) -> float:
        """The seconds that an operation may take that starts now; see `__index__`."""
        left = self._deadline.left
        if left <= 0:
            raise TimeoutError(self._deadline.reason)
        return float(min(self._seconds, left))

    def check(self) -> None:
        """Refuse the result of the last operation if the deadline has passed.

        Raises:
            TimeoutError: it has.
        """
        asked, self._asked = self._asked, None
        if asked is not None and monotonic() - asked > self._seconds:
            raise TimeoutError("timed out")


class Exchange:
    """A request, and the state of its response.

    Args:
        url: the URL.
        headers: the request's headers.
        timeout: that of the caller's httpx client, extended by `wait`.
        limits: the client's limits.
        wait: seconds that the feed may wait at the head.
        page: decodes a page of lines; None if no page is requested.
        arrow_page: decodes a page in Arrow; None if Arrow is not requested.
        method: the HTTP method.

    Attributes:
        status: the response's status; 0 before it has arrived.
        is_refusal: whether the response is an error or of the wrong kind, such as a proxy's web
            page instead of events.
        timeouts: for httpx, in seconds.
        socket_timeouts: the same for blocking sockets; httpx passes these objects to them.
        broken: the error that ended the response early; the bytes before it may hold a page.
    """

    def __init__(
        self,
        url: httpx.URL,
        headers: dict[str, str],
        timeout: httpx.Timeout,
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
        self.status = 0
        self.answer_headers = httpx.Headers()
        self.is_refusal = False
        self.broken: CutPage | Unreachable | PageTooLarge | None = None
        self._asks_page = page is not None
        self._page: PageDecoder | ArrowDecoder | None = page
        self._arrow_page = arrow_page
        self._coding: ContentCoding | None = None
        self._document = bytearray()
        # Waiting for a connection, connecting and TLS end by themselves before the deadline: a
        # handshake that is cancelled from outside would leave its connection open.
        third = limits.seconds / 3
        self.timeouts: dict[str, float | None] = {
            "connect": third if timeout.connect is None else min(timeout.connect, third),
            "read": timeout.read,
            "write": timeout.write,
            "pool": third if timeout.pool is None else min(timeout.pool, third),
        }
        self._reading = SocketTimeout(self.deadline, timeout.read)
        self.socket_timeouts: dict[str, Any] = {
            "connect": SocketTimeout(self.deadline, self.timeouts["connect"]),
            "read": self._reading,
            "write": SocketTimeout(self.deadline, timeout.write),
            "pool": self.timeouts["pool"],
        }

    def begin(self, answer: httpx.Response) -> None:
        """Process the response's headers.

        Raises:
            TimeoutError: they arrived too late.
        """
        self._reading.check()
        self.deadline.receive(0)
        self.status, self.answer_headers = answer.status_code, answer.headers
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_web_page = kind == "text/html"
        self.is_refusal = self.status != httpx.codes.OK or (self._asks_page and is_web_page)
        if self.is_refusal:
            self._page = None
        elif self._arrow_page is not None and kind == ARROW_TYPE:
            self._page = self._arrow_page
        # A hook of the caller's may have read it; httpx has unpacked it then.
        header = answer.headers.get("content-encoding", "")
        if header and not answer.is_stream_consumed:
            asks_zstd = "zstd" in self.headers.get("Accept-Encoding", "")
            self._coding = content_coding(header, zstd=asks_zstd)

    def take(self, chunk: bytes) -> bool:
        """Process the next bytes of the body; return whether to read more.

        Raises:
            ProtocolError: they are not of the requested form, or exceed the client's limits.
            TimeoutError: they arrived too late.
        """
        self.deadline.receive(len(chunk))
        keep = self._keep if self._page is None else self._page.feed
        try:
            for piece in (chunk,) if self._coding is None else self._coding.pieces(chunk):
                keep(piece)
        except PageTooLarge as error:
            self.broken = error
            return False
        except ProtocolError:
            if not self.is_refusal:
                raise
            # The body of an error is optional: the status is enough.
            self._document.clear()
            return False
        self._reading.check()
        if self.deadline.left < 0:
            raise TimeoutError(self.deadline.reason)
        return True

    def page(self) -> Page:
        """Return the page of lines, up to its last checkpoint.

        Raises:
            CutPage: it has no checkpoint.
            PageTooLarge: it has no checkpoint within the client's limits.
            ProtocolError: the response is not a page.
        """
        if not isinstance(self._page, PageDecoder):
            raise CutPage("There is no page.")
        try:
            return self._page.page(is_whole=self.broken is None)
        except CutPage as error:
            raise self.broken or error from None

    def arrow_page(self) -> "ArrowPage | None":
        """Return the page in Arrow; None if the feed sent lines. See `page`."""
        arrow_page = self._arrow_page
        if arrow_page is None or arrow_page is not self._page:
            return None
        try:
            return arrow_page.page()
        except CutPage as error:
            raise self.broken or error from None

    @property
    def is_in_page(self) -> bool:
        """Whether a page has begun to arrive."""
        return self.status != 0 and self._page is not None

    @property
    def body(self) -> bytes:
        """The body of a response other than a page."""
        return bytes(self._document)

    @property
    def is_whole(self) -> bool:
        """Whether the bytes received so far may be the whole body."""
        return self._coding is None or self._coding.whole

    def _keep(self, piece: bytes) -> None:
        self._document += piece
        bound = PROBLEM_BYTES if self.is_refusal else DOCUMENT_BYTES
        if len(self._document) > bound:
            raise ProtocolError(f"The answer is longer than {bound:,} bytes, and is no page.")
