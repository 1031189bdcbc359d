"""The parts of scenarios: answers of any bytes, and feeds that go wrong by script."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.wire import NDJSON_TYPE


@dataclass(frozen=True)
class Reply:
    """Hold an answer, which may be cut off or claim what is not so."""

    body: bytes = b""
    status: int = 200
    media_type: str | None = NDJSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()  # besides those of the other attributes
    framing: Literal["length", "chunked", "close"] = "length"  # how it shows its end
    length: int | None = None  # the Content-Length to claim, by default the true one
    cut: int | None = None  # bytes of the body after which the connection closes
    pause: float = 0.0  # seconds between one byte and the next
    hang_up: bool = False  # whether the connection closes without an answer

    def send(self, write: Callable[[bytes], object]) -> None:
        """Write the answer; the caller closes the connection after it."""
        if self.hang_up:
            return
        write(self._head())
        body = self.body[: self.cut]
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
    """Hold a request to a scenario."""

    path: str  # after the scenario's own, such as "/events"
    query: Mapping[str, str]  # of each parameter the first value
    url: str  # of the scenario, such as "http://127.0.0.1:8080/redirect"


@dataclass
class Run:
    """Count the requests of one client's run through a scenario, and collect its faults."""

    asked: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


Responder = Callable[[Request, Run], Reply]
ALL_APPLIED = "Every event is applied once."


@dataclass(frozen=True)
class Scenario:
    """Hold one way to misbehave."""

    section: str  # of the specification, with the rule for clients
    name: str  # also its path
    sentence: str  # what the publisher does
    answer: Callable[..., Reply]  # to a request; with `offset`, if the scenario has `sizes`
    applied: Mapping[int, Sequence[str]]  # at the end, as JSON texts by partition, in order
    right: str = ALL_APPLIED  # what a right client does
    error: str | None = None  # the kind that the consumer ends with; None if it reaches the head
    may_fail: bool = False  # whether it may also end in an error after the first of `applied`
    sequence: tuple[int, ...] = ()  # the partitions in the order of their application
    v1: int | None = None  # the number of partitions in ZeroEventHub v1; None for FeedAPI v2
    sizes: int | None = None  # the number of offsets, as name-0, name-1, and so on

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


def scenario(section: str, name: str, sentence: str) -> Callable[..., None]:
    """Return the function that registers a scenario, given its other attributes."""

    def register(*attributes: Any, **more: Any) -> None:
        _SCENARIOS[name] = Scenario(section, name, sentence, *attributes, **more)

    return register


def all_scenarios() -> dict[str, Scenario]:
    """Return all scenarios by name; those with offsets once."""
    return dict(_SCENARIOS)


def text(data: Any) -> str:
    """Write an event's data as JSON, in one line, with all of Unicode as it is."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


EVENTS: tuple[str, ...] = tuple(text({"n": number}) for number in range(4))
PAGE = 2
MIDDLE = 2
"""The position at which most scripts go wrong: after the first page."""


def numbered(*numbers: int) -> list[str]:
    """Return events by their numbers."""
    return [EVENTS[number] for number in numbers]


def event(data: str | int, **members: Any) -> bytes:
    """Write the line of an event, given as JSON text or by its number."""
    data = EVENTS[data] if isinstance(data, int) else data
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
    return Reply(json.dumps(document).encode(), media_type="application/json")


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
    return Reply(json.dumps(document).encode(), status, "application/problem+json")


def place_of(cursor: str, size: int = len(EVENTS)) -> int | None:
    """Return the number of events before a cursor; None for a cursor that the feed never gave."""
    if cursor in {FIRST, LAST}:
        return 0 if cursor == FIRST else size
    number = cursor.removeprefix("k")
    given = cursor.startswith("k") and number.isascii() and number.isdigit()
    return int(number) if given and int(number) <= size else None


Wrong = Callable[[int, int], Reply | None]
"""Returns a wrong answer, given the position of the cursor and the number of the try there."""


def serve_feed(
    wrong: Wrong | Reply | bytes | None = None,
    *,
    always: bool = False,
    events: Sequence[str] = EVENTS,
    greeting: Reply | None = None,
) -> Responder:
    """Return what answers the requests to a feed of one partition, rightly or wrongly.

    A wrong answer that is not chosen by a function comes after the first page: at the first try, or
    always. `greeting` is the answer to discovery.
    """
    given = Reply(wrong) if isinstance(wrong, bytes) else wrong

    def choose(place: int, number: int) -> Reply | None:
        if callable(given):
            return given(place, number)
        return given if place == MIDDLE and (always or number == 1) else None

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
        return choose(place, run.asked[f"place {place}"]) or Reply(page(place, events))

    return answer


def script(section: str, name: str, sentence: str) -> Callable[..., None]:
    """Return the function that registers a feed of one partition with a wrong answer.

    It takes the wrong answer, what a right client does, and the options of `serve_feed` and of the
    scenario. A right consumer applies all events. If it ends in an error, the wrong answer comes at
    every try, and the consumer applies the first page only.
    """

    def register(
        wrong: Wrong | Reply | bytes | None = None,
        right: str | None = None,
        *,
        error: str | None = None,
        always: bool = False,
        events: Sequence[str] = EVENTS,
        applied: Sequence[str] | None = None,
        greeting: Reply | None = None,
        **more: Any,
    ) -> None:
        ends = error is not None
        answer = serve_feed(wrong, always=always or ends, events=events, greeting=greeting)
        by_default = events[:MIDDLE] if ends else events
        done = {0: list(by_default if applied is None else applied)}
        said = right or ("Ends in an error." if ends else ALL_APPLIED)
        scenario(section, name, sentence)(answer, done, said, error, **more)

    return register
