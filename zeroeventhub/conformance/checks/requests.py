"""Checks of requests: parameters that are missing, malformed or repeated, methods and sizes."""

from collections.abc import Mapping, Sequence

from zeroeventhub.conformance.answer import fail, note
from zeroeventhub.conformance.check import check, register
from zeroeventhub.conformance.subject import BAD_REQUEST, CONFLICT, Subject, expect
from zeroeventhub.protocol import FIRST

NO_CURSOR = "conformance-no-such-cursor"
"""A cursor that no feed has given."""

BAD_CURSOR_STATUSES = (BAD_REQUEST, 410, 414, 431)
_NOT_ALLOWED = 405
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


def refuses(
    section: str,
    name: str,
    sentence: str,
    bad: Mapping[str, Sequence[str | bytes]],
    what: str = "{name}={value}",
    *,
    statuses: Sequence[int] = (BAD_REQUEST,),
    extension: str | None = None,
    v1: bool = False,
) -> None:
    """Register a check that a request for a page is refused for each of some values.

    Args:
        section: the section of the specification.
        name: the check's name.
        sentence: what the specification asks for.
        bad: by name of a parameter, the values to refuse; "cursor" is cursorN in v1.
        what: what is wrong, with places for the parameter's name and its value.
        statuses: the statuses to refuse it with.
        extension: the extension that the feed has to list for it.
        v1: whether it is made in the words of ZeroEventHub v1 as well.
    """

    def run(subject: Subject) -> None:
        for parameter, values in bad.items():
            for value in values:
                if parameter == "cursor":
                    request = subject.parameters(cursor=value)
                elif parameter == "partition":
                    request = subject.parameters(str(value))
                else:
                    request = [*subject.parameters(), (parameter, value)]
                shown = f"{value[:_SHOWN]!r}" + ("…" if len(value) > _SHOWN else "")
                found = what.format(name=parameter, value=shown)
                expect(subject.send(request), found, *statuses)

    register(section, name, sentence, run, extension=extension, v1=v1)


@check("4", "A request without a partition is answered with 400.")
def partition_missing(subject: Subject) -> None:
    token, _, cursor = subject.parameters()
    expect(subject.send([token, cursor]), "A request without partition", BAD_REQUEST)


refuses(
    "2.1",
    "partition-malformed",
    "What is no partition's number is answered with 400.",
    {"partition": (*_BAD_NUMBERS, "9" * 40)},
    "Partition {value}",
)


@check("4", "A partition that the feed does not have is 400.")
def partition_unknown(subject: Subject) -> None:
    known = subject.partitions()
    for partition in {32767, max(known) + 1} - set(known):
        answer = subject.send(subject.parameters(partition))
        expect(answer, f"Partition {partition}", BAD_REQUEST)


@check("4", "A request without a cursor is answered with 400.", v1=True)
def cursor_missing(subject: Subject) -> None:
    expect(subject.send(subject.parameters()[:-1]), "A request without cursor", BAD_REQUEST)


refuses(
    "7.1",
    "cursor-malformed",
    "A cursor that the feed has not given is refused, never taken for an empty page.",
    {"cursor": _BAD_CURSORS},
    "The cursor {value}",
    statuses=BAD_CURSOR_STATUSES,
    v1=True,
)


@check("2.1", "A parameter that is there twice is answered with 400.", v1=True)
def parameters_twice(subject: Subject) -> None:
    complete = [*subject.parameters(), ("pagesizehint", "1")]
    for parameter in complete:
        expect(subject.send([*complete, parameter]), f"{parameter[0]} twice", BAD_REQUEST)


@check("2.1", "A parameter that the feed does not know is passed over.", v1=True)
def parameters_unknown(subject: Subject) -> None:
    unknown = ("conformance-unknown", "1")
    answer = subject.ask(subject.partitions()[0], FIRST, [unknown, unknown, ("pagesizehint", "1")])
    expect(answer, "An unknown parameter")


@check("2.1", "Leading zeros mean nothing, and a number has any length.")
def numbers(subject: Subject) -> None:
    padded = subject.parameters(f"000{subject.partitions()[0]}")
    answer = subject.send([*padded, ("pagesizehint", "0001")])
    expect(answer, "A number with leading zeros")


@check("2.1", "Of several faults, the form comes before the token.")
def faults_order(subject: Subject) -> None:
    _, _, cursor = subject.parameters()
    token = ("token", "conformance")
    unknown = ("partition", str(max(subject.partitions()) + 1))
    answer = subject.send([token, ("partition", "x"), cursor])
    expect(answer, "A bad form with a bad token", BAD_REQUEST)
    answer = subject.send([token, unknown, cursor])
    expect(answer, "A bad token with an unknown partition", CONFLICT)


@check("2.1", "A Range is passed over: a part of a page would be a cut page.")
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
        expect(answer, "PROPFIND", _NOT_ALLOWED)
        if "allow" not in answer.headers:
            fail("The answer does not say what is allowed.")


refuses(
    "2.1",
    "pagesizehint-malformed",
    "A hint that is no number is answered with 400.",
    {"pagesizehint": _BAD_NUMBERS},
    "The hint {value}",
    v1=True,
)


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
                fail(f"{len(page.events)} events came where {most} at most were to come.", answer)

    register(section, name, sentence, run, v1=True)


_size("4", "pagesizehint-one", "A hint of 1 gives one event, and moves on.", ["1"], 1)
_size("4", "pagesizehint-zero", "A hint of 0 is taken for 1.", ["0"], 1)
_size(
    "4",
    "pagesizehint-huge",
    "A hint of any size gives 10,000 events at most.",
    ["1000000000000", "9" * 40],
    10_000,
)
