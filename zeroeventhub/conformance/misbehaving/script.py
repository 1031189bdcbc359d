"""A small feed of four events in pages of two, and a script of what goes wrong in it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from zeroeventhub.conformance.misbehaving.reply import Reply
from zeroeventhub.conformance.misbehaving.scenario import Request, Run, Scenario, add, text
from zeroeventhub.protocol import FIRST, LAST

__all__ = [
    "EVENTS",
    "MIDDLE",
    "Wrong",
    "checkpoint",
    "discovery",
    "event",
    "numbered",
    "page",
    "problem",
    "script",
    "serve_feed",
]

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
