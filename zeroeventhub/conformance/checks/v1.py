"""Checks that only ZeroEventHub v1 has."""

import json

from zeroeventhub.conformance.answer import PageText
from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import fail, note, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import V1
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST


@check(
    "negotiation", V1, "A request without parameters is 400: the feed speaks v1.", v2=False, v1=V1
)
def _negotiation(subject: Subject) -> None:
    answer = subject.discovery()
    if answer.status not in {200, 400, 422}:
        fail(f"It was answered with status {answer.status}.", answer)


@check(
    "partition-count", V1, "Another number of partitions than the feed's is 400.", v2=False, v1=V1
)
def _count(subject: Subject) -> None:
    _, cursor = subject.parameters(subject.partitions()[0], FIRST)
    for count in (len(subject.partitions()) + 1, 0):
        answer = subject.send([("n", str(count)), cursor])
        if answer.ok and count:
            subject.understand(answer, subject.partitions()[0])
            note(f"n={count} is emulated, as ZeroEventHub v1 leaves it free.", answer)
        refused(subject, [("n", str(count)), cursor], f"n={count}")


@check("partition-count-malformed", V1, "An n that is no number is 400.", v2=False, v1=V1)
def _bad_count(subject: Subject) -> None:
    for count in ("x", "", "1.5", "-1", "9" * 30):
        _, cursor = subject.parameters(subject.partitions()[0], FIRST)
        refused(subject, [("n", count), cursor], f"n={count[:9]!r}")


@check("several-cursors", V1, "Several cursors in one request are served.", v2=False, v1=V1)
def _several(subject: Subject) -> None:
    if len(subject.partitions()) < 2:  # noqa: PLR2004 - it takes two
        skip("The feed has one partition.")
    left, right = subject.partitions()[:2]
    answer = subject.send([*subject.parameters(left, FIRST), subject.parameters(right, FIRST)[1]])
    if not answer.ok:
        fail(f"Two cursors were answered with status {answer.status}.", answer)
    text = answer.body.decode(errors="replace")
    page = PageText.of(answer.body)
    if "json" in page.faults:
        fail(f"The answer cannot be read: {page.faults['json']}.", answer)
    lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    settled = {line.get("partition") for line in lines if "cursor" in line}
    if not settled >= {left, right}:
        fail("There is no checkpoint for each of the partitions.", answer)


@check("headers", V1, "Headers come only if they are asked for, and by name.", v2=False, v1=V1)
def _headers(subject: Subject) -> None:
    partition, known = subject.sample(1)
    if any(event.headers for event in known.events):
        fail("Headers came, though none was asked for.", known.pages[0][0])
    page = subject.page(partition, FIRST, [("headers", "_all"), ("pagesizehint", "25")])
    subject.expect_same(known.events[: len(page.settled)], page.settled, "with headers")
    names = sorted({name for event in page.events for name in event.headers or {}})
    if not names:
        skip("The events have no headers.", subject.probe.last)
    page = subject.page(partition, FIRST, [("headers", names[0]), ("pagesizehint", "25")])
    others = {name for event in page.events for name in event.headers or {}} - {names[0]}
    if others:
        note(f"{names[0]} was asked for, and others came as well.", subject.probe.last)
    if not any(names[0] in (event.headers or {}) for event in page.events):
        fail(f"{names[0]} was asked for, and did not come.", subject.probe.last)


@check("same-events", V1, "The events are those that FeedAPI v2 gives.", v2=False, v1=V1)
def _same(subject: Subject) -> None:
    if not subject.discovery().ok:
        skip("The feed speaks v1 only.")
    other = Subject(subject.probe)
    partition, known = subject.sample(1)
    expected = known.events[:50]
    events = other.read(partition, FIRST, len(expected))
    subject.expect_same(expected, events, "in FeedAPI v2")
