"""Checks of the extensions with paths or answers of their own."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from zeroeventhub.conformance.answer import (
    Answer,
    Checkpoint,
    PageText,
    SentEvent,
    exact,
    fail,
    skip,
)
from zeroeventhub.conformance.check import check, register
from zeroeventhub.conformance.checks.layout import EXTENSION_REQUESTS
from zeroeventhub.conformance.checks.page_requests import NO_CURSOR
from zeroeventhub.conformance.subject import Subject, Walk, expect
from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.extensions import (
    ARROW,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EXTENSIONS,
    KEY_HISTORY,
    LAG,
    PARTITION,
    REQUIRED,
    SCHEMAS,
    SEGMENTS,
    SPLITS,
    Parameter,
)
from zeroeventhub.protocol import (
    FIRST,
    LAST,
    CountedCursor,
    Event,
    KeyPage,
    Lag,
    Page,
    Schemas,
    Segments,
)
from zeroeventhub.wire import ARROW_TYPE, NDJSON_TYPE
from zeroeventhub.wire.cloud_event import moment
from zeroeventhub.wire.ndjson import PageBounds, encode_page

# Malformed requests.

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


def _bad_values(parameter: Parameter) -> list[str]:
    match parameter.kind:
        case "moment":
            return [*_BAD_TIMES]
        case "number":
            beyond = [] if parameter.most is None else [str(parameter.most + 1)]
            return [str(parameter.least - 1), *beyond, "-1", "x", "", "1.5"]
        case "cursor":
            empty = [""] if parameter.default is REQUIRED else []
            return [*sorted(parameter.refused), NO_CURSOR, *empty]
        case _:
            return []


def _malformed(name: str, sentence: str) -> None:
    """Register a check that an extension refuses parameters that are missing, doubled or bad."""
    extension, valid = EXTENSIONS[name], EXTENSION_REQUESTS[name]

    def run(subject: Subject) -> None:
        place = subject.place() if PARTITION in extension.parameters else []

        def expect_refusal(what: str, *parameters: tuple[str, str], gone: bool = False) -> None:
            answer = subject.probe.ask(f"/{extension.path}", [*place, *parameters])
            expect(answer, what, *((400, 410) if gone else (400,)))

        for one in valid.items():
            rest = [other for other in valid.items() if other != one]
            expect_refusal(f"A request without {one[0]}", *rest)
            expect_refusal(f"A request with {one[0]} twice", *rest, one, one)
        for parameter in extension.parameters:
            rest = [other for other in valid.items() if other[0] != parameter.name]
            for value in _bad_values(parameter):
                what, is_cursor = f"{parameter.name}={value!r}", parameter.kind == "cursor"
                expect_refusal(what, *rest, (parameter.name, value), gone=is_cursor)

    register(name, f"{name}-malformed", sentence, run)


# The cursor of a time.

_LONG_AGO = "1970-01-01T00:00:00Z"


def _cursor_at(subject: Subject, partition: int, moment: str) -> str:
    cursor: str = subject.get(CURSOR_OF_TIME, partition, time=moment)
    return cursor


@check(CURSOR_OF_TIME, "The same time gives the same cursor.", needs=1)
def cursor_of_time(subject: Subject, partition: int, known: Walk) -> None:
    times = [time for event in known.events if (time := _time(event)) is not None]
    chosen = times[:: max(1, len(times) // 3)][:3]
    pairs = [(_LONG_AGO, "1970-01-01T01:00:00+01:00"), (_LONG_AGO, _LONG_AGO)]
    for pair in [*pairs, *((_text(time), _text(time)) for time in chosen)]:
        first, second = (_cursor_at(subject, partition, moment) for moment in pair)
        if first != second:
            fail("The same time gave different cursors.")


@check(
    CURSOR_OF_TIME, "The cursor of a time stands before all events of that time or later.", needs=1
)
def cursor_of_time_before(subject: Subject, partition: int, known: Walk) -> None:
    expected = known.events[:20]
    cursor = _cursor_at(subject, partition, _LONG_AGO)
    events = subject.read(partition, cursor, len(expected), [("pagesizehint", "20")])
    subject.expect_same(expected, events, "after the cursor of 1970")
    places = {event.identity: place for place, event in enumerate(known.events)}
    timed = [(event, time) for event in known.events if (time := _time(event)) is not None]
    if not timed or len(places) < len(known.events):
        skip("The rest is not checked: only CloudEvents have a time.")
    for _, time in timed[:: max(1, len(timed) // 5)][:5]:
        cursor = _cursor_at(subject, partition, _text(time))
        following = subject.read(partition, cursor, 1, [("pagesizehint", "1")])
        place = places.get(following[0].identity, len(places)) if following else len(places)
        left_out = sum(other >= time and places[event.identity] < place for event, other in timed)
        if left_out:
            fail(f"{left_out} events of that time or later lie before it.")


@check(CURSOR_OF_TIME, "A time in the future gives a cursor.", needs=0)
def cursor_of_time_later(subject: Subject, partition: int, _known: Walk) -> None:
    moment = _text(datetime.now(UTC) + timedelta(days=1))
    subject.page(partition, _cursor_at(subject, partition, moment))


_malformed(CURSOR_OF_TIME, "A malformed time is 400.")


def _time(event: SentEvent) -> datetime | None:
    """Return the time of a CloudEvent, if it has one."""
    return moment(str(event.cloud_event.get("time")))


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


# Splits.

_PIECES = 4


def _split(subject: Subject, partition: int, count: int, **bounds: str) -> list[str]:
    cursors: list[str] = subject.get(SPLITS, partition, count=str(count), **bounds)
    if len(cursors) > count + 1:
        fail(f"{len(cursors) - 1} pieces came, but {count} were requested.")
    return cursors


def _read_pieces(subject: Subject, partition: int, cursors: list[str]) -> list[SentEvent]:
    return [
        event
        for start, stop in pairwise(cursors)
        if start != stop
        for event in subject.read_until(partition, start, stop, 1000)
    ]


@check(SPLITS, "The pieces, read one after the other, are the whole.", needs=1)
def splits(subject: Subject, partition: int, known: Walk) -> None:
    bounds = {} if known.at_head else {"stop": known.checkpoints[-1].cursor}
    cursors = _split(subject, partition, _PIECES, **bounds)
    subject.expect_same(known.events, _read_pieces(subject, partition, cursors), "in pieces")


@check(SPLITS, "The pieces lie between cursor and stop.", needs=3)
def splits_bounds(subject: Subject, partition: int, known: Walk) -> None:
    start, stop = known.need_inner()[0], known.checkpoints[-1]
    cursors = _split(subject, partition, _PIECES, cursor=start.cursor, stop=stop.cursor)
    if (cursors[0], cursors[-1]) != (start.cursor, stop.cursor):
        fail("The first and the last boundary are not the requested ones.")
    events = _read_pieces(subject, partition, cursors)
    subject.expect_same(known.events[start.count : stop.count], events, "in pieces")
    if len(events) != stop.count - start.count:
        fail(f"{len(events)} events came in pieces of {stop.count - start.count}.")


@check(SPLITS, "One piece has two boundaries.", needs=0)
def splits_one(subject: Subject, partition: int, _known: Walk) -> None:
    _split(subject, partition, 1)


_malformed(SPLITS, "A count that is not 1 to 1000 is 400.")


# Lag.


def _lag(subject: Subject, partition: int, cursor: str) -> Lag:
    found: Lag = subject.get(LAG, partition, cursor=cursor)
    _expect_more(subject)
    return found


def _expect_more(subject: Subject) -> None:
    """Fail if the last answer has a member `more` that is not true, which clients ignore."""
    document = subject.probe.last and subject.probe.last.document
    if isinstance(document, dict) and document.get("more", True) is not True:
        fail("The member more has another value than true.")


@check(LAG, "As many events follow a cursor as lag says.", needs=1)
def lag(subject: Subject, partition: int, known: Walk) -> None:
    places = [Checkpoint(FIRST, 0), *known.checkpoints]
    for place in places[:: max(1, len(places) // 3)]:
        found = _lag(subject, partition, place.cursor)
        answer, counted = subject.probe.last, found.events
        # What has been read was settled then; more may have come since.
        if found.exact and counted < len(known.events) - place.count:
            fail(f"{counted} events were counted, and more can be read.")
        if known.at_head:
            events = subject.read(partition, place.cursor, counted, [("pagesizehint", "1000")])
            if len(events) < counted:
                fail(f"{counted} events were counted; {len(events)} can be read.", answer)


@check(LAG, "After _last there are 0 events, 0 seconds old.", needs=0)
def lag_head(subject: Subject, partition: int, _known: Walk) -> None:
    found = _lag(subject, partition, LAST)
    if replace(found, seconds=found.seconds or 0) != Lag(0, 0):  # or a publisher without times
        fail("The lag after _last is not 0 events and 0 seconds.")


_malformed(LAG, "The lag of a malformed cursor is refused.")


# Pages as Arrow.

_PREFERRED = f"{ARROW_TYPE}, {NDJSON_TYPE};q=0.5"
_NOT_PREFERRED = (
    None,
    "*/*",
    NDJSON_TYPE,
    f"{ARROW_TYPE};q=0",
    f"{ARROW_TYPE};q=0.5, {NDJSON_TYPE}",
    f"{ARROW_TYPE};q=0.5, */*",
)


def _accepting(subject: Subject, partition: int, cursor: str, accept: str | None) -> Answer:
    headers = {} if accept is None else {"Accept": accept}
    answer = subject.ask(partition, cursor, [("pagesizehint", "5")], headers=headers)
    if accept == _PREFERRED and not (answer.ok and answer.media_type == ARROW_TYPE):
        fail(f"Arrow was requested; {answer.status}, {answer.media_type} came.")
    return answer


def _places(subject: Subject) -> tuple[int, list[str]]:
    partition, known = subject.sample(1)
    return partition, [FIRST, *[one.cursor for one in known.checkpoints[-3:]]]


@check(ARROW, "A page is the same as Arrow and in lines.")
def arrow(subject: Subject) -> None:
    if find_spec("pyarrow") is None:
        skip("The check needs pyarrow, which the extra [arrow] installs.")
    partition, places = _places(subject)
    for cursor in places:
        before, answer, after = (
            _accepting(subject, partition, cursor, accept)
            for accept in (NDJSON_TYPE, _PREFERRED, NDJSON_TYPE)
        )
        # Where something has come meanwhile, they need not be the same.
        if before.body != after.body:
            continue
        found, expected = _lines_of(answer, partition), PageText.of(after.body)
        if [e.identity for e in found.settled] != [e.identity for e in expected.settled]:
            fail("The page has other events as Arrow than it has in lines.", answer)
        if found.end != expected.end:
            fail("The page has another checkpoint as Arrow than it has in lines.", answer)


def _lines_of(answer: Answer, partition: int) -> PageText:
    """Read a page as Arrow, as if it had come in lines."""
    from zeroeventhub.wire.arrow import ArrowDecoder  # noqa: PLC0415 - of another extra

    decoder = ArrowDecoder(partition, PageBounds())
    try:
        decoder.feed(answer.body)
        page = decoder.page()
    except ZeroEventHubError as error:
        fail(f"The Arrow stream is not a page: {error}", answer)
    rows = [row for batch in page.batches for row in batch.to_pylist()]
    events = [Event(row["data"].encode()) for row in rows]
    return PageText.of(encode_page(Page(events, page.cursor, page.caught_up, page.stop_reached)))


@check(ARROW, "A client that does not prefer Arrow gets lines.")
def arrow_others(subject: Subject) -> None:
    partition, places = _places(subject)
    for accept in _NOT_PREFERRED:
        if _accepting(subject, partition, places[0], accept).media_type == ARROW_TYPE:
            fail(f"Arrow came to a request with Accept: {accept or 'nothing'}.")


@check(ARROW, "Caches distinguish the two forms of a page.")
def arrow_caching(subject: Subject) -> None:
    partition, places = _places(subject)
    for cursor in places:
        forms = [_accepting(subject, partition, cursor, one) for one in (NDJSON_TYPE, _PREFERRED)]
        for answer in forms:
            named = answer.headers.get("vary", "").lower().split(",")
            if not {"accept", "*"} & {name.strip() for name in named}:
                fail("A page does not say Vary: Accept.", answer)
        lines, arrow = (answer.headers.get("etag") for answer in forms)
        if arrow and arrow == lines:
            fail("Both forms of a page have the same ETag.")


# The cursor of a count.

_PORTIONS = (1, 7, 30)


def _count(
    subject: Subject, partition: int, cursor: str, events: int, stop: str | None = None
) -> CountedCursor:
    found: CountedCursor = subject.get(
        CURSOR_OF_COUNT, partition, cursor=cursor, events=str(events), stop=stop
    )
    if found.events > events:
        fail(f"{found.events} events were counted, but {events} were requested.")
    return found


@check(CURSOR_OF_COUNT, "Up to the cursor lie as many events as its answer says.", needs=1)
def cursor_of_count(subject: Subject, partition: int, known: Walk) -> None:
    for portion in _PORTIONS:
        cursor, seen = FIRST, 0
        for _ in _PORTIONS:
            found = _count(subject, partition, cursor, portion)
            answer = subject.probe.last
            # What has been read was settled then; more may have come since.
            if found.events < min(portion, len(known.events) - seen):
                fail(f"{found.events} events were counted, and more can be read.")
            if not found.events:
                break
            events = subject.read_until(partition, cursor, found.cursor)
            if len(events) != found.events:
                fail(f"{found.events} events were counted; {len(events)} can be read.", answer)
            subject.expect_same(known.events[seen:][: len(events)], events, "up to a count")
            cursor, seen = found.cursor, seen + found.events


@check(
    CURSOR_OF_COUNT,
    "Where there are fewer events before the stop, the cursor is the stop.",
    needs=2,
)
def cursor_of_count_stop(subject: Subject, partition: int, known: Walk) -> None:
    stop = known.need_inner()[-1]
    for events in (stop.count, stop.count + 1):
        found = _count(subject, partition, FIRST, events, stop.cursor)
        if found != CountedCursor(stop.cursor, stop.count):
            fail(f"With a stop after {stop.count} events, the answer is not that stop and number.")


@check(CURSOR_OF_COUNT, "If no event follows, the cursor is the requested one.", needs=1)
def cursor_of_count_nothing(subject: Subject, partition: int, known: Walk) -> None:
    cursor = known.checkpoints[-1].cursor
    for stop in (cursor, known.checkpoints[0].cursor):
        if _count(subject, partition, cursor, 5, stop) != CountedCursor(cursor, 0):
            fail("There is nothing to count, but the answer is not 0 events and the same cursor.")


_malformed(CURSOR_OF_COUNT, "A number of events that is not 1 to 1000000 is 400.")


# The history of a key.

_MOST = 5
"""How many events of a key are read one by one."""


def _history(subject: Subject, key: str, after: int = 0, **extra: str) -> KeyPage:
    given = {"key": key, "after-version": str(after), **extra}
    found: KeyPage = subject.get(KEY_HISTORY, None, **given)
    if found.versions and found.versions[0] <= after:
        fail("The versions do not rise from the requested one.")
    _expect_more(subject)
    return found


def _sent(event: Event) -> SentEvent:
    """Decode an event as those of pages are, so that numbers are exact."""
    return SentEvent(json.loads(event.raw, parse_float=exact, parse_int=exact))


def _key(subject: Subject) -> tuple[str, list[str]]:
    """Return a key that has versions, and those of its events that pages have shown."""
    _, known = subject.sample(1)
    keys: dict[str, list[str]] = {}
    for event in known.events:
        key = event.data.get("partitionkey") if isinstance(event.data, dict) else None
        if isinstance(key, str):
            keys.setdefault(key, []).append(event.identity)
    most = sorted(keys, key=lambda key: -len(keys[key]))[:_MOST]
    found = next((key for key in most if _history(subject, key).events), None)
    if found is None:
        skip("The check needs events with a partitionkey that has versions.")
    return found, keys[found]


@check(KEY_HISTORY, "The events of a key are those of its pages, in rising versions.")
def key_history(subject: Subject) -> None:
    key, shown = _key(subject)
    events = [_sent(event) for event in _history(subject, key).events]
    if any(not isinstance(e.data, dict) or e.data.get("partitionkey") != key for e in events):
        fail("There is an event of another key.")
    # Pages may hold events without a version as well, and not yet the newest ones.
    found = [event.identity for event in events]
    both = [one for one in found if one in shown]
    if not both or both != [one for one in shown if one in found]:
        fail("The events of the key are not those of its pages, in their order.")


@check(KEY_HISTORY, "Read one by one, the events of a key are the same.")
def key_history_pages(subject: Subject) -> None:
    key, _ = _key(subject)
    whole = _history(subject, key)
    after = 0
    for expected in [*zip(whole.versions, whole.events, strict=True)][:_MOST]:
        one = _history(subject, key, after, pagesizehint="1")
        if [*zip(one.versions, one.events, strict=True)] != [expected]:
            fail(f"One event was asked for after version {after}, and another answer came.")
        after = expected[0]
        if after != whole.versions[-1] and not one.more:
            fail("There are more events, but the answer does not say so.")


@check(KEY_HISTORY, "Of an unknown key, and after the last version, there are no events.")
def key_history_nothing(subject: Subject) -> None:
    for name in ("conformance-no-such-key", "", "' OR 1=1 --", "\u2028"):
        if _history(subject, name).events:
            fail(f"There are events of the key {name!r}.")
    if _history(subject, _key(subject)[0], 10**15).events:
        fail("There are events after a version that was never given.")


_malformed(KEY_HISTORY, "A request without a key, or with a malformed version, is 400.")


# Segments of the archive.

_MOST_FILES = 100


def _files(subject: Subject, partition: int, cursor: str) -> Segments:
    found: Segments = subject.get(SEGMENTS, partition, cursor=cursor)
    if len(found.parts) > _MOST_FILES:
        fail(f"{len(found.parts)} files were named; {_MOST_FILES} are allowed.")
    return found


@check(SEGMENTS, "Files follow each other, and pages go on after them.", needs=1)
def segments(subject: Subject, partition: int, known: Walk) -> None:
    found = _files(subject, partition, FIRST)
    end = 0
    if not found.parts:
        skip("No events of the partition are in files.")
    for one in found.parts:
        if not one.url.startswith(("https://", "http://", "file://")) or one.size < 1:
            fail("A file has no URL that can be read, or no size.")
        if one.after < end:
            fail("A file does not begin after the one before.")
        end = one.upto
    if found.cursor != found.parts[-1].cursor:
        fail("The cursor is not the last file's.")
    events = subject.read_until(partition, FIRST, found.cursor)
    subject.expect_same(known.events[: len(events)], events, "up to the end of files")


@check(SEGMENTS, "After the last file the answer has no file, and the requested cursor.", needs=1)
def segments_end(subject: Subject, partition: int, _known: Walk) -> None:
    cursor, found = FIRST, _files(subject, partition, FIRST)
    while found.parts:
        if found.cursor == cursor:
            fail("The answer has files, but the requested cursor.")
        cursor = found.cursor
        found = _files(subject, partition, cursor)
    if cursor not in {FIRST, found.cursor}:
        fail("The answer has no file, but another cursor than the requested one.")


_malformed(SEGMENTS, "A request for files from a malformed cursor, or from _last, is 400.")


# Schemas.


@check(SCHEMAS, "The schema of a type alone is the one in the answer of all.")
def schemas(subject: Subject) -> None:
    found: Schemas = subject.get(SCHEMAS, None)
    for name, schema in found.types.items():
        answer = expect(subject.probe.ask("/schema", [("type", name)]), f"The schema of {name!r}")
        if answer.media_type != "application/schema+json":
            fail(f"The schema of {name!r} came as {answer.media_type}.", answer)
        if _json(answer) != schema:
            fail(f"The schema of {name!r} alone is another one.", answer)


@check(SCHEMAS, "A type without a schema is 404, and a request without a type 400.")
def schemas_unknown(subject: Subject) -> None:
    unknown = subject.probe.ask("/schema", [("type", "conformance.unknown")])
    expect(unknown, "A type without a schema", 404)
    expect(subject.probe.ask("/schema"), "A request for a schema without a type", 400)


@check(SCHEMAS, "The AsyncAPI document names the types that have schemas.")
def schemas_asyncapi(subject: Subject) -> None:
    found: Schemas = subject.get(SCHEMAS, None)
    answer = expect(subject.probe.ask("/asyncapi"), "A request for the AsyncAPI document")
    if answer.media_type != "application/vnd.aai.asyncapi+json":
        fail(f"The AsyncAPI document came as {answer.media_type}.", answer)
    try:
        channels = _json(answer)["channels"].values()
        names = {one["name"] for channel in channels for one in channel["messages"].values()}
    except (AttributeError, KeyError, TypeError):
        fail("It has no channels with messages that have names.", answer)
    if names != found.types.keys():
        fail("It names other types.", answer)


def _json(answer: Answer) -> Any:
    if answer.document is None:
        fail("The answer is not JSON.", answer)
    return answer.document
