"""Answers as the checks see them: status, headers, the lines of a page; and findings."""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, NoReturn

import httpx
import msgspec

from zeroeventhub.protocol import FIRST, LAST

LONGEST_LINE = 65_535
"""The longest line that every known client reads, in bytes without the newline."""

LONGEST_CURSOR = 4096
_OK = 200


@dataclass(frozen=True)
class Answer:
    """A request and its answer."""

    method: str
    target: str  # its path and query, without the secrets of the feed's own address
    status: int = 0  # 0 without an answer
    headers: httpx.Headers = field(default_factory=httpx.Headers)  # of the answer
    body: bytes = b""  # never decompressed
    seconds: float = 0.0  # up to the last byte

    @property
    def ok(self) -> bool:
        """Whether the status is 200."""
        return self.status == _OK

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters; a phrase for an answer without one."""
        content_type: str = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower() or "nothing in particular"

    @property
    def document(self) -> Any:
        """The decoded body; None for a body that is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    @property
    def cache_control(self) -> dict[str, str]:
        """The directives of Cache-Control, in lower case."""
        header: str = self.headers.get("cache-control", "")
        pairs = (part.strip().lower().partition("=") for part in header.split(","))
        return {name: value.strip('"') for name, _, value in pairs if name}

    @property
    def cacheable(self) -> bool:
        """Whether a cache may give the answer to another client without revalidation."""
        control = self.cache_control
        if "no-store" in control or "no-cache" in control:
            return False
        age = control.get("s-maxage") or control.get("max-age") or "0"
        return "immutable" in control or (age.isdecimal() and age.strip("0") != "")


class Outcome(StrEnum):
    """The result of a check."""

    PASS = "pass"  # noqa: S105 - not a password
    NOTE = "note"
    FAIL = "fail"
    SKIP = "skip"


class Finding(Exception):
    """End a check.

    By default, the answer that shows a failure is the last one, and failures with the same reason
    have the same fault.
    """

    def __init__(
        self, outcome: Outcome, reason: str, answer: Answer | None = None, fault: str = ""
    ) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.answer = answer
        self.fault = fault or reason


def fail(reason: str, answer: Answer | None = None) -> NoReturn:
    """End a check: the publisher breaks the protocol."""
    raise Finding(Outcome.FAIL, reason, answer)


def note(reason: str, answer: Answer | None = None) -> NoReturn:
    """End a check: the protocol allows it, but some consumers do not cope with it."""
    raise Finding(Outcome.NOTE, reason, answer)


def skip(reason: str, answer: Answer | None = None) -> NoReturn:
    """End a check that the feed's present content does not allow to make."""
    raise Finding(Outcome.SKIP, reason, answer)


