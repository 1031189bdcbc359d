"""Scenarios of partitions: tokens that change, parents and heirs."""

from collections.abc import Mapping, Sequence
from typing import Any

from zeroeventhub.conformance.misbehaving.scenario import (
    EVENTS,
    MIDDLE,
    Reply,
    Request,
    Run,
    Scenario,
    add,
    checkpoint,
    discovery,
    event,
    numbered,
    place_of,
    problem,
)
from zeroeventhub.conformance.sections import CURSORS, PARTITIONS, TOKEN

HEIRS = "8.4"

_Layout = Sequence[dict[str, Any]]


class _Layouts:
    """Serve a layout until a place of partition 0 is asked for, and then another.

    Every partition holds the events that it is given, with places counted over all of them: an
    heir starts where its ancestor was.
    """

    def __init__(
        self,
        before: _Layout,
        after: _Layout | None,
        events: Mapping[int, Mapping[int, str]],
        *,
        refusals: int = 1,
    ) -> None:
        self._layouts = [before, before if after is None else after]
        self._changes = after is not None
        self._events = events
        self._refusals = refusals

    def __call__(self, request: Request, run: Run) -> Reply:
        changed = self._changes and run.asked["change"] > 0
        layout = self._layouts[changed]
        if not request.path:
            return discovery(layout, token="2" if changed else "1")
        place = place_of(request.query.get("cursor", ""), 99)
        partition = request.query.get("partition", "")
        if place is None or not partition.isdigit():
            return problem(400, "bad-cursor")
        if self._changes and place >= MIDDLE and run.asked["change"] < self._refusals:
            run.asked["change"] += 1
            return problem(409, "token-changed")
        if request.query.get("token") != ("2" if changed else "1"):
            return problem(409, "token-changed")
        if int(partition) not in {int(entry["id"]) for entry in layout}:
            return problem(400, "bad-request")
        return self._page(int(partition), place)

    def _page(self, partition: int, place: int) -> Reply:
        left = {at: data for at, data in self._events[partition].items() if at >= place}
        chosen = dict(sorted(left.items())[:2])
        end = max(chosen, default=place - 1) + 1
        return Reply(b"".join(map(event, chosen.values())) + checkpoint(end))


_ROOT = {"id": "0"}
_CLOSED = {"id": "0", "closed": True}
_FIRST = dict(enumerate(EVENTS[:2]))
_ALL = dict(enumerate(EVENTS))

add(
    Scenario(
        "token-changed",
        TOKEN,
        "409 comes behind the first page, and a new layout has one partition more.",
        "Discovers again, and goes on where it was.",
        _Layouts([_ROOT], [_ROOT, {"id": "1"}], {0: _ALL, 1: {0: '"new"'}}),
        {0: EVENTS, 1: ['"new"']},
    )
)
add(
    Scenario(
        "token-refused",
        TOKEN,
        "409 comes three times in a row.",
        "Discovers again and again, with pauses.",
        _Layouts([_ROOT], [_ROOT], {0: _ALL}, refusals=3),
        {0: EVENTS},
    )
)
add(
    Scenario(
        "children",
        PARTITIONS,
        "A closed partition has a child that starts after it, and stands behind it in the list.",
        "Reads the child when the parent has been read to its end.",
        _Layouts(
            [{"id": "5", "startsAfterPartition": "0"}, _CLOSED],
            None,
            {0: _ALL, 5: {0: '"child"'}},
        ),
        {0: EVENTS, 5: ['"child"']},
        sequence=(0, 5),
    )
)
add(
    Scenario(
        "children-as-numbers",
        PARTITIONS,
        "Discovery writes startsAfterPartition as a number.",
        "Takes it for the string of the same digits.",
        _Layouts([{"id": "5", "startsAfterPartition": 0}, _CLOSED], None, {0: _ALL, 5: {0: "{}"}}),
        {0: EVENTS, 5: ["{}"]},
        sequence=(0, 5),
    )
)
add(
    Scenario(
        "children-later",
        PARTITIONS,
        "A partition is closed and gets a child while it is being read.",
        "Reads the parent to its end, and then the child.",
        _Layouts(
            [_ROOT],
            [_CLOSED, {"id": "1", "startsAfterPartition": "0"}],
            {0: _ALL, 1: {0: '"child"'}},
        ),
        {0: EVENTS, 1: ['"child"']},
        sequence=(0, 1),
    )
)
add(
    Scenario(
        "parent-gone",
        PARTITIONS,
        "A partition starts after one that is not listed.",
        "Reads it: it waits for nothing.",
        _Layouts([{"id": "0", "startsAfterPartition": "9"}], None, {0: _ALL}),
        {0: EVENTS},
    )
)
for _name, _sentence, _layout in (
    (
        "parent-open",
        "A partition starts after one that is not closed.",
        [
            _ROOT,
            {"id": "1", "startsAfterPartition": "0"},
        ],
    ),
    (
        "parents-in-a-circle",
        "Two partitions start after each other.",
        [
            {"id": "0", "closed": True, "startsAfterPartition": "1"},
            {"id": "1", "closed": True, "startsAfterPartition": "0"},
        ],
    ),
):
    add(
        Scenario(
            _name,
            PARTITIONS,
            _sentence,
            "Ends in an error: it would never be read.",
            _Layouts(_layout, None, {0: {}, 1: {}}),
            {0: [], 1: []},
            error="protocol",
        )
    )
add(
    Scenario(
        "heirs",
        HEIRS,
        "A partition goes, and two others take its cursor.",
        "Starts both where it was in the partition that went.",
        _Layouts(
            [_ROOT],
            [
                {"id": "1", "cursorFromPartitions": ["0"]},
                {"id": "2", "cursorFromPartitions": ["7", "0"]},
            ],
            {0: _FIRST, 1: {0: EVENTS[0], 2: EVENTS[2]}, 2: {1: EVENTS[1], 3: EVENTS[3]}},
        ),
        {0: numbered(0, 1), 1: numbered(2), 2: numbered(3)},
    )
)

_ODD = ["k+1 &=%25", "\"k'2\\", "k~3/?#;:", "k" * 4096]


def _odd_cursors(request: Request, run: Run) -> Reply:
    if not request.path:
        return discovery()
    cursor = request.query.get("cursor", "")
    places = {"_first": 0, **{odd: place + 1 for place, odd in enumerate(_ODD)}}
    place = places.get(cursor)
    if place is None:
        run.faults.append("A cursor came back as another.")
        return problem(400, "bad-cursor")
    if place == len(_ODD):
        return Reply(checkpoint(cursor))
    return Reply(event(EVENTS[place]) + checkpoint(_ODD[place]))


add(
    Scenario(
        "odd-cursors",
        CURSORS,
        "Cursors hold every kind of printable character, and one has 4,096 of them.",
        "Gives each back as it came.",
        _odd_cursors,
        {0: EVENTS},
    )
)
