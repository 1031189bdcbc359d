"""Checks of the extension cursor-of-time."""

from datetime import UTC, datetime, timedelta

import msgspec

from zeroeventhub.conformance.answer import SentEvent
from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import CURSOR_OF_TIME as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import CURSOR_OF_TIME, FIRST, LAST

_SUFFIX = "/cursor"
_LONG_AGO = "1970-01-01T00:00:00Z"
_BAD_TIMES = (
    "",
    "x",
    "1",
    "2026-01-01",
    "2026-02-30T00:00:00Z",
    "2026-01-01T00:00:00",
    "2026-01-01 00:00:00Z",
    "2026-01-01T00:00Z",
    "2026-01-01T00:00:60Z",
)


def _cursor_at(subject: Subject, partition: int, moment: str) -> str:
    common = [("token", subject.token), ("partition", str(partition))]
    answer = subject.probe.ask(_SUFFIX, [*common, ("time", moment)])
    if not answer.ok:
        fail(f"A time was answered with status {answer.status}.", answer)
    if answer.media_type != "application/json":
        fail(f"A cursor came as {answer.media_type or 'nothing in particular'}.", answer)
    try:
        cursor = msgspec.json.decode(answer.body, type=dict[str, object]).get("cursor")
    except (msgspec.DecodeError, RecursionError):
        cursor = None
    if not isinstance(cursor, str) or not cursor or cursor in {FIRST, LAST}:
        fail("The answer holds no real cursor.", answer)
    return cursor


@check("cursor-of-time", SECTION, "The same time gives the same cursor.", extension=CURSOR_OF_TIME)
def _same(subject: Subject) -> None:
    partition, known = subject.sample(1)
    moments = [_LONG_AGO, "1970-01-01T01:00:00+01:00"]
    cursors = {_cursor_at(subject, partition, moment) for moment in (*moments, _LONG_AGO)}
    if len(cursors) > 1:
        fail("The same time gave different cursors.", subject.probe.last)
    times = [time for event in known.events if (time := _time(event)) is not None]
    for time in times[:: max(1, len(times) // 3)][:3]:
        first, second = (_cursor_at(subject, partition, _text(time)) for _ in range(2))
        if first != second:
            fail("The same time gave different cursors.", subject.probe.last)


@check(
    "cursor-of-time-before",
    SECTION,
    "The cursor of a time stands before all events of that time or later.",
    extension=CURSOR_OF_TIME,
)
def _before(subject: Subject) -> None:
    partition, known = subject.sample(1)
    expected = known.events[:20]
    cursor = _cursor_at(subject, partition, _LONG_AGO)
    events = subject.read(partition, cursor, len(expected), [("pagesizehint", "20")])
    subject.expect_same(expected, events, "behind the cursor of 1970")
    places = {event.identity: place for place, event in enumerate(known.events)}
    timed = [(event, time) for event in known.events if (time := _time(event)) is not None]
    if not timed or len(places) < len(known.events):
        skip("Beyond that, the events do not tell their time (CloudEvents do).")
    for _, time in timed[:: max(1, len(timed) // 5)][:5]:
        cursor = _cursor_at(subject, partition, _text(time))
        following = subject.read(partition, cursor, 1, [("pagesizehint", "1")])
        place = places.get(following[0].identity, len(known.events)) if following else len(places)
        left_out = [
            event for event, other in timed if other >= time and places[event.identity] < place
        ]
        if left_out:
            fail(f"{len(left_out)} events of that time or later lie before it.", subject.probe.last)


@check("cursor-of-time-later", SECTION, "A time to come gives a cursor.", extension=CURSOR_OF_TIME)
def _later(subject: Subject) -> None:
    partition, _ = subject.sample()
    moment = _text(datetime.now(UTC) + timedelta(days=1))
    subject.page(partition, _cursor_at(subject, partition, moment))


@check("cursor-of-time-malformed", SECTION, "What is no time is 400.", extension=CURSOR_OF_TIME)
def _malformed(subject: Subject) -> None:
    common = [("token", subject.token), ("partition", str(subject.partitions()[0]))]
    refused(subject, common, "A request without a time", suffix=_SUFFIX)
    for moment in _BAD_TIMES:
        refused(subject, [*common, ("time", moment)], f"time={moment!r}", suffix=_SUFFIX)


def _time(event: SentEvent) -> datetime | None:
    """Return the time of a CloudEvent, if it has one."""
    data = event.data
    if not isinstance(data, dict) or "specversion" not in data:
        return None
    try:
        time = datetime.fromisoformat(str(data.get("time")))
    except ValueError:
        return None
    return time if time.tzinfo else None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
