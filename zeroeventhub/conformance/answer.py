"""Ask a publisher, byte by byte: raw requests, and answers as they came."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

import httpx

from zeroeventhub.conformance.finding import Finding, Outcome, skip
from zeroeventhub.errors import ConfigurationError

__all__ = ["Answer", "Parameters", "Probe"]

Parameters = Sequence[tuple[str, str | bytes]]

PATIENCE = 20.0
LARGEST_BODY = 64 * 2**20
LONGEST_RETRY = 5.0
TRIES = 3

_OK = 200
_REFUSED = 400
_LATER = {429, 503}
_OVER = "The time for all checks is over."


@dataclass(frozen=True)
class Answer:
    """Hold a request and what came back.

    Attributes:
        method: the request's method.
        target: its path and query, without what may be secret in the feed's own address.
        status: the answer's status.
        headers: its headers.
        body: its bytes, never decompressed.
        seconds: how long it took to the last byte.
    """

    method: str
    target: str
    status: int
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    body: bytes = b""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Tell whether the status is 200."""
        return self.status == _OK

    @property
    def media_type(self) -> str:
        """Return the media type without its parameters, in lower case."""
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()

    @property
    def cache_control(self) -> dict[str, str]:
        """Return the directives of Cache-Control, in lower case."""
        header: str = self.headers.get("cache-control", "")
        pairs = (part.strip().lower().partition("=") for part in header.split(","))
        return {name: value.strip('"') for name, _, value in pairs if name}

    @property
    def may_be_kept(self) -> bool:
        """Tell whether a cache may give the answer to somebody else later without asking."""
        control = self.cache_control
        if "no-store" in control or "no-cache" in control:
            return False
        age = control.get("s-maxage") or control.get("max-age") or "0"
        return "immutable" in control or (age.isdigit() and int(age) > 0)


class Probe:
    """Send requests below a feed's address.

    Args:
        url: the feed's address.
        http: a client with the headers that the publisher wants to see.

    Attributes:
        end: when the time for all checks is over, on the monotonic clock.
        last: the last answer.
        refusals: all answers of status 400 and above.

    Raises:
        ConfigurationError: the address is not one.
    """

    def __init__(self, url: str, http: httpx.Client) -> None:
        try:
            self._url = httpx.URL(url)
        except (httpx.InvalidURL, UnicodeError):
            raise ConfigurationError("This is not a URL.") from None
        if self._url.scheme not in {"http", "https"} or not self._url.host:
            raise ConfigurationError("A feed's URL starts with http:// or https://.")
        self._http = http
        self.end = math.inf
        self.last: Answer | None = None
        self.refusals: list[Answer] = []

    @property
    def address(self) -> str:
        """The feed's address without what may be secret in it."""
        return str(self._url.copy_with(userinfo=b"", query=None, fragment=None))

    def ask(
        self,
        suffix: str = "",
        parameters: Parameters = (),
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> Answer:
        """Send a request, and return the whole answer; one that says "later" is asked again.

        Args:
            suffix: what to add to the feed's path, such as "/events".
            parameters: the query, in order; bytes are sent as they are, percent-encoded.
            method: GET or HEAD.
            headers: headers of this request.
            patience: seconds that the answer may take.

        Raises:
            Finding: there was no whole answer.
        """
        for attempt in range(1, TRIES + 1):
            answer = self._ask_once(suffix, parameters, method, headers or {}, patience)
            if answer.status not in _LATER or attempt == TRIES:
                break
            wanted = answer.headers.get("retry-after", "")
            time.sleep(min(float(wanted) if wanted.isdigit() else 1.0, LONGEST_RETRY))
        self.last = answer
        if answer.status >= _REFUSED:
            self.refusals.append(answer)
        return answer

    def _ask_once(
        self,
        suffix: str,
        parameters: Parameters,
        method: str,
        headers: Mapping[str, str],
        patience: float,
    ) -> Answer:
        path, _, own = self._url.raw_path.partition(b"?")
        query = urlencode(parameters, quote_via=quote, safe=":;").encode()
        path = (path.rstrip(b"/") if suffix else path) + suffix.encode()
        url = self._url.copy_with(raw_path=b"?".join((path, b"&".join(filter(None, (own, query))))))
        shown = path.decode("ascii") + ("?" if own or query else "") + ("…&" if own else "")
        asked = Answer(method, shown + query.decode(), 0)
        began = time.monotonic()
        patience = min(patience, self.end - began)
        if patience <= 0:
            skip(_OVER, asked)
        sent = {"Accept-Encoding": "identity", **headers}
        body = b""
        try:
            with self._http.stream(
                method, url, headers=sent, follow_redirects=False, timeout=patience
            ) as response:
                asked = Answer(method, asked.target, response.status_code, response.headers)
                parts = []
                size = 0
                for chunk in response.iter_raw():
                    parts.append(chunk)
                    size += len(chunk)
                    if size > LARGEST_BODY or time.monotonic() - began > patience:
                        body = b"".join(parts)
                        reason = f"The answer did not end within {patience:g} s and 64 MiB."
                        raise Finding(Outcome.FAIL, reason, asked, fault="no whole answer")
                body = b"".join(parts)
        except httpx.RequestError as error:
            if time.monotonic() >= self.end:
                skip(_OVER, asked)
            # The exception's own text may hold the URL with its secrets.
            reason = f"There was no whole answer: {type(error).__name__}."
            raise Finding(Outcome.FAIL, reason, asked, fault="no whole answer") from None
        return Answer(
            method,
            asked.target,
            asked.status,
            asked.headers,
            body,
            time.monotonic() - began,
        )
