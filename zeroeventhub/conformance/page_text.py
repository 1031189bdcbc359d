"""Read the lines of a page strictly, and keep every fault with the line that has it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from zeroeventhub.protocol import FIRST, LAST

__all__ = ["LONGEST_CURSOR", "LONGEST_LINE", "Mark", "PageText", "SentEvent"]

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
