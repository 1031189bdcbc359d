"""Build requests to a feed and read its responses, without I/O; say when to send one again."""

import logging
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import random
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlencode

import httpx

from zeroeventhub.client.connection_pool import ILLEGAL_HEADER, ConnectionPool
from zeroeventhub.client.exchange import Exchange
from zeroeventhub.client.redaction import Redaction, feed_url, safe_text, without_secrets
from zeroeventhub.errors import (
    BadRequest,
    ConfigurationError,
    CutPage,
    NotFound,
    ProtocolError,
    StorageFull,
    TokenChanged,
    TooManyRequests,
    TransientError,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
    printable,
    require,
)
from zeroeventhub.extensions import APPEND, ARROW, EXTENSIONS, PARTITION, STOP, WAIT
from zeroeventhub.protocol import Appended, FeedInfo, Page, TypeFilter
from zeroeventhub.settings import Limits
from zeroeventhub.wire import ARROW_TYPE, NDJSON_TYPE
from zeroeventhub.wire.documents import decode_answer, decode_info
from zeroeventhub.wire.ndjson import PageBounds, PageDecoder
from zeroeventhub.wire.problem import Problem, error_of, problem_in, seconds_in

_LONGEST_WAIT = 999_999
"""Seconds that a feed may be asked to wait, at most."""

UNREACHED = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, UnicodeError)
"""The exceptions of an exchange without a response, or with a partial one; or of a hook of the
caller's that raises for a refusal."""

_UNAVAILABLE: Mapping[int, type[Unavailable]] = {429: TooManyRequests, 507: StorageFull}

_V1_STATUSES = {400, 422}
"""How a v1 feed may answer a request without parameters (FeedAPI v2, Protocol negotiation)."""

Compressed: TypeAlias = bool | Literal["gzip", "zstd"]
_CODINGS: dict[Compressed, str] = {
    False: "identity",
    True: "gzip",
    "gzip": "gzip",
    "zstd": "zstd, gzip;q=0.5",
}

_LATER = {408, 425, 429}
"""The statuses by which a server asks to be asked later, beside those of its own failures."""

_PLAIN_TYPES = {"text/plain", "application/json"}
"""The media types of published peers' refusals, which are no problem documents."""

_LONGEST_TEXT = 300
"""The most characters of such a refusal that an error repeats."""

_LIMITS = Limits()

_log = logging.getLogger("zeroeventhub.client")

_Answer = TypeVar("_Answer")
_Http = TypeVar("_Http", "httpx.Client | ConnectionPool", httpx.AsyncClient)


def may_pass(status: int) -> bool:
    """Return whether a server that refuses a request with a status may answer it later."""
    return status in _LATER or status >= httpx.codes.INTERNAL_SERVER_ERROR


