"""A scenario: a script of answers that misbehave, and the verdict on the client that met them."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Literal

from zeroeventhub.protocol import FIRST, LAST

__all__ = [
    "EVENTS",
    "MIDDLE",
    "Reply",
    "Request",
    "Run",
    "Scenario",
    "add",
    "at_offset",
    "checkpoint",
    "discovery",
    "event",
    "judge",
    "listed",
    "numbered",
    "page",
    "problem",
    "script",
    "serve_feed",
    "text",
]

NDJSON = "application/x-ndjson"


@dataclass(frozen=True)
class Reply:
    """Hold an answer.

    Attributes:
        body: the bytes of the whole answer.
        status: its status.
        media_type: its media type; None for none.
        headers: more headers.
        framing: how its end is told: by Content-Length, in chunks, or by closing.
        length: the Content-Length to claim; None for the true one.
        cut: after how many bytes of the body the connection is closed; None for the end.
        pause: seconds between one byte and the next; 0 for none.
        hang_up: whether the connection is closed without an answer.
    """

    body: bytes = b""
    status: int = 200
    media_type: str | None = NDJSON
    headers: tuple[tuple[str, str], ...] = ()
    framing: Literal["length", "chunked", "close"] = "length"
    length: int | None = None
    cut: int | None = None
    pause: float = 0.0
    hang_up: bool = False

    def send(self, write: Callable[[bytes], object]) -> None:
        """Write the answer; the connection is closed behind it."""
        if self.hang_up:
            return
        write(self._head())
        body = self.body if self.cut is None else self.body[: self.cut]
        if self.pause:
            for place in range(len(body)):
                write(body[place : place + 1])
                time.sleep(self.pause)
        elif self.framing == "chunked":
            for place in range(0, len(body), 7):
                chunk = body[place : place + 7]
                write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if self.cut is None:
                write(b"0\r\n\r\n")
        else:
            write(body)

    def _head(self) -> bytes:
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {phrase}", "Connection: close", "Cache-Control: no-store"]
        if self.media_type is not None:
            lines.append(f"Content-Type: {self.media_type}")
        if self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif self.framing == "length":
            length = len(self.body) if self.length is None else self.length
            lines.append(f"Content-Length: {length}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join((*lines, "", "")).encode()


@dataclass(frozen=True)
class Request:
    """Hold a request to a scenario.

    Attributes:
        path: what follows the scenario's own path, such as "/events".
        query: its parameters; of each the first value.
        headers: its headers, by names in lower case.
        origin: where the publisher listens, such as "http://127.0.0.1:8080".
    """

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    origin: str


@dataclass
class Run:
    """Hold what one client was told so far.

    Attributes:
        asked: by question, how often it was asked.
        faults: what the client must not do and did.
    """

    asked: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scenario:
    """Hold one way to misbehave.

    Attributes:
        name: its name, which is its path.
        section: the section of the specification that says what a client does.
        sentence: what is done to the client.
        right: what a right client does.
        answer: answers a request.
        applied: JSON texts of the events that a right consumer has applied at the end: by
            partition, in order.
        error: the kind of error that the consumer ends with; None if it reaches the head.
        may_fail: whether a right client may end in an error in place of the head, with the
            start of these events applied.
        sequence: partitions in the order in which they have to be applied.
        v1: the number of partitions, for a feed of ZeroEventHub v1.
        sizes: for how many offsets the scenario is there, as name-0, name-1, and so on.
    """

    name: str
    section: str
    sentence: str
    right: str
    answer: Callable[[Request, Run], Reply]
    applied: Mapping[int, Sequence[str]]
    error: str | None = None
    may_fail: bool = False
    sequence: tuple[int, ...] = ()
    v1: int | None = None
    sizes: int | None = None

    def document(self) -> dict[str, Any]:
        """Describe the scenario as JSON."""
        texts = {str(number): list(events) for number, events in self.applied.items()}
        return {
            "name": self.name,
            "section": self.section,
            "sentence": self.sentence,
            "right": self.right,
            "applied": texts,
            "error": self.error,
            "mayFail": self.may_fail,
            "sequence": list(self.sequence),
            "v1Partitions": self.v1,
            "offsets": self.sizes,
        }


_SCENARIOS: dict[str, Scenario] = {}
_MAKERS: dict[str, Callable[[int], Scenario]] = {}


def add(scenario: Scenario, maker: Callable[[int], Scenario] | None = None) -> None:
    """Put a scenario on the list; one that has offsets with what makes it for each."""
    _SCENARIOS[scenario.name] = scenario
    if maker is not None:
        _MAKERS[scenario.name] = maker


def listed() -> dict[str, Scenario]:
    """Return the scenarios that have been put on the list so far, by name."""
    return dict(_SCENARIOS)


def at_offset(family: str, offset: int) -> Scenario:
    """Return one of a family of scenarios."""
    return _MAKERS[family](offset)


def text(data: Any) -> str:
    """Write an event's data as JSON, in one line, with all of Unicode as it is."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


Wrong = Callable[[int, int], Reply | None]
"""Chooses what goes wrong, by place of the cursor and number of the try there."""

EVENTS: tuple[str, ...] = tuple(text({"n": number}) for number in range(4))
MIDDLE = 2
"""The place where most scripts go wrong: behind the first page."""

PAGE = 2
DISCOVERY_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"


def numbered(*numbers: int) -> list[str]:
    """Return events by their numbers."""
    return [EVENTS[number] for number in numbers]


def event(data: str, **members: Any) -> bytes:
    """Write the line of an event."""
    more = "".join(f",{text(name)}:{text(value)}" for name, value in members.items())
    return f'{{"data":{data}{more}}}\n'.encode()


