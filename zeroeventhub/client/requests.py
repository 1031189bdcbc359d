"""Build requests to a feed, and read its responses, without I/O.

The sync and the async client share this code; they only send and wait.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

import httpx

from zeroeventhub.client.exchange import Exchange
from zeroeventhub.client.redaction import Redaction, bare
from zeroeventhub.errors import (
    ConfigurationError,
    CutPage,
    NotFound,
    ProtocolError,
    TooManyRequests,
    Unavailable,
    Unreachable,
    require,
)
from zeroeventhub.protocol import (
    ARROW,
    EXTENSIONS,
    KEY_HISTORY,
    PARTITION,
    STOP,
    WAIT,
    FeedInfo,
    Page,
    TypeFilter,
)
from zeroeventhub.settings import Limits
from zeroeventhub.wire import ARROW_TYPE, NDJSON_TYPE
from zeroeventhub.wire.documents import decode_answer, decode_info
from zeroeventhub.wire.ndjson import PageDecoder
from zeroeventhub.wire.problem import error_of, problem_in, seconds_in

if TYPE_CHECKING:
    from zeroeventhub.wire.arrow import ArrowPage

__all__ = ["UNREACHED", "RequestBuilder", "decimal", "longer", "rfc3339"]

_FOR_EVER = 1_000_000


def rfc3339(moment: datetime) -> str:
    """Write a moment for a request, in UTC.

    Raises:
        ConfigurationError: it has no time zone, or is not in the years 1 to 9999 of UTC.
    """
    if moment.tzinfo is None:
        raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise ConfigurationError("A moment lies in the years 1 to 9999, in UTC as well.") from None


def decimal(seconds: float) -> str:
    """Write a time to wait in digits, without an exponent.

    Raises:
        ConfigurationError: that is longer than can be waited for.
    """
    if not 0 <= seconds < _FOR_EVER:
        raise ConfigurationError(f"A feed is asked to wait for 0 to {_FOR_EVER - 1:,} seconds.")
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def longer(timeout: httpx.Timeout, seconds: float) -> httpx.Timeout:
    """Extend a timeout by the seconds that the feed may wait."""
    limits = timeout.as_dict()
    read = limits["read"]
    return httpx.Timeout(**{**limits, "read": None if read is None else read + seconds})


UNREACHED = (httpx.RequestError, httpx.InvalidURL, TimeoutError, UnicodeError)
"""The exceptions of an exchange without a response, or with a partial one."""

_V1_ANSWERS = {400, 422}
"""What a v1 feed answers to a request without parameters (FeedAPI v2, Protocol negotiation)."""


Compressed: TypeAlias = bool | Literal["gzip", "zstd"]
_CODINGS: dict[Compressed, str] = {
    False: "identity",
    True: "gzip",
    "gzip": "gzip",
    "zstd": "zstd, gzip;q=0.5",
}

_LIMITS = Limits()

_Http = TypeVar("_Http", httpx.Client, httpx.AsyncClient)


class RequestBuilder(Generic[_Http]):
    """Know a feed's address and protocol.

    Args:
        url: the feed's address, the one that answers discovery.
        http: the caller's httpx client.
        partitions: how many partitions a v1 feed has, which it does not tell itself.
        limits: how much is taken from the feed.
        compressed: whether to ask for answers in gzip, or in which of "gzip" and "zstd"; they are
            unpacked within the limits.

    Raises:
        ConfigurationError: the URL or the compression is none, or the httpx client is of the
            other kind.
        MissingExtra: zstd needs zstandard, of the extra "zstd".
    """

    _http_type: ClassVar[type[httpx.Client | httpx.AsyncClient]]

    def __init__(
        self,
        url: httpx.URL | str,
        http: _Http,
        *,
        partitions: int | None = None,
        limits: Limits = _LIMITS,
        compressed: Compressed = False,
    ) -> None:
        if not isinstance(http, self._http_type):
            raise ConfigurationError(
                f"{type(self).__name__} reads by an httpx.{self._http_type.__name__}, not by a "
                f"{type(http).__name__}."
            )
        self._http: _Http = http
        try:
            given = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigurationError("This is not a URL.") from None
        if given.scheme not in {"http", "https"} or not given.host:
            # What was given is not repeated: without a scheme, a password is anywhere in it.
            raise ConfigurationError("This is no feed's URL: it starts with http:// or https://.")
        self._redaction = Redaction(given, http)
        # Held apart from the address, because httpx logs the URLs of its requests.
        # The caller's own authentication goes before what stands in the URL, as it does in httpx.
        self._own_auth: Any = httpx.USE_CLIENT_DEFAULT
        if given.userinfo:
            self._own_auth = httpx.BasicAuth(given.username, given.password)
        self._url = given.copy_with(userinfo=b"", fragment=None)
        self._limits = limits
        self._coding = _coding(compressed)
        self._v1 = None if partitions is None else _v1_info(partitions)
        self._info: FeedInfo | None = None

    def __repr__(self) -> str:
        """Show the feed's URL without what may be secret in it."""
        return f"{type(self).__name__}({self._address!r})"

    @property
    def _address(self) -> str:
        """The feed's URL without what may be secret in it."""
        return bare(self._url)

    def _arrow_request(self, *arguments: Any, **options: Any) -> Exchange:
        """Make a request for a page, as Arrow if the feed has the extension "arrow".

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        require("pyarrow", extra="arrow", user="Client.fetch_arrow")
        return self._page_request(*arguments, headers=(), as_arrow=True, **options)

    def _request(self, url: httpx.URL, method: str = "GET") -> Exchange:
        """Make a request for an answer that is no page."""
        headers = {"Accept-Encoding": self._coding}
        return Exchange(url, headers, self._http.timeout, self._limits, method=method)

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
        as_arrow: bool = False,
        data_type: Any = None,
    ) -> Exchange:
        """Make a request for a page."""
        parameters: dict[str, str | int] = {} if limit is None else {"pagesizehint": limit}
        waits = 0.0
        if info.token is None:
            if types is not None:
                raise ConfigurationError("A feed of ZeroEventHub v1 does not filter by types.")
            if stop:
                self._expect_extension(info, STOP)
            parameters |= {"n": len(info.partitions), f"cursor{partition}": cursor}
            if headers:
                parameters["headers"] = ",".join(headers)
            url = self._url.copy_merge_params(parameters)
        else:
            if types is not None:
                name = "skip-event-types" if types.skip else "event-types"
                parameters[name] = ";".join(sorted(types.names))
            if stop is not None:
                self._expect_extension(info, STOP)
                parameters["stop"] = stop
            if wait and WAIT in info.extensions:
                waits = wait
                parameters["wait"] = decimal(wait)
            parameters["cursor"] = cursor
            place: dict[str, str | int] = {"token": info.token, "partition": partition}
            url = self._url_below("events", place | parameters)
        limits, arrow_page, accepted = self._limits, None, NDJSON_TYPE
        bounds = {
            "page_bytes": limits.page_bytes,
            "page_events": limits.page_events,
            "line_bytes": limits.line_bytes,
        }
        if as_arrow and info.token is not None and ARROW in info.extensions:
            from zeroeventhub.wire.arrow import ArrowDecoder  # noqa: PLC0415 - an extra's

            # Another process of the same feed may have lines only.
            accepted = f"{ARROW_TYPE}, {NDJSON_TYPE};q=0.5"
            arrow_page = ArrowDecoder(partition, **bounds)
        return Exchange(
            url,
            {"Accept-Encoding": self._coding, "Accept": accepted},
            longer(self._http.timeout, waits) if waits else self._http.timeout,
            limits,
            wait=waits,
            page=PageDecoder(partition, **bounds, data_type=data_type),
            arrow_page=arrow_page,
        )

    def _extension_request(self, info: FeedInfo, name: str, *values: Any) -> Exchange:
        """Make a request for what a feed has beside its events.

        Args:
            info: what the feed says of itself.
            name: of the extension.
            values: of its parameters, in their order; those that are None are left out.

        Raises:
            ConfigurationError: the feed does not have it, or a moment has no zone.
        """
        self._expect_extension(info, name)
        extension = EXTENSIONS[name]
        given: dict[str, Any] = {}
        for parameter, value in zip(extension.parameters, values, strict=True):
            if parameter is PARTITION:
                given = {"token": str(info.token), "partition": value, **given}
            elif value is not None:
                given[parameter.name] = rfc3339(value) if parameter.kind == "moment" else value
        url = self._url_below(extension.path, given)
        return self._request(url, "PUT" if extension.is_put else "GET")

    def _key_request(
        self, info: FeedInfo, key: str, after_version: int, limit: int | None
    ) -> Exchange:
        """Make a request for the events of a key.

        Raises:
            ConfigurationError: the feed does not have the extension, or no version is below 0.
        """
        request = self._extension_request(info, KEY_HISTORY, key, after_version, limit)
        if after_version < 0:
            raise ConfigurationError("Versions are numbers from 1 on, and 0 is before all of them.")
        return request

    def _read_answer(self, name: str, answer: Exchange) -> Any:
        """Read the answer of an extension; that of a PUT says nothing new."""
        body = self._read_body(answer)
        return None if EXTENSIONS[name].is_put else decode_answer(EXTENSIONS[name], body)

    def _url_below(self, name: str, parameters: Mapping[str, str | int]) -> httpx.URL:
        path = self._url.raw_path.partition(b"?")[0].rstrip(b"/")
        query = self._url.params.merge(parameters)
        return self._url.copy_with(raw_path=path + f"/{name}?{query}".encode())

    def _expect_extension(self, info: FeedInfo, extension: str) -> None:
        if extension not in info.extensions:
            raise ConfigurationError(
                f"{self._address} does not have the extension {extension}: its discovery document "
                "does not name it."
            )

    def _read_body(self, answer: Exchange) -> bytes:
        """Return the body of an answer that is a success."""
        if answer.status != httpx.codes.OK:
            self._refuse(answer)
        return self._whole(answer)

    def _read_page(self, answer: Exchange) -> Page:
        """Return the page of an answer that is a success."""
        if answer.is_refusal:
            self._refuse_page(answer)
        return answer.page()

    def _read_arrow_page(self, answer: Exchange) -> "ArrowPage":
        """Return the page of an answer that is a success, in columns however it came."""
        if answer.is_refusal:
            self._refuse_page(answer)
        page = answer.arrow_page()
        return _arrow_page_of(answer.page()) if page is None else page

    def _refuse_page(self, answer: Exchange) -> NoReturn:
        """Raise the error that an answer stands for which is no page."""
        if answer.status == httpx.codes.OK:
            raise Unavailable(f"{self._address} answered with a web page in place of events.")
        self._refuse(answer)

    def _read_info(self, answer: Exchange) -> FeedInfo:
        """Read the answer to a discovery request."""
        if answer.status in _V1_ANSWERS and self._v1 is not None:
            self._info = self._v1
        elif answer.status in _V1_ANSWERS and not problem_in(answer.body).kind:
            raise ConfigurationError(
                f"{self._address} does not answer discovery ({answer.status}); if it is a feed of "
                "ZeroEventHub v1, say how many partitions it has."
            )
        elif answer.status != httpx.codes.OK:
            self._refuse(answer)
        else:
            try:
                self._info = decode_info(self._whole(answer))
            except ProtocolError as error:
                raise ProtocolError(f"{self._address} is not a feed. {error}") from error
        return self._info

    def _whole(self, answer: Exchange) -> bytes:
        """Return a body that was not cut."""
        if not answer.is_whole:
            raise Unreachable(f"{self._address} broke off in the middle of its answer.")
        return answer.body

    def _refuse(self, answer: Exchange) -> NoReturn:
        """Raise the error that an answer other than a success stands for."""
        status, headers, problem = answer.status, answer.answer_headers, problem_in(answer.body)
        message = self._redaction.text(problem.detail)
        message = message or f"{self._address} answered with status {status}."
        if status in {408, 425, 429} or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            greedy = status == httpx.codes.TOO_MANY_REQUESTS
            unavailable = TooManyRequests if greedy else Unavailable
            raise unavailable(message, retry_after=seconds_in(headers.get("retry-after", "")))
        if 300 <= status < 400:  # noqa: PLR2004 - the class of redirections
            raise NotFound(
                f"{self._address} has moved{self._destination(headers)}; "
                "redirections are not followed: give the feed's own address."
            )
        if status == httpx.codes.NOT_FOUND and not problem.detail:
            message = f"There is no feed at {self._address}."
        raise error_of(problem, status, message)

    def _destination(self, headers: httpx.Headers) -> str:
        """Say where a redirection leads, without what may be secret in it."""
        try:
            target = self._url.join(headers.get("location", ""))
            return f" to {self._redaction.text(bare(target))}"
        except (httpx.InvalidURL, ValueError):
            return ""

    def _break_off(self, request: Exchange, error: Exception) -> None:
        """Turn httpx's exceptions into ours; theirs carry the URL with its secrets.

        A page that broke off stands up to its last checkpoint, if it has one.
        """
        if isinstance(error, httpx.InvalidURL | UnicodeError):
            raise ConfigurationError(
                f"{self._address} cannot be asked: its address or a header is not of HTTP's form."
            ) from None
        failure = self._failure(request, error)
        if not request.is_in_page:
            raise failure from None
        request.broken = failure

    def _failure(self, request: Exchange, error: Exception) -> CutPage | Unreachable:
        """Say why there is no answer, or no whole one."""
        if request.deadline.left <= 0:
            reason = request.deadline.reason
        else:
            # Only these say where it failed and nothing of what was sent.
            speaks = isinstance(error, httpx.NetworkError | httpx.TimeoutException | TimeoutError)
            reason = (speaks and self._redaction.text(str(error))) or type(error).__name__
        if request.is_in_page:
            return CutPage(
                f"The connection to {self._address} broke in the middle of a page: {reason}"
            )
        return Unreachable(f"{self._address} cannot be reached: {reason}")


def _coding(compressed: Compressed) -> str:
    """Say which coding of answers is asked for."""
    if compressed not in _CODINGS:
        raise ConfigurationError('A client asks for compressed answers by "zstd" or "gzip".')
    if compressed == "zstd":
        require("zstandard", extra="zstd", user="A client that asks for zstd")
    return _CODINGS[compressed]


def _arrow_page_of(page: Page) -> "ArrowPage":
    from zeroeventhub.wire.arrow import ArrowPage  # noqa: PLC0415 - of another extra

    return ArrowPage.of(page)


def _v1_info(partitions: int) -> FeedInfo:
    info = FeedInfo.of(partitions)
    # Whether a v1 feed repeats events is in its documentation, not on the wire.
    return FeedInfo(info.partitions, token=None, exactly_once=False)