@dataclass(frozen=True)
class SentEvent:
    """An event's decoded data, with exact numbers, and its headers (v1 only)."""

    data: Any
    headers: dict[str, Any] | None = None

    @property
    def identity(self) -> str:
        """A text that is the same for the same data, whatever its white space."""
        return repr(self.data)

    @property
    def cloud_event(self) -> dict[str, Any]:
        """The attributes of a CloudEvent; none of any other event."""
        return self.data if isinstance(self.data, dict) and "specversion" in self.data else {}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, its flags, and the count of events before it."""

    cursor: str
    count: int
    caught_up: bool = False
    stop_reached: bool = False


@dataclass
class PageText:
    """The events, checkpoints and faults of a page."""

    events: list[SentEvent] = field(default_factory=list)  # also those after the last checkpoint
    checkpoints: list[Checkpoint] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # by kind, a sentence on its first line

    @classmethod
    def of(cls, body: bytes, partition: int | None = None, *, v1: bool = False) -> "PageText":
        """Read a page, by default of any partition; in v1, every line has to name it."""
        page = cls()
        if body.startswith(b"\xef\xbb\xbf"):
            page._fault("bom", "the page starts with a byte order mark")
            body = body[3:]
        *lines, rest = body.split(b"\n")
        if rest:
            page._fault("newline", "the last byte is not a newline")
            lines.append(rest)
        for number, line in enumerate(lines, 1):
            for kind, sentence in page._read(line, partition, v1=v1):
                page._fault(kind, f"line {number} {sentence}")
        if not page.checkpoints:
            page._fault("checkpoint", "there is no checkpoint")
        elif page.end.count < len(page.events):
            page._fault("tail", "events follow the last checkpoint")
        return page

    @property
    def end(self) -> Checkpoint:
        """The last checkpoint; by default, one with an empty cursor and no events."""
        return self.checkpoints[-1] if self.checkpoints else Checkpoint("", 0)

    @property
    def cursor(self) -> str:
        """The last checkpoint's cursor; empty without a checkpoint."""
        return self.end.cursor

    @property
    def settled(self) -> list[SentEvent]:
        """The events before the last checkpoint."""
        return self.events[: self.end.count]

    def _fault(self, kind: str, sentence: str) -> None:
        self.faults.setdefault(kind, sentence)

    def _read(self, line: bytes, partition: int | None, *, v1: bool) -> Iterator[tuple[str, str]]:
        """Add a line's event or checkpoint, and yield the kinds of its faults with sentences."""
        if len(line) > LONGEST_LINE:
            yield "long", f"has {len(line):,} bytes"
        if line.endswith(b"\r"):
            yield "return", "ends with a carriage return"
        if not line.strip(b" \t\r"):
            yield "empty", "is empty"
            return
        document = yield from _decode(line)
        if "data" in document:
            yield from self._read_event(document)
        if document.get("cursor") is not None:
            yield from self._read_checkpoint(document)
        if partition is not None and ("data" in document or "cursor" in document):
            named = document.get("partition")
            is_number = named == partition and not isinstance(named, bool)
            if named is None:
                if v1:
                    yield "partition", "does not name its partition"
            elif not is_number and (v1 or named != str(partition)):
                yield "partition", f"is not of partition {partition}"

    def _read_event(self, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
        data, headers = document["data"], document.get("headers")
        if not isinstance(data, dict | str):
            yield "data", "has data that is neither object nor string"
        values = headers.values() if isinstance(headers, dict) else [None]
        if headers is not None and not all(isinstance(value, str) for value in values):
            yield "headers", "has headers that are not an object of strings"
            headers = None
        if "cursor" in document:
            yield "both", "is an event and a checkpoint at once"
        self.events.append(SentEvent(data, headers))

    def _read_checkpoint(self, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
        cursor = document["cursor"]
        flags = document.get("caughtUp"), document.get("stopReached")
        if not all(flag is None or flag is True for flag in flags):
            yield "flag", "has a flag that is not true"
        if not isinstance(cursor, str):
            yield "cursor", "has a cursor that is not a string"
            return
        if cursor in {FIRST, LAST}:
            yield "cursor", f"gives {cursor}, which only requests may say"
        elif not (cursor.isascii() and cursor.isprintable() and cursor):
            yield "cursor", "has a cursor that is not printable ASCII"
        elif len(cursor) > LONGEST_CURSOR:
            yield "cursor", f"has a cursor of more than {LONGEST_CURSOR:,} characters"
        if cursor:
            caught_up, stop_reached = (flag is True for flag in flags)
            self.checkpoints.append(Checkpoint(cursor, len(self.events), caught_up, stop_reached))


def exact(number: str) -> Decimal | str:
    """Decode a number of JSON exactly; return the text of one that Python cannot hold."""
    try:
        return Decimal(number)
    except InvalidOperation:
        return number


def _decode(line: bytes) -> Generator[tuple[str, str], None, dict[str, Any]]:
    """Yield the faults of a line as JSON; return its object, or an empty one."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        yield "utf8", "is not UTF-8"
        text = line.decode(errors="surrogateescape")
    constants: list[str] = []
    repeats: list[bool] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        repeats.append(len(document) < len(pairs))
        return document

    try:
        document = json.loads(
            text,
            parse_constant=constants.append,
            parse_float=exact,
            parse_int=exact,
            object_pairs_hook=build,
        )
    except RecursionError:
        yield "deep", "is nested too deeply to be read"
        return {}
    except ValueError:
        yield "json", "is not JSON"
        return {}
    if constants:
        yield "constant", f"holds {constants[0]}, which JSON does not have"
    if not isinstance(document, dict):
        yield "json", "is not a JSON object"
        return {}
    # json builds the line's own object last; the objects within data do not matter.
    if repeats[-1]:
        yield "twice", "has a member twice"
    if "\\u" in text and _has_lone_surrogate(document):
        yield "surrogate", "escapes half a surrogate pair"
    return document


def _has_lone_surrogate(document: Any) -> bool:
    try:
        json.dumps(document, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False
