"""One request and what has come of its answer, within the client's limits; no I/O."""

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
"""What an answer other than a page may have: a thousand of the longest cursors, and more."""

PROBLEM_BYTES = 64 * 1024
"""What is read of an answer that refuses."""


class Deadline:
    """Know the moment when an answer is given up; bytes that come move it.

    Args:
        limits: the client's: a deadline for all of an answer, and a least rate for its body.
        wait: seconds that the feed was asked to wait.
    """

    def __init__(self, limits: Limits, wait: float) -> None:
        self._limits = limits
        self._wait = wait
        self._end = monotonic() + limits.seconds + wait
        self._moment = self._end
        self._begun = 0.0
        self._received = 0

    def receive(self, count: int) -> None:
        """Take notice of bytes of the body; of none when the headers are there."""
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
        """Say why there is no time left."""
        if self._moment < self._end:
            return f"it sent fewer than {self._limits.bytes_per_second:g} bytes a second"
        return f"it took longer than {self._limits.seconds + self._wait:g} seconds"


class SocketTimeout:
    """Tell a socket, each time it asks, how long one operation on it may take.

    Sockets ask anew before each read, so that a server that sends byte by byte comes to an end
    as well. They ask for whole seconds: the shortest wait is one second, and fractions are
    rounded up. `check` sees to what came in time for the socket only.

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
        """Refuse what the last operation brought, if it took too long.

        Raises:
            TimeoutError: it did.
        """
        asked, self._asked = self._asked, None
        if asked is not None and monotonic() - asked > self._seconds:
            raise TimeoutError("timed out")


class Exchange:
    """Hold a request, and take in its answer.

    Args:
        url: where to ask.
        headers: what to ask with.
        timeout: that of the caller's httpx client, with the wait that was asked for.
        limits: the client's.
        wait: seconds that the feed was asked to wait.
        page: what to take a page into, where a page was asked for.
        arrow_page: what to take it into if it comes as Arrow, where that was asked for.
        method: of HTTP.

    Attributes:
        status: of the answer; 0 before it has come.
        is_refusal: whether the answer is none to what was asked, such as a proxy's web page in
            place of events.
        timeouts: for httpx, in seconds.
        socket_timeouts: the same for sockets that block: httpx hands them down as they are.
        broken: what ended the answer too early; what came before may hold a page nevertheless.
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
        """Take an answer's headers.

        Raises:
            TimeoutError: they came too late.
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
        """Take the next bytes of the body; tell whether more are of use.

        Raises:
            ProtocolError: they are not what was asked for, or more than the client takes.
            TimeoutError: they came too late.
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
            PageTooLarge: it has none within the client's limits.
            ProtocolError: it is none.
        """
        if not isinstance(self._page, PageDecoder):
            raise CutPage("There is no page.")
        try:
            return self._page.page(is_whole=self.broken is None)
        except CutPage as error:
            raise self.broken or error from None

    def arrow_page(self) -> "ArrowPage | None":
        """Return the page that came as Arrow; None if it came as lines. See `page`."""
        arrow_page = self._arrow_page
        if arrow_page is None or arrow_page is not self._page:
            return None
        try:
            return arrow_page.page()
        except CutPage as error:
            raise self.broken or error from None

    @property
    def is_in_page(self) -> bool:
        """Whether a page has begun to come."""
        return self.status != 0 and self._page is not None

    @property
    def body(self) -> bytes:
        """The body of an answer that is no page."""
        return bytes(self._document)

    @property
    def is_whole(self) -> bool:
        """Whether what came so far may be all."""
        return self._coding is None or self._coding.whole

    def _keep(self, piece: bytes) -> None:
        self._document += piece
        bound = PROBLEM_BYTES if self.is_refusal else DOCUMENT_BYTES
        if len(self._document) > bound:
            raise ProtocolError(f"The answer is longer than {bound:,} bytes, and is no page.")
