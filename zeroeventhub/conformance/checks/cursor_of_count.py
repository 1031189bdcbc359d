"""Checks of the extension cursor-of-count."""

import msgspec

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.checks.stop import read_until
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import CURSOR_OF_COUNT as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import CURSOR_OF_COUNT, FIRST, LAST

_SUFFIX = "/cursor-of-count"
_PORTIONS = (1, 7, 30)


class _Counted(msgspec.Struct, frozen=True):
    """Hold what an answer says."""

    cursor: str
    events: int


def _count(
    subject: Subject, partition: int, cursor: str, events: int, *extra: tuple[str, str]
) -> _Counted:
    parameters = [("token", subject.token), ("partition", str(partition)), ("cursor", cursor)]
    answer = subject.probe.ask(_SUFFIX, [*parameters, ("events", str(events)), *extra])
    if not answer.ok:
        fail(f"The cursor of a count was answered with status {answer.status}.", answer)
    if answer.media_type != "application/json":
        fail(f"The cursor came as {answer.media_type or 'nothing in particular'}.", answer)
    try:
        found = msgspec.json.decode(answer.body, type=_Counted)
    except (msgspec.DecodeError, RecursionError):
        fail("The answer holds no cursor, or not how many events lie before it.", answer)
    if found.cursor in {FIRST, LAST, ""}:
        fail("The cursor is _first or _last, not a real one.", answer)
    if not 0 <= found.events <= events:
        fail(f"{found.events} events were counted, and {events} were asked for.", answer)
    return found


@check(
    "cursor-of-count",
    SECTION,
    "Up to the cursor lie as many events as its answer says.",
    extension=CURSOR_OF_COUNT,
)
def _exact(subject: Subject) -> None:
    partition, known = subject.sample(1)
    for portion in _PORTIONS:
        cursor, seen = FIRST, 0
        for _ in _PORTIONS:
            found = _count(subject, partition, cursor, portion)
            answer = subject.probe.last
            # What has been read was settled then; more may have come since.
            if found.events < min(portion, len(known.events) - seen):
                fail(f"{found.events} events were counted, and more can be read.", answer)
            if not found.events:
                break
            events = read_until(subject, partition, cursor, found.cursor)
            if len(events) != found.events:
                fail(f"{found.events} events were counted; {len(events)} can be read.", answer)
            subject.expect_same(known.events[seen:][: len(events)], events, "up to a count")
            cursor, seen = found.cursor, seen + found.events


@check(
    "cursor-of-count-stop",
    SECTION,
    "Where there are fewer events before the stop, the cursor is the stop.",
    extension=CURSOR_OF_COUNT,
)
def _stop(subject: Subject) -> None:
    partition, known = subject.sample(2)
    marks = known.ends()
    if not marks:
        skip("There is no checkpoint with events before and behind it.")
    stop = marks[-1]
    for events in (stop.count, stop.count + 1):
        found = _count(subject, partition, FIRST, events, ("stop", stop.cursor))
        answer = subject.probe.last
        if found != _Counted(stop.cursor, stop.count):
            fail(f"Up to a stop behind {stop.count} events, the answer is another.", answer)


@check(
    "cursor-of-count-nothing",
    SECTION,
    "Where no event follows, the cursor is the one that was asked for.",
    extension=CURSOR_OF_COUNT,
)
def _nothing(subject: Subject) -> None:
    partition, known = subject.sample(1)
    cursor = known.marks[-1].cursor
    for stop in (cursor, known.marks[0].cursor):
        found = _count(subject, partition, cursor, 5, ("stop", stop))
        if found != _Counted(cursor, 0):
            fail("There is nothing to count, and the answer is another.", subject.probe.last)


@check(
    "cursor-of-count-malformed",
    SECTION,
    "A number of events that is not 1 to 1000000 is 400.",
    extension=CURSOR_OF_COUNT,
)
def _malformed(subject: Subject) -> None:
    common = [("token", subject.token), ("partition", str(subject.partitions()[0]))]
    start, some = ("cursor", FIRST), ("events", "5")
    refused(subject, [*common, some], "A request without a cursor", suffix=_SUFFIX)
    refused(subject, [*common, start], "A request without events", suffix=_SUFFIX)
    for cursor in (LAST, "", "conformance-no-such-cursor"):
        parameters = [*common, some, ("cursor", cursor)]
        refused(subject, parameters, f"cursor={cursor!r}", suffix=_SUFFIX, statuses={400, 410})
    for stop in (FIRST, LAST, "conformance-no-such-cursor"):
        parameters = [*common, start, some, ("stop", stop)]
        refused(subject, parameters, f"stop={stop!r}", suffix=_SUFFIX, statuses={400, 410})
    for events in ("0", "1000001", "-1", "x", "", "1.5"):
        parameters = [*common, start, ("events", events)]
        refused(subject, parameters, f"events={events!r}", suffix=_SUFFIX)
