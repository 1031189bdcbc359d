"""Checks of requests: missing, malformed and repeated parameters, methods and page sizes."""

from collections.abc import Sequence

from zeroeventhub.conformance.answer import fail, note
from zeroeventhub.conformance.check import check, register
from zeroeventhub.conformance.subject import Subject, expect
from zeroeventhub.protocol import FIRST

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
                following = subject.page(partition, page.cursor, extra)
                if not events and not following.settled:
                    fail(f"With the hint {hint} no event comes, page after page.", answer)
                events += following.settled
                if len(events) < wanted:
                    events += subject.read(partition, following.cursor, wanted - len(events))
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
