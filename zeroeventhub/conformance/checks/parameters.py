"""Checks of what is done with parameters that are missing, malformed or there twice."""

from functools import partial

from zeroeventhub.conformance.answer import Answer, Parameters
from zeroeventhub.conformance.finding import fail, note
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import CURSORS, READING, REQUESTS, V1
from zeroeventhub.conformance.subject import CONFLICT, Subject
from zeroeventhub.protocol import FIRST

BAD_REQUEST = 400
NOT_ALLOWED = 405
SERVER_ERROR = 500
NOT_IMPLEMENTED = 501
_BAD_CURSOR = {400, 410, 414, 431}

_BAD_CURSORS: tuple[str | bytes, ...] = (
    "conformance-no-such-cursor",
    "_nonsense",
    "",
    "' OR 1=1 --",
    "5" * 5000,
    "\u00e9",
    "\x00",
    b"\xff\xfe",
)

_BAD_NUMBERS = ("x", "-1", "+1", " 1", "1.5", "", "\u0661", "1_0", "0x1", "1e3")


def refused(
    subject: Subject,
    parameters: Parameters,
    what: str,
    *,
    statuses: frozenset[int] | set[int] = frozenset({BAD_REQUEST}),
    suffix: str | None = None,
) -> Answer:
    """Send what has to be refused, and fail unless it is.

    Args:
        subject: the feed.
        parameters: the request's query.
        what: what is wrong with it, as the start of a sentence.
        statuses: the statuses to refuse it with.
        suffix: where to send it, if not where pages are.
    """
    ask = subject.send if suffix is None else partial(subject.probe.ask, suffix)
    answer: Answer = ask(parameters)
    if answer.status not in statuses:
        extra = " and an empty body" if answer.ok and not answer.body else ""
        fail(f"{what} was answered with status {answer.status}{extra}.", answer)
    return answer


@check("partition-missing", READING, "A request without a partition is answered with 400.")
def _no_partition(subject: Subject) -> None:
    token, _, cursor = subject.parameters(subject.partitions()[0], FIRST)
    refused(subject, [token, cursor], "A request without a partition")


@check("partition-malformed", REQUESTS, "What is no partition's number is answered with 400.")
def _bad_partition(subject: Subject) -> None:
    for partition in (*_BAD_NUMBERS, "9" * 40):
        refused(subject, subject.parameters(partition, FIRST), f"Partition {partition[:9]!r}")


@check("partition-unknown", READING, "A partition that the feed does not have is 400.")
def _unknown_partition(subject: Subject) -> None:
    known = subject.partitions()
    for partition in {32767, max(known) + 1} - set(known):
        refused(subject, subject.parameters(partition, FIRST), f"Partition {partition}")


@check("cursor-missing", READING, "A request without a cursor is answered with 400.", v1=V1)
def _no_cursor(subject: Subject) -> None:
    parameters = subject.parameters(subject.partitions()[0], FIRST)[:-1]
    refused(subject, parameters, "A request without a cursor")


@check(
    "cursor-malformed",
    CURSORS,
    "A cursor that the feed has not given is refused, never taken for an empty page.",
    v1=V1,
)
def _bad_cursor(subject: Subject) -> None:
    for cursor in _BAD_CURSORS:
        parameters = subject.parameters(subject.partitions()[0], cursor)
        what = f"The cursor {cursor[:26]!r}" + ("…" if len(cursor) > 26 else "")  # noqa: PLR2004
        refused(subject, parameters, what, statuses=_BAD_CURSOR)


@check("parameters-twice", REQUESTS, "A parameter that is there twice is answered with 400.", v1=V1)
def _twice(subject: Subject) -> None:
    complete = [*subject.parameters(subject.partitions()[0], FIRST), ("pagesizehint", "1")]
    for parameter in complete:
        refused(subject, [*complete, parameter], f"{parameter[0]} twice")


@check(
    "parameters-unknown", REQUESTS, "A parameter that the feed does not know is passed over.", v1=V1
)
def _unknown(subject: Subject) -> None:
    unknown = ("conformance-unknown", "1")
    answer = subject.ask(subject.partitions()[0], FIRST, [unknown, unknown, ("pagesizehint", "1")])
    if not answer.ok:
        fail(f"An unknown parameter was answered with status {answer.status}.", answer)


@check("numbers", REQUESTS, "Leading zeros mean nothing, and a number has any length.")
def _numbers(subject: Subject) -> None:
    partition = subject.partitions()[0]
    extra = [("pagesizehint", "0001")]
    answer = subject.send([*subject.parameters(f"000{partition}", FIRST), *extra])
    if not answer.ok:
        fail(f"A number with leading zeros was answered with status {answer.status}.", answer)


@check("faults-order", REQUESTS, "Of several faults, the form comes before the token.")
def _order(subject: Subject) -> None:
    _, _, cursor = subject.parameters(subject.partitions()[0], FIRST)
    token = ("token", "conformance")
    unknown = ("partition", str(max(subject.partitions()) + 1))
    refused(subject, [token, ("partition", "x"), cursor], "A bad form with a bad token")
    what = "A bad token with an unknown partition"
    refused(subject, [token, unknown, cursor], what, statuses={CONFLICT})


@check("range", REQUESTS, "A Range is passed over: a part of a page would be a cut page.")
def _range(subject: Subject) -> None:
    partition = subject.partitions()[0]
    answer = subject.ask(partition, FIRST, headers={"Range": "bytes=0-3"})
    if not answer.ok:
        fail(f"A request with a Range was answered with status {answer.status}.", answer)


@check("methods", REQUESTS, "Methods other than GET and HEAD are answered with 405 and Allow.")
def _methods(subject: Subject) -> None:
    # PROPFIND asks for properties, and changes nothing wherever it is understood.
    partition = subject.partitions()[0]
    events = subject.send(subject.parameters(partition, FIRST), method="PROPFIND")
    for answer in (subject.probe.ask(method="PROPFIND"), events):
        if answer.status == NOT_IMPLEMENTED:
            note("It was answered with 501.", answer)
        if answer.status != NOT_ALLOWED:
            fail(f"PROPFIND was answered with status {answer.status}.", answer)
        if "allow" not in answer.headers:
            fail("The answer does not say what is allowed.", answer)


@check("pagesizehint-malformed", REQUESTS, "A hint that is no number is answered with 400.", v1=V1)
def _bad_hint(subject: Subject) -> None:
    common = subject.parameters(subject.partitions()[0], FIRST)
    for hint in _BAD_NUMBERS:
        refused(subject, [*common, ("pagesizehint", hint)], f"The hint {hint!r}")


@check("pagesizehint-one", READING, "A hint of 1 gives one event, and moves on.", v1=V1)
def _one(subject: Subject) -> None:
    _expect_page(subject, "1", most=1)


@check("pagesizehint-zero", READING, "A hint of 0 is taken for 1.", v1=V1)
def _zero(subject: Subject) -> None:
    _expect_page(subject, "0", most=1)


@check("pagesizehint-huge", READING, "A hint of any size gives 10,000 events at most.", v1=V1)
def _huge(subject: Subject) -> None:
    for hint in ("1000000000000", "9" * 40):
        _expect_page(subject, hint, most=10_000)


def _expect_page(subject: Subject, hint: str, most: int) -> None:
    """Expect a page whose events, and those behind it, are the partition's."""
    partition, known = subject.sample()
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
