"""Requests to send to a feed, and answers to understand; no I/O.

What the sync and the async client share: everything but the waiting.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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
from zeroeventhub.protocol import CURSOR_OF_TIME, SPLITS, STOP, WAIT, FeedInfo, TypeFilter

__all__ = ["HEADERS", "PAGE_HEADERS", "Wire", "rfc3339"]

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


_FOR_EVER = 1_000_000

_PATHS = {CURSOR_OF_TIME: "cursor", SPLITS: "splits"}


@dataclass(frozen=True)
class _Request:
    """Hold where to ask, and how long to wait for the answer."""

    url: httpx.URL
    patience: httpx.Timeout


@dataclass(frozen=True)
class _Problem:
    """Hold what a problem document says."""

    kind: str = ""
    detail: str = ""
    earliest: str | None = None


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

    def _page_request(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        *,
        limit: int | None,
        headers: Sequence[str],
        types: TypeFilter | None,
        stop: str | None,
        wait: float | None,
    ) -> _Request:
        """Build the address of a page, and say how long its answer may take."""
        parameters: dict[str, str | int] = {} if limit is None else {"pagesizehint": limit}
        if info.token is None:
            if types is not None:
                raise ConfigurationError("A feed of ZeroEventHub v1 does not filter by types.")
            self._expect_extension(info, STOP if stop else None)
            parameters |= {"n": len(info.partitions), f"cursor{partition}": cursor}
            if headers:
                parameters["headers"] = ",".join(headers)
            return _Request(self._url.copy_merge_params(parameters), self._http.timeout)
        if types is not None:
            name = "skip-event-types" if types.skip else "event-types"
            parameters[name] = ";".join(sorted(types.names))
        if stop is not None:
            self._expect_extension(info, STOP)
            parameters["stop"] = stop
        patience = self._http.timeout
        if wait and WAIT in info.extensions:
            parameters["wait"] = _decimal(wait)
            patience = _longer(patience, wait)
        parameters["cursor"] = cursor
        url = self._url_below(info, "events", partition, parameters)
        return _Request(url, patience)

    def _extension_url(
        self, info: FeedInfo, extension: str, partition: int, parameters: dict[str, str | int]
    ) -> httpx.URL:
        """Build the address of an extension.

        Raises:
            ConfigurationError: the feed does not have it.
        """
        self._expect_extension(info, extension)
        return self._url_below(info, _PATHS[extension], partition, parameters)

    def _url_below(
        self, info: FeedInfo, name: str, partition: int, parameters: dict[str, str | int]
    ) -> httpx.URL:
        path, mark, query = self._url.raw_path.partition(b"?")
        url = self._url.copy_with(raw_path=path.rstrip(b"/") + b"/" + name.encode() + mark + query)
        return url.copy_merge_params(
            {"token": str(info.token), "partition": partition, **parameters}
        )

    def _expect_extension(self, info: FeedInfo, extension: str | None) -> None:
        if extension is not None and extension not in info.extensions:
            raise ConfigurationError(
                f"{self._address} does not have the extension {extension}: its discovery document "
                "does not name it."
            )

    def _understand(self, status: int, headers: httpx.Headers, body: bytes) -> bytes:
        """Return the body of an answer that is a success."""
        if status != httpx.codes.OK:
            self._refuse(status, headers, body)
        return body

    def _understand_info(self, status: int, headers: httpx.Headers, body: bytes) -> FeedInfo:
        """Read the answer to a discovery request."""
        if status in _V1_ANSWERS and self._v1 is not None:
            self._info = self._v1
        elif status in _V1_ANSWERS and not _problem(body).kind:
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
        problem = _problem(body)
        message = problem.detail or f"{self._address} answered with status {status}."
        if status in {408, 425, 429} or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise Unavailable(message, retry_after=_seconds(headers.get("retry-after", "")))
        if 300 <= status < 400:  # noqa: PLR2004 - the class of redirections
            raise NotFound(
                f"{self._address} has moved{self._destination(headers)}; "
                "redirections are not followed: give the feed's own address."
            )
        if status == httpx.codes.NOT_FOUND and not problem.detail:
            message = f"There is no feed at {self._address}."
        error = _PROBLEMS.get(problem.kind) or _STATUSES.get(status, BadRequest)
        raise Trimmed(message, earliest=problem.earliest) if error is Trimmed else error(message)

    def _destination(self, headers: httpx.Headers) -> str:
        """Say where a redirection leads, without what may be secret in it."""
        try:
            target = self._url.join(headers.get("location", ""))
            return f" to {target.copy_with(userinfo=b'', query=None, fragment=None)}"
        except (httpx.InvalidURL, ValueError):
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


def rfc3339(moment: datetime) -> str:
    """Write a moment for a request, in UTC.

    Raises:
        ConfigurationError: it has no time zone, or lies outside of what UTC holds.
    """
    if moment.tzinfo is None:
        raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise ConfigurationError("A moment lies in the years 1 to 9999, in UTC as well.") from None


def _decimal(seconds: float) -> str:
    """Write a time to wait in digits, without an exponent.

    Raises:
        ConfigurationError: nobody can wait for so long.
    """
    if not 0 <= seconds < _FOR_EVER:
        raise ConfigurationError(f"A feed is asked to wait for 0 to {_FOR_EVER - 1:,} seconds.")
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _longer(patience: httpx.Timeout, seconds: float) -> httpx.Timeout:
    """Wait longer for an answer that was asked to come late."""
    limits = patience.as_dict()
    read = limits["read"]
    return httpx.Timeout(**{**limits, "read": None if read is None else read + seconds})


def _problem(body: bytes) -> _Problem:
    """Read a problem document (RFC 9457); an empty one if the body is something else."""
    try:
        document = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Problem()
    kind, detail = document.get("type"), document.get("detail")
    if not isinstance(kind, str):
        return _Problem()
    earliest = document.get("earliestCursor")
    return _Problem(
        kind.rpartition("/")[2],
        detail if isinstance(detail, str) else "",
        earliest if isinstance(earliest, str) and earliest else None,
    )


def _seconds(retry_after: str) -> float | None:
    """Read a Retry-After header in seconds; None where it is absent or says nothing."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())