def checkpoint(place: int | str, **members: Any) -> bytes:
    """Write the line of a checkpoint."""
    cursor = f"k{place}" if isinstance(place, int) else place
    return (text({"cursor": cursor, **members}) + "\n").encode()


def page(place: int, events: Sequence[str] = EVENTS) -> bytes:
    """Write the page that follows a place."""
    end = min(place + PAGE, len(events))
    return b"".join(map(event, events[place:end])) + checkpoint(end)


def discovery(
    partitions: Sequence[dict[str, Any]] = ({"id": "0"},),
    token: Any = "1",  # noqa: S107 - not a password
    **members: Any,
) -> Reply:
    """Answer discovery."""
    document = {"token": token, "partitions": list(partitions), "exactlyOnce": True, **members}
    return Reply(json.dumps(document).encode(), media_type=DISCOVERY_TYPE)


def problem(status: int, kind: str, **members: Any) -> Reply:
    """Refuse with a problem document."""
    document = {
        "type": f"urn:zeroeventhub:problem/{kind}",
        "title": "This is on purpose.",
        "status": status,
        "detail": "The scenario asks for it.",
        "instance": "urn:uuid:00000000-0000-4000-8000-000000000000",
        **members,
    }
    return Reply(json.dumps(document).encode(), status, PROBLEM_TYPE)


def place_of(cursor: str, size: int) -> int | None:
    """Return how many events stand before a cursor; None if it was never given."""
    if cursor in {FIRST, LAST}:
        return 0 if cursor == FIRST else size
    number = cursor.removeprefix("k")
    given = cursor.startswith("k") and number.isascii() and number.isdigit()
    return int(number) if given and int(number) <= size else None


def serve_feed(
    wrong: Wrong = lambda _place, _try: None,
    *,
    events: Sequence[str] = EVENTS,
    greeting: Reply | None = None,
) -> Callable[[Request, Run], Reply]:
    """Make what answers for a feed of one partition, except where it goes wrong.

    Args:
        wrong: chooses what goes wrong.
        events: the events of the feed.
        greeting: the answer to discovery.
    """

    def answer(request: Request, run: Run) -> Reply:
        if not request.path:
            return greeting or discovery()
        if request.path != "/events":
            return problem(404, "not-found")
        if request.query.get("token") != "1":
            return problem(409, "token-changed")
        if request.query.get("partition") != "0":
            return problem(400, "bad-request")
        place = place_of(request.query.get("cursor", ""), len(events))
        if place is None:
            return problem(400, "bad-cursor")
        run.asked[f"place {place}"] += 1
        return wrong(place, run.asked[f"place {place}"]) or Reply(page(place, events))

    return answer


def script(
    name: str,
    section: str,
    sentence: str,
    right: str,
    wrong: Wrong | Reply | bytes | None = None,
    *,
    always: bool = False,
    events: Sequence[str] = EVENTS,
    applied: Sequence[str] | None = None,
    error: str | None = None,
    may_fail: bool = False,
    greeting: Reply | None = None,
) -> None:
    """Put a script on the list: mostly one wrong answer behind the first page.

    Args:
        name: the scenario's name.
        section: the section of the specification.
        sentence: what is done to the client.
        right: what a right client does.
        wrong: what goes wrong; an answer or a body goes wrong behind the first page.
        always: whether it goes wrong at every try; else at the first.
        events: the events of the feed.
        applied: what a right consumer has applied; by default all events.
        error: the kind of error that it ends with.
        may_fail: whether it may end in an error as well.
        greeting: the answer to discovery.
    """
    given = Reply(wrong) if isinstance(wrong, bytes) else wrong

    def choose(place: int, number: int) -> Reply | None:
        if callable(given):
            return given(place, number)
        return given if place == MIDDLE and (always or number == 1) else None

    answer = serve_feed(choose, events=events, greeting=greeting)
    done = {0: list(events if applied is None else applied)}
    add(Scenario(name, section, sentence, right, answer, done, error, may_fail))


def judge(scenario: Scenario, run: Run, body: bytes) -> dict[str, Any]:
    """Judge a client.

    Args:
        scenario: what the client went through.
        run: what it was told.
        body: what it applied, as NDJSON: {"partition":0,"data":…} for each event, in order, and
            {"error":"…"} at the end if it ended in an error.
    """
    reasons = list(run.faults)
    applied: dict[int, list[Any]] = defaultdict(list)
    sequence = []
    error = None
    try:
        for line in body.split(b"\n"):
            document = _read(line) if line.strip() else {}
            if "data" in document:
                partition = int(document.get("partition", 0))
                applied[partition].append(document["data"])
                sequence.append(partition)
            error = document.get("error", error)
    except (ValueError, TypeError, RecursionError, AttributeError) as problem:
        return {"passed": False, "reasons": [f"What was applied cannot be read: {problem}"]}
    for partition in sorted({*scenario.applied, *applied}):
        expected = [_read(data.encode()) for data in scenario.applied.get(partition, ())]
        got = applied[partition]
        short = error is not None and scenario.may_fail and expected[: len(got)] == got
        if got != expected and not short:
            reasons.append(
                f"Partition {partition}: {len(expected)} events should have been applied, "
                f"and {len(got)} were, or others."
            )
    if (error is not None) != (scenario.error is not None) and not scenario.may_fail:
        wanted = scenario.error or "none"
        reasons.append(f"The client should have ended with this error: {wanted}.")
    known = [partition for partition in sequence if partition in scenario.sequence]
    if known != sorted(known, key=scenario.sequence.index):
        reasons.append("The partitions were applied in another sequence.")
    return {"passed": not reasons, "reasons": reasons}


def _read(line: bytes) -> Any:
    return json.loads(line, parse_float=Decimal)