class RequestBuilder(Generic[_Http]):
    """Hold a feed's address and protocol; `Client` documents the arguments.

    Raises:
        ConfigurationError: the URL or the compression is invalid, or the httpx client is of the
            other kind.
        MissingExtra: zstd needs zstandard, of the extra "zstd".
    """

    _http_types: ClassVar[tuple[type[Any], ...]]
    _open_http: ClassVar[Any]
    _send: Callable[..., Awaitable[Exchange]]
    """Sends a request, and reads its response."""
    _pause: Callable[[float], Awaitable[None]]
    """Waits before a request is sent again."""

    def __init__(
        self,
        url: httpx.URL | str,
        http: _Http | None = None,
        *,
        partitions: int | None = None,
        limits: Limits = _LIMITS,
        compressed: Compressed = False,
    ) -> None:
        self._opened_by = os.getpid() if http is None else None
        http = self._open_http() if http is None else http
        if not isinstance(http, self._http_types):
            raise ConfigurationError(
                f"{type(self).__name__} needs an httpx.{self._http_types[0].__name__}, not a "
                f"{type(http).__name__}."
            )
        self._http: _Http = http
        self.sends_ahead = isinstance(http, ConnectionPool)
        """Whether `Client.begin_fetch` can be used: httpx reads at once what it has requested."""
        given = feed_url(url)
        self._redaction = Redaction(given, http)
        self._url = given.copy_with(userinfo=b"", fragment=None)
        # As text: httpx takes as long to parse a URL as to send a request.
        self._address_v1 = str(self._url.copy_with(query=None))
        self._root = self._address_v1.rstrip("/")
        self._own_parameters: list[tuple[str, str | int]] = [*self._url.params.multi_items()]
        self._limits = limits
        self._bounds = PageBounds(limits.page_bytes, limits.page_events, limits.line_bytes)
        if compressed not in _CODINGS:
            raise ConfigurationError('compressed is True, False, "gzip" or "zstd".')
        if compressed == "zstd":
            require("zstandard", extra="zstd", user="A client that asks for zstd")
        self._headers = {"Accept-Encoding": _CODINGS[compressed]}
        has_own = getattr(http, "auth", None) is not None or "Authorization" in http.headers
        if given.userinfo and not has_own:
            # Separate from the address, because httpx logs the URLs of its requests.
            user = b64encode(f"{given.username}:{given.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {user}"
        self._v1: FeedInfo | None = None
        if partitions is not None:
            # Whether a v1 feed repeats events is in its documentation, not on the wire.
            listed = FeedInfo.of(partitions).partitions
            self._v1 = FeedInfo(listed, token=None, exactly_once=False)
        self._info: FeedInfo | None = None

    def __repr__(self) -> str:
        """Show the feed's URL without secrets."""
        return f"{type(self).__name__}({self.address!r})"

    @property
    def address(self) -> str:
        """The feed's URL without secrets."""
        return without_secrets(self._url)

    @property
    def http(self) -> _Http:
        """Return what sends the requests."""
        return self._http

    async def _discover(self) -> FeedInfo:
        return self._read_info(await self._send(self._request(str(self._url))))

    async def _answer(self, name: str, *values: Any, content: bytes | None = None) -> Any:
        """Request what an extension answers, by the values of its parameters in their order."""
        info = self._info or await self._discover()
        request = self._extension_request(info, name, *values, content=content)
        body = self._read_body(await self._send(request))
        return None if EXTENSIONS[name].verb == "PUT" else decode_answer(EXTENSIONS[name], body)

    async def _send_events(
        self, lines: Sequence[bytes], producer: str | None, sequence: int | None
    ) -> list[Appended]:
        """Send a batch of encoded events once; `Client.append` sends it until it is answered."""
        appended: list[Appended]
        appended = await self._answer(APPEND, producer, sequence, content=b"".join(lines))
        if len(appended) != len(lines):
            raise ProtocolError("The answer to an append is of another number of events.")
        return appended

    def _request(self, url: str, method: str = "GET", content: bytes | None = None) -> Exchange:
        """Build a request for a response other than a page."""
        headers = {**self._headers}
        if content is not None:
            headers["Content-Type"] = NDJSON_TYPE
        timeout, limits = self._http.timeout, self._limits
        return Exchange(url, headers, timeout, limits, method=method, content=content)

    def _page_request(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        *,
        limit: int | None,
        types: TypeFilter | None,
        stop: str | None = None,
        wait: float | None = None,
        headers: Sequence[str] = (),
        as_arrow: bool = False,
        data_type: Any = None,
    ) -> Exchange:
        """Build a request for a page; as Arrow, if the feed has the extension "arrow"."""
        if as_arrow:
            require("pyarrow", extra="arrow", user="Client.fetch_arrow")
        parameters: dict[str, str | int] = {} if limit is None else {"pagesizehint": limit}
        if stop is not None:  # no feed of ZeroEventHub v1 stops
            self._expect_extension(info, STOP)
            parameters["stop"] = stop
        waits, timeout = 0.0, self._http.timeout
        if info.token is None:
            if types is not None:
                raise ConfigurationError("A feed of ZeroEventHub v1 does not filter by types.")
            parameters |= {"n": len(info.partitions), f"cursor{partition}": cursor}
            if headers:
                parameters["headers"] = headers if isinstance(headers, str) else ",".join(headers)
            url = self._with_parameters(self._address_v1, parameters)
        else:
            if types is not None:
                name = "skip-event-types" if types.skip else "event-types"
                parameters[name] = ";".join(sorted(types.given))
            if wait and WAIT in info.extensions:
                parameters["wait"] = _decimal(wait)
                waits, timeout = wait, _extend(timeout, wait)
            parameters["cursor"] = cursor
            place: dict[str, str | int] = {"token": info.token, "partition": partition}
            url = self._with_parameters(f"{self._root}/events", place | parameters)
        arrow_page, accepted = None, NDJSON_TYPE
        if as_arrow and info.token is not None and ARROW in info.extensions:
            from zeroeventhub.wire.arrow import ArrowDecoder  # noqa: PLC0415 - an extra's

            # Another process of the same feed may only serve lines.
            accepted = f"{ARROW_TYPE}, {NDJSON_TYPE};q=0.5"
            arrow_page = ArrowDecoder(partition, self._bounds)
        return Exchange(
            url,
            {**self._headers, "Accept": accepted},
            timeout,
            self._limits,
            wait=waits,
            page=PageDecoder(partition, self._bounds, data_type=data_type),
            arrow_page=arrow_page,
        )

    def _extension_request(
        self, info: FeedInfo, name: str, *values: Any, content: bytes | None = None
    ) -> Exchange:
        """Build a request to an extension; a parameter whose value is None is left out.

        Raises:
            ConfigurationError: the feed does not have it, or a moment has no time zone.
        """
        self._expect_extension(info, name)
        extension = EXTENSIONS[name]
        given: dict[str, Any] = {}
        for parameter, value in zip(extension.parameters, values, strict=True):
            if parameter is PARTITION:
                given = {"token": str(info.token), "partition": value, **given}
            elif value is not None:
                given[parameter.name] = _rfc3339(value) if parameter.kind == "moment" else value
        url = self._with_parameters(f"{self._root}/{extension.path}", given)
        return self._request(url, extension.verb, content)

    def _with_parameters(self, address: str, parameters: Mapping[str, str | int]) -> str:
        """Add parameters to an address; they take precedence over those of the feed's URL."""
        pairs: list[tuple[str, str | int]] = [*parameters.items()]
        if self._own_parameters:
            pairs = [pair for pair in self._own_parameters if pair[0] not in parameters] + pairs
        return f"{address}?{urlencode(pairs)}"

    def _expect_extension(self, info: FeedInfo, extension: str) -> None:
        if extension not in info.extensions:
            raise ConfigurationError(
                f"{self.address} does not have the extension {extension}: its discovery document "
                "does not name it."
            )

    def _read_body(self, answer: Exchange) -> bytes:
        """Return the body of a successful response, or raise the error of another."""
        if answer.is_refusal:
            self._raise_refusal(answer)
        if not answer.is_whole:
            raise Unreachable(f"{self.address} broke off in the middle of its answer.")
        return answer.body

    def _read_page(self, answer: Exchange) -> Page:
        """Return the page of a successful response, up to its last checkpoint."""
        if answer.is_refusal:
            self._raise_refusal(answer, is_page=True)
        decoder: Any = answer.decoder
        try:
            page: Page = decoder.page(is_whole=answer.broken is None)
        except CutPage as error:
            raise answer.broken or error from None
        return page

    def _read_info(self, answer: Exchange) -> FeedInfo:
        """Read the response to a discovery request."""
        if answer.status in _V1_STATUSES and self._v1 is not None:
            self._info = self._v1
            return self._info
        if answer.status in _V1_STATUSES and not problem_in(answer.body).kind:
            raise ConfigurationError(
                f"{self.address} does not answer discovery ({answer.status}); if it is a feed of "
                "ZeroEventHub v1, set `partitions` to how many partitions it has."
            )
        if answer.status == httpx.codes.BAD_REQUEST and self._root.endswith("/events"):
            raise ConfigurationError(
                f"{self.address} has the pages of a feed: give the feed's address, without /events."
            )
        body = self._read_body(answer)
        try:
            self._info = decode_info(body)
        except ProtocolError as error:
            raise ProtocolError(f"{self.address} is not a feed. {error}") from error
        return self._info

    def _raise_refusal(self, answer: Exchange, *, is_page: bool = False) -> NoReturn:
        """Raise the error that a response other than a success stands for."""
        problem = problem_in(answer.body)
        detail = self._redaction.text(problem.detail)
        error = self._refusal(answer, problem, detail)
        if is_page and type(error) is BadRequest and not self._is_listed(answer.url):
            # Another user of this client has discovered partitions that the caller does not know.
            error = TokenChanged(str(error))
        error.shown = detail or "The feed that this one reads has refused it."
        raise error

    def _is_listed(self, url: str) -> bool:
        """Return whether a request is for a partition that the feed has listed last."""
        sent, info = httpx.URL(url).params, self._info
        if info is None or info.token is None:
            return True
        numbers = {str(partition.id) for partition in info.partitions}
        return sent["token"] == info.token and sent["partition"] in numbers

    def _refusal(self, answer: Exchange, problem: Problem, message: str) -> ZeroEventHubError:
        status, headers = answer.status, answer.answer_headers
        if status == httpx.codes.OK:
            return Unavailable(f"{self.address} answered with a web page in place of events.")
        if not message:
            message = f"{self.address} answered with status {status}."
            text = answer.body.decode(errors="replace").strip()
            if text and answer.media_type in _PLAIN_TYPES:
                text = printable(self._redaction.text(text), longest=_LONGEST_TEXT)
                message = f"{self.address} answered with status {status}: {text}"
        if may_pass(status):
            unavailable = _UNAVAILABLE.get(status, Unavailable)
            error = unavailable(message, retry_after=seconds_in(headers.get("retry-after", "")))
            if problem.kind == "failed":  # which has no class of its own
                error.status, error.problem = status, problem.kind
            return error
        if 300 <= status < 400 and "location" in headers:  # noqa: PLR2004 - of redirections
            return NotFound(
                f"{self.address} has moved{self._destination(headers)}; "
                "redirections are not followed: give the feed's own address."
            )
        if status == httpx.codes.NOT_FOUND and not problem.detail:
            message = f"There is no feed at {self.address}."
        return error_of(problem, status, message)

    def _destination(self, headers: httpx.Headers) -> str:
        """Name the target of a redirection, without secrets."""
        try:
            target = self._url.join(headers.get("location", ""))
            return f" to {self._redaction.text(without_secrets(target))}"
        except (httpx.InvalidURL, ValueError):
            return ""

    def _convert_error(self, request: Exchange, error: BaseException) -> None:
        """Convert an exception of httpx, whose text may hold the URL and its secrets.

        A page that broke off counts up to its last checkpoint, if it has one. A refusal for which
        a hook has raised is read as any other; its body, as far as the hook has read it.
        """
        is_unsent = isinstance(error, httpx.LocalProtocolError)
        is_illegal = is_unsent and str(error).startswith(ILLEGAL_HEADER)
        if is_illegal or isinstance(error, httpx.InvalidURL | UnicodeError):
            raise ConfigurationError(
                f"{self.address} cannot be requested: its address or a header is not of HTTP's "
                "form."
            ) from None
        if request.deadline.left <= 0:
            reason = request.deadline.reason
        elif isinstance(error, httpx.HTTPStatusError):
            request.begin(error.response)
            with suppress(httpx.ResponseNotRead):
                request.take(error.response.content)
            return
        else:
            reason = self._redaction.text(safe_text(error))
        if not request.is_in_page:
            raise Unreachable(f"{self.address} cannot be reached: {reason}.") from None
        request.broken = CutPage(
            f"The connection to {self.address} broke in the middle of a page: {reason}."
        )


def _extend(timeout: httpx.Timeout, seconds: float) -> httpx.Timeout:
    """Extend a timeout by the seconds that the feed may wait."""
    read = None if timeout.read is None else timeout.read + seconds
    return httpx.Timeout(**{**timeout.as_dict(), "read": read})


def _rfc3339(moment: datetime) -> str:
    """Write a moment for a request, in UTC.

    Raises:
        ConfigurationError: it has no time zone, or is not in the years 1 to 9999 of UTC.
    """
    if getattr(moment, "tzinfo", None) is None:  # a date or a text has none
        raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
    try:
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise ConfigurationError("A moment lies in the years 1 to 9999, in UTC as well.") from None


def _decimal(seconds: float) -> str:
    """Write seconds to wait as digits, without an exponent."""
    if not 0 <= seconds < _LONGEST_WAIT + 1:
        raise ConfigurationError(f"A feed may be asked to wait for 0 to {_LONGEST_WAIT:,} seconds.")
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0


def backoff(attempt: int, error: Exception) -> float:
    """Choose a pause in seconds: exponential with full jitter, and at least what the feed asked."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(attempt, 16))
    asked = error.retry_after if isinstance(error, TransientError) else None
    return max(random() * ceiling, min(asked or 0.0, LONGEST_BACKOFF))  # noqa: S311 - jitter


async def send_until_answered(
    send: Callable[[], Awaitable[_Answer]],
    pause: Callable[[float], Awaitable[object]],
    attempts: int | None,
) -> _Answer:
    """Send a request until it is answered; None attempts are no limit.

    Raises:
        TransientError: the last attempt ended in it.
    """
    failed = 0
    while True:
        try:
            return await send()
        except TransientError as error:
            failed += 1
            if attempts is not None and failed >= attempts:
                raise
            seconds = backoff(failed, error)
            # Its text alone: the error refers to frames, which a handler may keep for long.
            _log.warning("%s Trying again in %.1f s.", str(error), seconds)
        await pause(seconds)
