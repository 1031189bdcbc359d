"""Checks of the extension wait."""

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import WAIT as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST, LAST, WAIT

_WAITS = ("1", "0.5")
_SLACK = 3.0
_EARLY = 0.1
_AT_ONCE = 2.0


@check("wait", SECTION, "At the head an answer is held until the wait is over.", extension=WAIT)
def _held(subject: Subject) -> None:
    partition, _ = subject.sample()
    for wait in _WAITS:
        for _ in range(3):
            cursor, _ = subject.head(partition)
            answer = subject.ask(partition, cursor, [("wait", wait)])
            page = subject.understand(answer, partition)
            if answer.seconds > float(wait) + _SLACK:
                fail(f"wait={wait} took {answer.seconds:.1f} s.", answer)
            if not page.events and page.cursor == cursor:
                break
        else:
            skip("The feed is being written to.", answer)
        if answer.seconds < float(wait) - _EARLY:
            fail(f"With wait={wait} an empty page came after {answer.seconds:.2f} s.", answer)


@check("wait-events", SECTION, "Where there are events, nothing is waited for.", extension=WAIT)
def _at_once(subject: Subject) -> None:
    partition, _ = subject.sample(1)
    for wait in ("3", "999999999"):
        answer = subject.ask(partition, FIRST, [("pagesizehint", "1"), ("wait", wait)])
        subject.understand(answer, partition)
        if answer.seconds > _AT_ONCE:
            fail(f"Events that were there came after {answer.seconds:.1f} s.", answer)


@check("wait-last", SECTION, "The page of _last is never waited for.", extension=WAIT)
def _last(subject: Subject) -> None:
    answer = subject.ask(subject.partitions()[0], LAST, [("wait", "3")])
    if answer.seconds > _AT_ONCE:
        fail(f"The page of _last came after {answer.seconds:.1f} s.", answer)


@check("wait-malformed", SECTION, "A wait that is no number is 400.", extension=WAIT)
def _malformed(subject: Subject) -> None:
    common = subject.parameters(subject.partitions()[0], FIRST)
    for wait in ("x", "-1", "1e1", "", ".5", "5.", "1.2.3", "NaN", "\u0661", "1" * 10):
        refused(subject, [*common, ("wait", wait)], f"wait={wait!r}")
