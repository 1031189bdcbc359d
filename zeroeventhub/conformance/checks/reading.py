"""Checks of what comes when a consumer follows the cursors."""

from collections import Counter

from zeroeventhub.conformance.finding import Outcome, fail, note, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import (
    CLOSED,
    EXACTLY_ONCE,
    PAGES,
    READING,
    REPLAY,
    SPECIAL_CURSORS,
    V1,
)
from zeroeventhub.conformance.subject import MOST_PARTITIONS, Subject
from zeroeventhub.protocol import FIRST, LAST

_SIZES = {1: 12, 2: 20, 7: 60}
"""By page size, how many events are read with it."""

_MOST_MARKS = 8
_TRIES = 5


@check("reading", READING, "Following the cursors from _first reaches the head.", v1=V1)
def _reading(subject: Subject) -> None:
    for partition in subject.partitions()[:MOST_PARTITIONS]:
        known = subject.walk(partition)
        if known.broken is not None and known.broken.outcome is Outcome.FAIL:
            raise known.broken
    _, known = subject.sample()
    if not known.at_head:
        skip(f"There is more than is read here: {len(known.events):,} events were in order.")


@check("reading-again", REPLAY, "Reading again from the start gives the same events.", v1=V1)
def _again(subject: Subject) -> None:
    partition, known = subject.sample(1)
    events = subject.read(partition, FIRST, len(known.events))[: len(known.events)]
    before = Counter(event.identity for event in known.events)
    after = Counter(event.identity for event in events)
    if before == after and known.events != events and not subject.extensions:
        note("The same events came in another order.", subject.probe.last)
    subject.expect_same(known.events, events, "when it was read again")


@check("page-sizes", REPLAY, "The size of the pages does not change which events come.", v1=V1)
def _sizes(subject: Subject) -> None:
    partition, known = subject.sample(2)
    for size, count in _SIZES.items():
        expected = known.events[:count]
        extra = [("pagesizehint", str(size))]
        events = subject.read(partition, FIRST, len(expected), extra)
        subject.expect_same(expected, events, f"in pages of {size}")


@check("cursors-resume", PAGES, "Every checkpoint's cursor goes on right behind it.", v1=V1)
def _resume(subject: Subject) -> None:
    partition, known = subject.sample(2)
    marks = known.ends()
    if not marks:
        skip("There is no checkpoint with events before and behind it.")
    step = max(1, len(marks) // _MOST_MARKS)
    for mark in marks[::step][:_MOST_MARKS]:
        expected = known.events[mark.count : mark.count + 3]
        events = subject.read(partition, mark.cursor, len(expected), [("pagesizehint", "3")])
        subject.expect_same(expected, events, f"behind the cursor after {mark.count} events")


@check("events-once", EXACTLY_ONCE, "A feed that promises exactlyOnce sends no event twice.")
def _once(subject: Subject) -> None:
    _, known = subject.sample(2)
    ids = [_event_id(event.data) for event in known.events]
    if None in ids:
        skip("The events have no id to tell them apart by.")
    repeated = [number for number, count in Counter(ids).items() if count > 1]
    if repeated and subject.document().get("exactlyOnce") is True:
        fail(f"{len(repeated)} ids came more than once.", known.pages[-1][0])
    if repeated:
        note(f"{len(repeated)} ids came more than once, as exactlyOnce=false allows.")


def _event_id(data: object) -> tuple[str, str] | None:
    """Return what tells an event apart: source and id of a CloudEvent."""
    if not isinstance(data, dict) or "specversion" not in data:
        return None
    return str(data.get("source")), str(data.get("id"))


@check("head", PAGES, "At the head comes an empty page that gives the cursor back.", v1=V1)
def _head(subject: Subject) -> None:
    partition, _ = subject.sample()
    for _ in range(_TRIES):
        cursor, _ = subject.head(partition, strict=True)
        page = subject.page(partition, cursor)
        if page.cursor == cursor:
            return
    skip("The feed is being written to.", subject.probe.last)


@check(
    "last",
    SPECIAL_CURSORS,
    "The page of _last is empty, and nothing old follows its cursor.",
    v1=V1,
)
def _last(subject: Subject) -> None:
    partition, known = subject.sample()
    page = subject.page(partition, LAST)
    answer = subject.pages[-1][0]
    if page.events:
        fail("The page of _last holds events.", answer)
    old = {event.identity for event in known.events}
    if len(old) < len(known.events):
        skip("Events with the same data cannot be told apart.", answer)
    following = subject.page(partition, page.cursor)
    if any(event.identity in old for event in following.events):
        fail("Behind _last came an event that had been there before.", subject.pages[-1][0])


@check("closed", CLOSED, "A closed partition that was read to its end comes to rest.")
def _closed(subject: Subject) -> None:
    closed = [
        number
        for number, entry in zip(subject.partitions(), subject.entries(), strict=False)
        if entry.get("closed") is True
    ]
    if not closed:
        skip("The feed has no closed partition.")
    for partition in closed[:3]:
        if not subject.walk(partition).at_head:
            continue
        for _ in range(_TRIES):
            cursor, _ = subject.head(partition)
            page = subject.page(partition, cursor)
            if page.events:
                fail("A closed partition grew.", subject.probe.last)
            if page.cursor == cursor:
                break
        else:
            fail("At its end the cursor goes on moving.", subject.probe.last)
