"""Scenarios of ZeroEventHub v1."""

import json
from collections.abc import Callable
from typing import Any

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    MIDDLE,
    PAGE,
    Reply,
    Request,
    Run,
    Scenario,
    add,
    place_of,
    text,
)
from zeroeventhub.conformance.sections import V1

_ALL = "Every event is applied once."
_BAD = Reply(b'{"detail":"Parameter n not found"}', 400, "application/json")


def _line(partition: Any, **members: Any) -> bytes:
    return text({"partition": partition, **members}).encode() + b"\n"


def _page(partition: int, place: int, *, written: Any = None, headers: Any = None) -> bytes:
    named = partition if written is None else written
    more = {} if headers is None else {"headers": headers}
    end = min(place + PAGE, len(EVENTS))
    events = [_line(named, data=json.loads(data), **more) for data in EVENTS[place:end]]
    return b"".join((*events, _line(named, cursor=f"k{end}")))


def _serve(
    partitions: int,
    write: Callable[[int, int, int], Reply],
    greeting: Reply = _BAD,
) -> Callable[[Request, Run], Reply]:
    """Make what answers for a feed of v1.

    Args:
        partitions: how many it has.
        write: writes the page of a partition that follows a place, at a number of tries.
        greeting: the answer without parameters.
    """

    def answer(request: Request, run: Run) -> Reply:
        if request.path:
            return Reply(b"", 404, None)
        if "n" not in request.query:
            return greeting
        if request.query["n"] != str(partitions):
            return _BAD
        asked = {
            number: place_of(request.query[f"cursor{number}"], len(EVENTS))
            for number in range(partitions)
            if f"cursor{number}" in request.query
        }
        if len(asked) != 1 or None in asked.values():
            return _BAD
        ((partition, place),) = asked.items()
        run.asked[f"{partition} {place}"] += 1
        return write(partition, place or 0, run.asked[f"{partition} {place}"])

    return answer


def _script(
    name: str,
    sentence: str,
    write: Callable[[int, int, int], Reply],
    *,
    partitions: int = 1,
    right: str = _ALL,
    error: str | None = None,
    greeting: Reply = _BAD,
) -> None:
    applied = dict.fromkeys(range(partitions), EVENTS[:MIDDLE] if error else EVENTS)
    answer = _serve(partitions, write, greeting)
    add(Scenario(f"v1-{name}", V1, sentence, right, answer, applied, error, v1=partitions))


_script("good", "Nothing goes wrong.", lambda part, place, _: Reply(_page(part, place)))
_script(
    "partitions",
    "Two partitions are served, one cursor a request.",
    lambda part, place, _: Reply(_page(part, place)),
    partitions=2,
)
_script(
    "unprocessable",
    "A request without parameters is answered with 422.",
    lambda part, place, _: Reply(_page(part, place)),
    greeting=Reply(b'{"detail":[]}', 422, "application/json"),
)
_script(
    "partition-as-text",
    "Lines name their partition as a string.",
    lambda part, place, _: Reply(_page(part, place, written=str(part))),
)
_script(
    "headers",
    "Headers come, though nobody asked.",
    lambda part, place, _: Reply(_page(part, place, headers={"h": "v"})),
)
_script(
    "null-headers",
    "Headers are null, as the Python peer sends them.",
    lambda part, place, _: Reply(_page(part, place).replace(b'"data"', b'"headers":null,"data"')),
)
_script(
    "other-partition",
    "A line is of another partition.",
    lambda part, place, _: Reply(_page(part, place, written=5 if place == MIDDLE else None)),
    right="Ends in an error.",
    error="protocol",
)
_script(
    "no-checkpoint",
    "A page has no checkpoint, once.",
    lambda part, place, number: Reply(
        _page(part, place).split(b"\n")[0] + b"\n"
        if place == MIDDLE and number == 1
        else _page(part, place)
    ),
    right="Applies none of it, and asks again.",
)
