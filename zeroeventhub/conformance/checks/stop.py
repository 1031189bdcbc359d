"""Checks of the extension stop."""

from zeroeventhub.conformance.answer import SentEvent
from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import Finding, Outcome, fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import STOP as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.conformance.walk import WalkMark
from zeroeventhub.protocol import FIRST, LAST, STOP

_STATUSES = {400, 410, 414, 431}
_MOST_PAGES = 400


def read_until(
    subject: Subject, partition: int, start: str, stop: str, hint: str = "25"
) -> list[SentEvent]:
    """Read from a cursor until the publisher says that the stop is reached."""
    cursor = start
    events: list[SentEvent] = []
    for _ in range(_MOST_PAGES):
        page = subject.page(partition, cursor, [("stop", stop), ("pagesizehint", hint)])
        events += page.settled
        mark = page.marks[-1]
        if mark.stop_reached is True:
            if mark.cursor != stop:
                fail("The checkpoint that says stopReached is not the stop.", subject.probe.last)
            return events
        if not page.settled and mark.cursor == cursor:
            fail("The stop is never said to be reached.", subject.probe.last)
        cursor = mark.cursor
    raise Finding(Outcome.FAIL, "The stop is never said to be reached.", subject.probe.last)


def _marks(subject: Subject) -> tuple[int, list[WalkMark], list[SentEvent]]:
    partition, known = subject.sample(2)
    marks = known.ends()
    if not marks:
        # Small feeds come in one page; a page of one event gives a cursor in the middle.
        page = subject.page(partition, FIRST, [("pagesizehint", "1")])
        if not 0 < len(page.settled) < len(known.events):
            skip("There is no checkpoint with events before and behind it.")
        marks = [WalkMark(page.cursor, len(page.settled), inside=False)]
    return partition, [marks[len(marks) // 2], marks[0]], known.events


@check("stop", SECTION, "A read ends exactly at its stop, and says so.", extension=STOP)
def _exact(subject: Subject) -> None:
    partition, marks, known = _marks(subject)
    for mark in marks:
        for hint in ("1000", "7"):
            events = read_until(subject, partition, FIRST, mark.cursor, hint)
            subject.expect_same(known[: mark.count], events, "up to a stop")
            if len(events) > mark.count:
                fail(f"{len(events) - mark.count} events behind the stop came.", subject.probe.last)


@check("stop-replay", SECTION, "A bounded read gives the same each time.", extension=STOP)
def _replay(subject: Subject) -> None:
    partition, marks, _ = _marks(subject)
    stop = marks[0].cursor
    first, second = (read_until(subject, partition, FIRST, stop, "11") for _ in range(2))
    subject.expect_same(first, second, "when it was read again")
    if len(first) != len(second):
        fail("A bounded read gave another number of events.", subject.probe.last)


@check(
    "stop-behind", SECTION, "From its stop or behind it, a read is an empty page.", extension=STOP
)
def _behind(subject: Subject) -> None:
    partition, marks, _ = _marks(subject)
    page_behind = subject.page(partition, marks[0].cursor, [("pagesizehint", "1")])
    for cursor in (marks[0].cursor, page_behind.cursor):
        page = subject.page(partition, cursor, [("stop", marks[0].cursor)])
        if page.cursor != cursor:
            fail("A read from behind its stop moves back.", subject.probe.last)
        if page.events or page.marks[-1].stop_reached is not True:
            fail(
                "A read from behind its stop is not an empty page that says so.", subject.probe.last
            )


@check("stop-malformed", SECTION, "A stop that the feed has not given is 400.", extension=STOP)
def _malformed(subject: Subject) -> None:
    common = subject.parameters(subject.partitions()[0], FIRST)
    for stop in ("conformance-no-such-cursor", "", "\x00", FIRST, LAST):
        refused(subject, [*common, ("stop", stop)], f"stop={stop!r}", statuses=_STATUSES)
