"""Requests to send to a feed, and answers to understand; no I/O.

What the sync and the async client share: everything but the waiting.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, NoReturn, TypeVar

import httpx
import msgspec

from zeroeventhub.errors import (
    BadCursor,
    BadRequest,
    ConfigurationError,
    CutPage,
    Diverged,
    FeedError,
    Forbidden,
    Gone,
    NotFound,
    ProtocolError,
    TokenChanged,
    Trimmed,
    Unavailable,
    Unreachable,
)
from zeroeventhub.ndjson import MEDIA_TYPE, PageDecoder, decode_info
from zeroeventhub.protocol import FeedInfo

__all__ = ["HEADERS", "PAGE_HEADERS", "Wire"]

# No transparent compression: what a few bytes would unpack to is not bounded.
HEADERS = {"Accept-Encoding": "identity"}
PAGE_HEADERS = {**HEADERS, "Accept": MEDIA_TYPE}

_PROBLEMS = {
    error.problem: error
    for error in (BadCursor, BadRequest, Diverged, Forbidden, Gone, NotFound, TokenChanged, Trimmed)
}
_STATUSES: dict[int, type[FeedError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: TokenChanged,
    410: Gone,
}
_V1_ANSWERS = {400, 422}
"""What a v1 feed answers to a request without parameters (FeedAPI v2, Protocol negotiation)."""


_Http = TypeVar("_Http", httpx.Client, httpx.AsyncClient)


class Wire(Generic[_Http]):
    """Know a feed's address and protocol.

    Args:
        url: the feed's address, the one that answers discovery.
        http: the caller's httpx client.
        partitions: how many partitions a v1 feed has, which it does not tell itself.
    """

    def __init__(self, url: httpx.URL | str, http: _Http, *, partitions: int | None = None) -> None:
        self._http: _Http = http
        try:
            self._url = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigurationError("This is not a URL.") from None
        if self._url.scheme not in {"http", "https"} or not self._url.host:
            raise ConfigurationError(
                f"{self._address or 'The empty string'} is not a feed's URL: "
                "it starts with http:// or https://."
            )
        self._v1 = None if partitions is None else _v1_info(partitions)
        self._info: FeedInfo | None = None

    @property
    def _address(self) -> str:
        """The feed's URL without what may be secret in it."""
        return str(self._url.copy_with(userinfo=b"", query=None, fragment=None))

    def _events_url(
        self, info: FeedInfo, partition: int, cursor: str, limit: int | None, headers: Sequence[str]
    ) -> httpx.URL:
        """Build the address of a page."""
        parameters: dict[str, str | int] = {}
        url = self._url
        if info.token is None:
            parameters |= {"n": len(info.partitions), f"cursor{partition}": cursor}
            if headers:
                parameters["headers"] = ",".join(headers)
        else:
            path, mark, query = url.raw_path.partition(b"?")
            url = url.copy_with(raw_path=path.rstrip(b"/") + b"/events" + mark + query)
            parameters |= {"token": info.token, "partition": partition, "cursor": cursor}
        if limit is not None:
            parameters["pagesizehint"] = limit
        return url.copy_merge_params(parameters)

    def _understand_info(self, status: int, headers: httpx.Headers, body: bytes) -> FeedInfo:
        """Read the answer to a discovery request."""
        if status in _V1_ANSWERS and self._v1 is not None:
            self._info = self._v1
        elif status in _V1_ANSWERS and _problem(body) is None:
            raise ConfigurationError(
                f"{self._address} does not answer discovery ({status}); if it is a feed of "
                "ZeroEventHub v1, say how many partitions it has."
            )
        elif status != httpx.codes.OK:
            self._refuse(status, headers, body)
        else:
            try:
                self._info = decode_info(body)
            except ProtocolError as error:
                raise ProtocolError(f"{self._address} is not a feed. {error}") from error
        return self._info

    def _expect_page(self, headers: httpx.Headers) -> None:
        """Refuse a success that is somebody else's: a proxy's or a login form's."""
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "text/html":
            raise Unavailable(f"{self._address} answered with a web page in place of events.")

    def _refuse(self, status: int, headers: httpx.Headers, body: bytes) -> NoReturn:
        """Raise the error that an answer other than a success stands for."""
        problem, detail = _problem(body) or ("", "")
        message = detail or f"{self._address} answered with status {status}."
        if status in {408, 425, 429} or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise Unavailable(message, retry_after=_seconds(headers.get("retry-after", "")))
        if 300 <= status < 400:  # noqa: PLR2004 - the class of redirections
            raise NotFound(
                f"{self._address} has moved{self._destination(headers)}; "
                "redirections are not followed: give the feed's own address."
            )
        if status == httpx.codes.NOT_FOUND and not detail:
            message = f"There is no feed at {self._address}."
        error = _PROBLEMS.get(problem) or _STATUSES.get(status, BadRequest)
        raise error(message)

    def _destination(self, headers: httpx.Headers) -> str:
        """Say where a redirection leads, without what may be secret in it."""
        try:
            target = self._url.join(headers.get("location", ""))
            return f" to {target.copy_with(userinfo=b'', query=None, fragment=None)}"
        except httpx.InvalidURL:
            return ""

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn httpx's exceptions into ours; theirs carry the URL with its secrets."""
        try:
            yield
        except httpx.RequestError as error:
            # Only these two say where it failed and nothing of what was sent.
            speaks = isinstance(error, httpx.NetworkError | httpx.TimeoutException)
            reason = (speaks and str(error)) or type(error).__name__
            raise Unreachable(f"{self._address} cannot be reached: {reason}") from None
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigurationError(
                f"{self._address} cannot be asked: its address or a header is not of HTTP's form."
            ) from None

    @contextmanager
    def _reading(self, decoder: PageDecoder) -> Iterator[None]:
        """Keep what came before the connection broke, if it holds a checkpoint."""
        try:
            yield
        except httpx.RequestError:
            if not decoder.has_checkpoint:
                raise CutPage(
                    f"The connection to {self._address} broke in the middle of a page."
                ) from None


def _v1_info(partitions: int) -> FeedInfo:
    info = FeedInfo.of(partitions)
    # Whether a v1 feed repeats events is in its documentation, not on the wire.
    return FeedInfo(info.partitions, token=None, exactly_once=False)


def _problem(body: bytes) -> tuple[str, str] | None:
    """Read type and detail of a problem document (RFC 9457), if the body is one."""
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
    kind = document.get("type")
    if not isinstance(kind, str):
        return None
    return kind.rpartition("/")[2], str(document.get("detail", ""))


def _seconds(retry_after: str) -> float | None:
    """Read a Retry-After header in seconds; None where it is absent or a date."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
