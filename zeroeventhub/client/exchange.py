"""One request and the part of its response received so far, within the client's limits; no I/O."""

import math
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx

from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.settings import Limits
from zeroeventhub.wire import ARROW_TYPE
from zeroeventhub.wire.compression import Decompressor, decompressor_of
from zeroeventhub.wire.ndjson import PageDecoder

if TYPE_CHECKING:
    from zeroeventhub.wire.arrow import ArrowDecoder

DOCUMENT_BYTES = 8 * 1024 * 1024
"""Bytes of a response other than a page, at most: room for a thousand of the longest cursors."""

PROBLEM_BYTES = 64 * 1024
"""Bytes that are read of an error response."""


class Deadline:
    """The moment at which to give up a response; each byte received moves it.

    `wait` is how long the feed may wait at the head, and `timeout` how long the caller allows for
    one read of a socket, in seconds.
    """

    def __init__(self, limits: Limits, wait: float, timeout: float | None) -> None:
        self.read_began: float | None = None  # that has no result yet
        self._limits = limits
        self._wait = wait
        self._timeout = math.inf if timeout is None else timeout
        self._begun = 0.0
        self._received = 0
        self._end = self._moment = monotonic() + limits.seconds + wait

    def restart(self) -> None:
        """Count the seconds from now on."""
        self._end = self._moment = monotonic() + self._limits.seconds + self._wait

    def receive(self, count: int) -> None:
        """Count received bytes of the body; call it with 0 when the headers have arrived.

        Raises:
            TimeoutError: the read took longer than the caller's timeout, or no time is left.
        """
        if not count:
            self._begun = monotonic()
        self._received += count
        if rate := self._limits.bytes_per_second:
            earned = self._limits.grace + self._wait + self._received / rate
            self._moment = min(self._end, self._begun + earned)
        read_began, self.read_began = self.read_began, None
        if read_began is not None and monotonic() - read_began > self._timeout:
            raise TimeoutError("timed out")
        if count and monotonic() > self._moment:
            raise TimeoutError(self.reason)

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


@dataclass(eq=False, repr=False)
class SocketTimeout:
    """A timeout whose value is the time left, computed whenever a socket reads it.

    Sockets convert it to a number before each read, so the deadline also ends a response that
    arrives byte by byte. They convert to whole seconds: fractions are rounded up, and the shortest
    wait is one second. `Deadline.receive` refuses bytes that arrived in that extra time.
    """

    deadline: Deadline  # of the whole response
    seconds: float | None  # the caller's limit for one operation; None for no limit
    is_of_read: bool = False  # whether the operation is a read

    def __repr__(self) -> str:
        """Show the caller's limit: httpcore logs it."""
        return f"{self.seconds}"

    def __index__(self) -> int:
        """Return the whole seconds that an operation may take that starts now.

        Raises:
            TimeoutError: there is no time left.
        """
        if self.is_of_read:
            self.deadline.read_began = monotonic()
        return max(1, math.ceil(float(self)))

    def __float__(self) -> float:
        """Return the seconds that an operation may take that starts now; see `__index__`."""
        left = self.deadline.left
        if left <= 0:
            raise TimeoutError(self.deadline.reason)
        return left if self.seconds is None else min(float(self.seconds), left)


class Exchange:
    """A request, and the state of its response.

    Args:
        timeout: that of the caller's httpx client, extended by `wait`.
        wait: seconds that the feed may wait at the head.
        page: decodes a page of lines; None if no page is requested.
        arrow_page: decodes a page in Arrow; None if Arrow is not requested.
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        timeout: httpx.Timeout,
        limits: Limits,
        *,
        wait: float = 0.0,
        page: PageDecoder | None = None,
        arrow_page: "ArrowDecoder | None" = None,
        method: str = "GET",
        content: bytes | None = None,
    ) -> None:
        self.url = url
        self.headers = headers
        self.method = method
        self.content = content
        self.deadline = Deadline(limits, wait, timeout.read)
        self.status = 0  # of the response; before it has arrived
        # Whether it is an error, or of the wrong kind, such as a proxy's web page.
        self.is_refusal = False
        # What ended the response early; the bytes before it may hold a page.
        self.broken: CutPage | PageTooLarge | None = None
        self.decoder: PageDecoder | ArrowDecoder | None = page  # None if the response is no page
        self._arrow_page = arrow_page
        self._coding: Decompressor | None = None
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
        # For blocking sockets; httpx passes these objects to them.
        self.socket_timeouts: dict[str, Any] = {
            "connect": SocketTimeout(self.deadline, self.timeouts["connect"]),
            "read": SocketTimeout(self.deadline, timeout.read, is_of_read=True),
            "write": SocketTimeout(self.deadline, timeout.write),
            "pool": self.timeouts["pool"],
        }

    def begin(self, answer: httpx.Response) -> None:
        """Process the response's headers.

        Raises:
            TimeoutError: they arrived too late.
        """
        self.deadline.receive(0)
        self.status, self.answer_headers = answer.status_code, answer.headers
        self.media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_web_page = self.media_type == "text/html"
        success = httpx.codes.CREATED if self.method == "POST" else httpx.codes.OK
        self.is_refusal = self.status != success or (self.decoder is not None and is_web_page)
        if self.is_refusal:
            self.decoder = None
        elif self._arrow_page is not None and self.media_type == ARROW_TYPE:
            self.decoder = self._arrow_page
        # A hook of the caller's may have read the body; httpx has unpacked it then.
        header = answer.headers.get("content-encoding", "")
        if header and not answer.is_stream_consumed:
            asks_zstd = "zstd" in self.headers.get("Accept-Encoding", "")
            self._coding = decompressor_of(header, zstd=asks_zstd)

    def take(self, chunk: bytes) -> bool:
        """Process the next bytes of the body; return whether to read more.

        Raises:
            ProtocolError: they are not of the requested form, or exceed the client's limits.
            TimeoutError: they arrived too late.
        """
        keep = self._keep if self.decoder is None else self.decoder.feed
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
        self.deadline.receive(len(chunk))
        return True

    @property
    def is_in_page(self) -> bool:
        """Whether a page has begun to arrive."""
        return self.status != 0 and self.decoder is not None

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
