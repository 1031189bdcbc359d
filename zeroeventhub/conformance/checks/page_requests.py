"""Checks of requests for pages: parameters, methods, event-types, caught-up, stop and wait."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from zeroeventhub.conformance.answer import Checkpoint, SentEvent, fail, note, skip
from zeroeventhub.conformance.check import check, register
from zeroeventhub.conformance.subject import Subject, Walk, expect
from zeroeventhub.extensions import CAUGHT_UP, EVENT_TYPES, STOP, WAIT
from zeroeventhub.protocol import FIRST, LAST

NO_CURSOR = "conformance-no-such-cursor"
"""Text in the form of a cursor, which no feed has given."""

BAD_CURSOR_STATUSES = (400, 410, 414, 431)
_NOT_IMPLEMENTED = 501
_SHOWN = 26

_BAD_CURSORS = (
    NO_CURSOR,
    "_nonsense",
    "",
    "' OR 1=1 --",
    "5" * 5000,
    "\u00e9",
    "\x00",
    b"\xff\xfe",
)
_BAD_NUMBERS = ("x", "-1", "+1", " 1", "1.5", "", "\u0661", "1_0", "0x1", "1e3")


def _shown(value: str | bytes) -> str:
    return f"{value[:_SHOWN]!r}" + ("…" if len(value) > _SHOWN else "")


def expect_refusals(subject: Subject, name: str, values: Sequence[str], *statuses: int) -> None:
    """Expect that requests for a page with these values of a parameter are refused, with 400."""
    for value in values:
        answer = subject.send([*subject.parameters(), (name, value)])
        expect(answer, f"{name}={_shown(value)}", *(statuses or (400,)))


@check("4", "A request without a partition is answered with 400.")
def partition_missing(subject: Subject) -> None:
    token, _, cursor = subject.parameters()
    expect(subject.send([token, cursor]), "A request without partition", 400)


@check("2.1", "A malformed partition is answered with 400.")
def partition_malformed(subject: Subject) -> None:
    for number in (*_BAD_NUMBERS, "9" * 40):
        answer = subject.send(subject.parameters(number))
        expect(answer, f"Partition {_shown(number)}", 400)


@check("4", "A partition that the feed does not have is 400.")
def partition_unknown(subject: Subject) -> None:
    known = subject.partitions()
    for partition in {32767, max(known) + 1} - set(known):
        answer = subject.send(subject.parameters(partition))
        expect(answer, f"Partition {partition}", 400)


@check("4", "A request without a cursor is answered with 400.", v1=True)
def cursor_missing(subject: Subject) -> None:
    expect(subject.send(subject.parameters()[:-1]), "A request without cursor", 400)


@check(
    "7.1",
    "A cursor that the feed has not given is refused, never taken for an empty page.",
    v1=True,
)
def cursor_malformed(subject: Subject) -> None:
    for cursor in _BAD_CURSORS:
        answer = subject.send(subject.parameters(cursor=cursor))
        expect(answer, f"The cursor {_shown(cursor)}", *BAD_CURSOR_STATUSES)


@check("2.1", "A parameter that occurs twice is answered with 400.", v1=True)
def parameters_twice(subject: Subject) -> None:
    complete = [*subject.parameters(), ("pagesizehint", "1")]
    for parameter in complete:
        expect(subject.send([*complete, parameter]), f"{parameter[0]} twice", 400)


@check("2.1", "A parameter that the feed does not know is ignored.", v1=True)
def parameters_unknown(subject: Subject) -> None:
    unknown = ("conformance-unknown", "1")
    answer = subject.ask(subject.partitions()[0], FIRST, [unknown, unknown, ("pagesizehint", "1")])
    expect(answer, "An unknown parameter")


@check("2.1", "Leading zeros of a number are ignored.")
def numbers(subject: Subject) -> None:
    padded = subject.parameters(f"000{subject.partitions()[0]}")
    answer = subject.send([*padded, ("pagesizehint", "0001")])
    expect(answer, "A number with leading zeros")


@check("2.1", "The form is checked before the token, and the token before the partition.")
def faults_order(subject: Subject) -> None:
    _, _, cursor = subject.parameters()
    token = ("token", "conformance")
    unknown = ("partition", str(max(subject.partitions()) + 1))
    answer = subject.send([token, ("partition", "x"), cursor])
    expect(answer, "A bad form with a bad token", 400)
    answer = subject.send([token, unknown, cursor])
    expect(answer, "A bad token with an unknown partition", 409)


@check("2.1", "A Range is ignored: a part of a page would be a cut page.")
def range_(subject: Subject) -> None:
    answer = subject.ask(subject.partitions()[0], FIRST, headers={"Range": "bytes=0-3"})
    expect(answer, "A request with a Range")


@check("2.1", "Methods other than GET and HEAD are answered with 405 and Allow.")
def methods(subject: Subject) -> None:
    # PROPFIND asks for properties, and changes nothing wherever it is understood.
    for suffix, parameters in (("", []), ("/events", subject.parameters())):
        answer = subject.probe.ask(suffix, parameters, method="PROPFIND")
        if answer.status == _NOT_IMPLEMENTED:
            note("It was answered with 501.", answer)
        expect(answer, "PROPFIND", 405)
        if "allow" not in answer.headers:
            fail("The answer does not say what is allowed.")


@check("2.1", "A hint that is not a number is answered with 400.", v1=True)
def pagesizehint_malformed(subject: Subject) -> None:
    expect_refusals(subject, "pagesizehint", _BAD_NUMBERS)


def _size(section: str, name: str, sentence: str, hints: Sequence[str], most: int) -> None:
    """Register a check of the page that comes with hints, and of what follows it."""

    def run(subject: Subject) -> None:
        partition, known = subject.sample()
        for hint in hints:
            extra = [("pagesizehint", hint)]
            page = subject.page(partition, FIRST, extra)
            answer = subject.probe.last
            events = list(page.settled)
            wanted = min(3, len(known.events))
            if len(events) < wanted:
                events += subject.read(partition, page.cursor, wanted - len(events), extra)
            compared = max(wanted, min(len(events), len(known.events)))
            subject.expect_same(known.events[:compared], events, f"with the hint {hint[:13]}")
            if len(page.events) > most:
                fail(f"{len(page.events)} events came; at most {most} were requested.", answer)

    register(section, name, sentence, run, v1=True)


_size("4", "pagesizehint-one", "A hint of 1 gives one event, and moves on.", ["1"], 1)
_size("4", "pagesizehint-zero", "A hint of 0 counts as 1.", ["0"], 1)
_size(
    "4",
    "pagesizehint-huge",
    "A hint of any size gives 10,000 events at most.",
    ["1000000000000", "9" * 40],
    10_000,
)


# Types of events.

_NO_TYPE = "conformance.no.such.type"
_ONLY = "event-types"
_SKIP = "skip-event-types"
_MOST_PAGES = 60
_is_name = re.compile(r"[ -:<-~]{1,256}(?<!\*)").fullmatch
_BAD_TYPES = (";".join(f"conformance{number}" for number in range(101)), "a" * 300, "\u00e9", "a.*")


@check("9.1", "A feed that does not list event-types sends events of all types.")
def event_types_unlisted(subject: Subject) -> None:
    if EVENT_TYPES in subject.extensions:
        skip("The feed lists event-types.")
    partition, known = subject.sample(1)
    what = "of a feed that lists no event-types"
    _expect(subject, partition, known.events[:25], (_ONLY, _NO_TYPE), what)


@check(EVENT_TYPES, "event-types and skip-event-types at once are 400.")
def event_types_both(subject: Subject) -> None:
    answer = subject.send([*subject.parameters(), (_ONLY, "a"), (_SKIP, "b")])
    expect(answer, "A request with both", 400)


@check(EVENT_TYPES, "Only events of the requested types come.", needs=1)
def event_types(subject: Subject, partition: int, known: Walk) -> None:
    if subject.page(partition, FIRST, [(_ONLY, _NO_TYPE)]).events:
        fail("An event of a type came that was not requested.")
    for name in _types(known):
        expected = [event for event in known.events if _is_of(event, name)]
        _expect(subject, partition, expected, (_ONLY, f";{name};{_NO_TYPE}"), f"of type {name}")


@check(EVENT_TYPES, "Events of the types to skip do not come.", needs=1)
def event_types_skip(subject: Subject, partition: int, known: Walk) -> None:
    _expect(subject, partition, known.events[:200], (_SKIP, _NO_TYPE), "with nothing to skip")
    for name in _types(known):
        expected = [event for event in known.events if not _is_of(event, name)]
        if expected:
            _expect(subject, partition, expected, (_SKIP, name), f"without type {name}")


@check(EVENT_TYPES, "The case of a type's name does not matter.", needs=1)
def event_types_case(subject: Subject, partition: int, known: Walk) -> None:
    names = _types(known)
    if not names:
        skip("It takes CloudEvents with types that a request can name.")
    for name in names:
        expected = [event for event in known.events if _is_of(event, name)]
        _expect(subject, partition, expected, (_ONLY, name.swapcase()), f"of {name.swapcase()}")


@check(EVENT_TYPES, "The checkpoint moves on over events that are left out.", needs=1)
def event_types_checkpoint(subject: Subject, partition: int, known: Walk) -> None:
    for page, _ in islice(subject.follow(partition, FIRST, [(_ONLY, _NO_TYPE)]), _MOST_PAGES):
        if page.end.caught_up:
            break
    answer = subject.probe.last
    following = subject.page(partition, page.cursor, [("pagesizehint", "1")]).events
    # The events of the walk have been passed, as far as the walk went.
    old = {event.identity for event in known.events}
    if len(old) == len(known.events) and following and following[0].identity in old:
        fail("With every event left out the checkpoint stays before them.", answer)


@check(EVENT_TYPES, "A list without a type is ignored.", needs=1)
def event_types_empty(subject: Subject, partition: int, known: Walk) -> None:
    for parameter in ((_ONLY, ""), (_SKIP, ";;")):
        _expect(subject, partition, known.events[:25], parameter, "with a list without a type")


@check(EVENT_TYPES, "A list of too many types, or with a malformed one, is 400.")
def event_types_malformed(subject: Subject) -> None:
    for name in (_ONLY, _SKIP):
        expect_refusals(subject, name, _BAD_TYPES)


def _expect(
    subject: Subject,
    partition: int,
    expected: list[SentEvent],
    parameter: tuple[str, str],
    what: str,
) -> None:
    events = subject.read(partition, FIRST, len(expected), [parameter, ("pagesizehint", "100")])
    subject.expect_same(expected, events, what)


def _types(known: Walk) -> list[str]:
    """Return the most frequent types that a request can name, the rarest of them last."""
    names = Counter(name for event in known.events if (name := _type(event)) is not None)
    return [name for name, _ in names.most_common() if _is_name(name)][:3]


def _is_of(event: SentEvent, name: str) -> bool:
    """Return whether an event is of a type, whose case does not matter."""
    own = _type(event)
    return own is not None and own.isascii() and own.lower() == name.lower()


def _type(event: SentEvent) -> str | None:
    """Return the type of a CloudEvent; None for any other event."""
    name = event.cloud_event.get("type")
    return name if isinstance(name, str) else None


# The flag of the head.


@check(CAUGHT_UP, "At the head the checkpoint says caughtUp.", needs=0)
def caught_up(subject: Subject, partition: int, _known: Walk) -> None:
    for _ in range(3):
        cursor, _ = subject.head(partition)
        page = subject.page(partition, cursor)
        if page.end.caught_up:
            return
    fail("At the head no checkpoint says caughtUp.")


@check(CAUGHT_UP, "Before the head no checkpoint says caughtUp.", needs=2)
def caught_up_early(subject: Subject, partition: int, known: Walk) -> None:
    for start in [Checkpoint(FIRST, 0), *known.inner[:5]]:
        page = subject.page(partition, start.cursor, [("pagesizehint", "1")])
        if page.end.caught_up and start.count + len(page.settled) < len(known.events):
            fail("A checkpoint says caughtUp, and events follow it.")
    for answer, page in subject.pages:
        if any(one.caught_up for one in page.checkpoints[:-1]):
            fail("A checkpoint says caughtUp, and more of its page follows.", answer)


# Bounded reads.


def _stops(subject: Subject) -> tuple[int, list[Checkpoint], list[SentEvent]]:
    """Return a partition, two checkpoints to stop at, and the events before and after them."""
    partition, known = subject.sample(2)
    inner = known.inner
    if not inner:
        # Small feeds come in one page; a page of one event gives a cursor in the middle.
        end = subject.page(partition, FIRST, [("pagesizehint", "1")]).end
        if not 0 < end.count < len(known.events):
            known.need_inner()
        inner = [end]
    return partition, [inner[len(inner) // 2], inner[0]], known.events


@check(STOP, "A read ends exactly at its stop, and says so.")
def stop(subject: Subject) -> None:
    partition, stops, known = _stops(subject)
    for stop in stops:
        for hint in (1000, 7):
            events = subject.read_until(partition, FIRST, stop.cursor, hint)
            subject.expect_same(known[: stop.count], events, "up to a stop")
            if len(events) > stop.count:
                fail(f"{len(events) - stop.count} events after the stop came.")


@check(STOP, "A bounded read gives the same each time.")
def stop_replay(subject: Subject) -> None:
    partition, stops, _ = _stops(subject)
    stop = stops[0].cursor
    first, second = (subject.read_until(partition, FIRST, stop, 11) for _ in range(2))
    subject.expect_same(first, second, "when it was read again")
    if len(first) != len(second):
        fail("A bounded read gave another number of events.")


@check(STOP, "From its stop or after it, a read is an empty page.")
def stop_behind(subject: Subject) -> None:
    partition, stops, _ = _stops(subject)
    stop = stops[0].cursor
    for cursor in (stop, subject.page(partition, stop, [("pagesizehint", "1")]).cursor):
        page = subject.page(partition, cursor, [("stop", stop)])
        if page.cursor != cursor:
            fail("A read from after its stop moves back.")
        if page.events or not page.end.stop_reached:
            fail("A read from after its stop is not an empty page that says so.")


@check(STOP, "A stop that the feed has not given is 400.")
def stop_malformed(subject: Subject) -> None:
    stops = (NO_CURSOR, "", "\x00", FIRST, LAST)
    expect_refusals(subject, "stop", stops, *BAD_CURSOR_STATUSES)


# Long polls.

_SLACK = 3.0
_EARLY = 0.1
_AT_ONCE = 2.0


@check(WAIT, "At the head an answer is held until the wait is over.", needs=0)
def wait(subject: Subject, partition: int, _known: Walk) -> None:
    for wait in ("1", "0.5"):
        for _ in range(3):
            cursor, _ = subject.head(partition)
            answer = subject.ask(partition, cursor, [("wait", wait)])
            page = subject.understand(answer, partition)
            if answer.seconds > float(wait) + _SLACK:
                fail(f"wait={wait} took {answer.seconds:.1f} s.")
            if not page.events and page.cursor == cursor:
                break
        else:
            skip("The feed is being written to.", answer)
        if answer.seconds < float(wait) - _EARLY:
            fail(f"With wait={wait} an empty page came after {answer.seconds:.2f} s.")


@check(WAIT, "If there are events, the answer comes at once.", needs=1)
def wait_events(subject: Subject, partition: int, _known: Walk) -> None:
    for wait in ("3", "999999999"):
        answer = subject.ask(partition, FIRST, [("pagesizehint", "1"), ("wait", wait)])
        subject.understand(answer, partition)
        if answer.seconds > _AT_ONCE:
            fail(f"Events that were there came after {answer.seconds:.1f} s.")


@check(WAIT, "The page of _last comes at once.")
def wait_last(subject: Subject) -> None:
    answer = subject.ask(subject.partitions()[0], LAST, [("wait", "3")])
    if answer.seconds > _AT_ONCE:
        fail(f"The page of _last came after {answer.seconds:.1f} s.")


@check(WAIT, "HEAD comes at once.", needs=0)
def wait_head(subject: Subject, partition: int, _known: Walk) -> None:
    cursor, _ = subject.head(partition)
    answer = subject.ask(partition, cursor, [("wait", "3")], method="HEAD")
    if answer.seconds > _AT_ONCE:
        fail(f"The answer to HEAD came after {answer.seconds:.1f} s.")


@check(WAIT, "A wait that is not a number is 400.")
def wait_malformed(subject: Subject) -> None:
    waits = ("x", "-1", "1e1", "", ".5", "5.", "1.2.3", "NaN", "\u0661", "1" * 10)
    expect_refusals(subject, "wait", waits)
