"""An answer as the checks see it, and the lines of its page."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from zeroeventhub.conformance.finding import Finding, Outcome, skip
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAST

__all__ = [
    "Answer",
    "PageText",
    "Parameters",
    "Probe",
    "SentEvent",
]

LONGEST_LINE = 65_535
"""Bytes of a line that every known client reads, without the newline."""

LONGEST_CURSOR = 4096


@dataclass(frozen=True)
class SentEvent:
    """Hold an event as it was sent.

    Attributes:
        data: its data, decoded; numbers are exact.
        identity: the same for the same data, whatever white space it has.
        headers: its headers (v1 only).
    """

    data: Any
    identity: str
    headers: dict[str, Any] | None = None


@dataclass(frozen=True)
class Mark:
    """Hold a checkpoint.

    Attributes:
        cursor: where it stands.
        count: how many events stand before it in its page.
        caught_up: its flag of this name, as it came.
        stop_reached: the same.
    """

    cursor: str
    count: int
    caught_up: Any = None
    stop_reached: Any = None


@dataclass
class PageText:
    """Hold the events and checkpoints of a page, and what is wrong with its lines.

    Attributes:
        events: all events, whether a checkpoint follows them or not.
        marks: the checkpoints.
        faults: by kind, a sentence about the first line that has the fault.
    """

    events: list[SentEvent] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: bytes, partition: int | None = None) -> "PageText":
        """Read a page.

        Args:
            body: the answer's bytes.
            partition: the partition that every line has to name, in v1.
        """
        page = cls()
        if body.startswith(b"\xef\xbb\xbf"):
            page._fault("bom", "the page starts with a byte order mark")
            body = body[3:]
        *lines, rest = body.split(b"\n")
        if rest:
            page._fault("newline", "the last byte is not a newline")
            lines.append(rest)
        for number, line in enumerate(lines, 1):
            page._take(number, line, partition)
        if not page.marks:
            page._fault("checkpoint", "there is no checkpoint")
        elif page.marks[-1].count < len(page.events):
            page._fault("tail", "events stand behind the last checkpoint")
        return page

    @property
    def cursor(self) -> str:
        """The last checkpoint's cursor; empty if there is none."""
        return self.marks[-1].cursor if self.marks else ""

    @property
    def settled(self) -> list[SentEvent]:
        """The events that a checkpoint follows."""
        return self.events[: self.marks[-1].count] if self.marks else []

    def _fault(self, kind: str, sentence: str) -> None:
        self.faults.setdefault(kind, sentence)

    def _take(self, number: int, line: bytes, partition: int | None) -> None:
        if len(line) > LONGEST_LINE:
            self._fault("long", f"line {number} has {len(line):,} bytes")
        if line.endswith(b"\r"):
            self._fault("return", f"line {number} ends with a carriage return")
        if not line.strip(b" \t\r"):
            self._fault("empty", f"line {number} is empty")
            return
        document = self._decode(number, line)
        if document is None:
            return
        if "data" in document or "cursor" in document:
            for fault in _partition_faults(document, partition):
                self._fault("partition", f"line {number} {fault}")
        if "data" in document:
            self._take_event(number, document)
        if document.get("cursor") is not None:
            self._take_mark(number, document)

    def _take_event(self, number: int, document: dict[str, Any]) -> None:
        data, headers = document["data"], document.get("headers")
        if not isinstance(data, dict | str):
            self._fault("data", f"line {number} has data that is neither object nor string")
        if not isinstance(headers, dict | None):
            self._fault("headers", f"line {number} has headers that are not an object")
            headers = None
        if "cursor" in document:
            self._fault("both", f"line {number} is an event and a checkpoint at once")
        self.events.append(SentEvent(data, repr(data), headers))

    def _decode(self, number: int, line: bytes) -> dict[str, Any] | None:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self._fault("utf8", f"line {number} is not UTF-8")
            text = line.decode(errors="surrogateescape")
        names: list[str] = []
        twice = [False]

        def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            # The line's own object is built last; what is in data is the publisher's.
            document = dict(pairs)
            twice[0] = len(document) != len(pairs)
            return document

        try:
            document = json.loads(
                text,
                parse_constant=names.append,
                parse_float=Decimal,
                parse_int=Decimal,
                object_pairs_hook=build,
            )
        except RecursionError:
            self._fault("deep", f"line {number} is nested too deeply to be read")
            return None
        except ValueError:
            self._fault("json", f"line {number} is not JSON")
            return None
        if names:
            self._fault("constant", f"line {number} holds {names[0]}, which JSON does not have")
        if not isinstance(document, dict):
            self._fault("json", f"line {number} is not a JSON object")
            return None
        if twice[0]:
            self._fault("twice", f"line {number} has a member twice")
        if "\\u" in text and _has_lone_surrogate(document):
            self._fault("surrogate", f"line {number} escapes half a surrogate pair")
        return document

    def _take_mark(self, number: int, document: dict[str, Any]) -> None:
        cursor = document["cursor"]
        flags = document.get("caughtUp"), document.get("stopReached")
        if not all(flag is None or flag is True for flag in flags):
            self._fault("flag", f"line {number} has a flag that is not true")
        if not isinstance(cursor, str):
            self._fault("cursor", f"line {number} has a cursor that is not a string")
            return
        for fault in _cursor_faults(cursor):
            self._fault("cursor", f"line {number} {fault}")
        if cursor:
            self.marks.append(Mark(cursor, len(self.events), *flags))


def _cursor_faults(cursor: str) -> Iterator[str]:
    if cursor in {FIRST, LAST}:
        yield f"gives {cursor}, which only requests may say"
    elif not (cursor.isascii() and cursor.isprintable() and cursor):
        yield "has a cursor that is not printable ASCII"
    elif len(cursor) > LONGEST_CURSOR:
        yield f"has a cursor of more than {LONGEST_CURSOR:,} characters"


def _partition_faults(document: dict[str, Any], partition: int | None) -> Iterator[str]:
    if partition is None:
        return
    if "partition" not in document:
        yield "does not name its partition"
    elif document["partition"] != partition or isinstance(document["partition"], bool | str):
        yield f"is not of partition {partition}"


def _has_lone_surrogate(document: Any) -> bool:
    try:
        json.dumps(document, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


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
