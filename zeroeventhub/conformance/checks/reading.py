"""Checks of pages that a consumer gets as it follows the cursors, in both protocol versions."""

import json
from collections import Counter
from functools import partial

from zeroeventhub.conformance.answer import Outcome, PageText, fail, note, skip
from zeroeventhub.conformance.check import check
from zeroeventhub.conformance.subject import MOST_PARTITIONS, Subject, Walk, expect
from zeroeventhub.protocol import FIRST, LAST

_SIZES = {1: 12, 2: 20, 7: 60}
"""The number of events to read, by page size."""

_MOST_CURSORS = 8
_TRIES = 5
_check_v1 = partial(check, "12", v1=True, v2=False)


@check("4", "Following the cursors from _first reaches the head.", v1=True)
def reading(subject: Subject) -> None:
    for partition in subject.partitions()[:MOST_PARTITIONS]:
        known = subject.walk(partition)
        if known.broken is not None and known.broken.outcome is Outcome.FAIL:
            raise known.broken
    _, known = subject.sample()
    if not known.at_head:
        skip(f"The check did not read to the head: {len(known.events):,} events were in order.")


@check("14", "Reading again from the start gives the same events.", v1=True, needs=1)
def reading_again(subject: Subject, partition: int, known: Walk) -> None:
    events = subject.read(partition, FIRST, len(known.events))[: len(known.events)]
    before = Counter(event.identity for event in known.events)
    after = Counter(event.identity for event in events)
    if before == after and known.events != events and not subject.extensions:
        note("The same events came in another order.", subject.probe.last)
    subject.expect_same(known.events, events, "when it was read again")


@check("14", "The size of the pages does not change which events come.", v1=True, needs=2)
def page_sizes(subject: Subject, partition: int, known: Walk) -> None:
    for size, count in _SIZES.items():
        expected = known.events[:count]
        events = subject.read(partition, FIRST, len(expected), [("pagesizehint", str(size))])
        subject.expect_same(expected, events, f"in pages of {size}")


@check("6", "A read from a checkpoint's cursor begins right after it.", v1=True, needs=2)
def cursors_resume(subject: Subject, partition: int, known: Walk) -> None:
    checkpoints = known.need_inner()
    step = max(1, len(checkpoints) // _MOST_CURSORS)
    for one in checkpoints[::step][:_MOST_CURSORS]:
        expected = known.events[one.count : one.count + 3]
        events = subject.read(partition, one.cursor, len(expected), [("pagesizehint", "3")])
        subject.expect_same(expected, events, f"from the cursor after {one.count} events")


@check("13.1", "A feed that promises exactlyOnce sends no event twice.", needs=2)
def events_once(subject: Subject, _partition: int, known: Walk) -> None:
    found = [event.cloud_event for event in known.events]
    if not all(found):
        skip("The events have no id to distinguish them by.")
    ids = Counter((str(one.get("source")), str(one.get("id"))) for one in found)
    repeated = sum(count > 1 for count in ids.values())
    if repeated and subject.document().get("exactlyOnce") is True:
        fail(f"{repeated} ids came more than once.", known.pages[-1][0])
    if repeated:
        note(f"{repeated} ids came more than once, as exactlyOnce=false allows.")


@check("6", "A read at the head is an empty page with the same cursor.", v1=True, needs=0)
def head(subject: Subject, partition: int, _known: Walk) -> None:
    for _ in range(_TRIES):
        cursor, _ = subject.head(partition, strict=True)
        if subject.page(partition, cursor).cursor == cursor:
            return
    skip("The feed is being written to.", subject.probe.last)


@check("7.4", "The page of _last is empty, and nothing old follows its cursor.", v1=True, needs=0)
def last(subject: Subject, partition: int, known: Walk) -> None:
    page = subject.page(partition, LAST)
    if page.events:
        fail("The page of _last holds events.")
    old = {event.identity for event in known.events}
    if len(old) < len(known.events):
        skip("Events with the same data cannot be distinguished.", subject.probe.last)
    following = subject.page(partition, page.cursor)
    if any(event.identity in old for event in following.events):
        fail("After _last came an event that had been there before.")


@check("8.2", "The cursor at the end of a closed partition no longer moves.")
def closed(subject: Subject) -> None:
    closed = [
        number
        for number, entry in zip(subject.partitions(), subject.entries(), strict=False)
        if entry.get("closed") is True
    ]
    if not closed:
        skip("The feed has no closed partition.")
    for partition in closed[:3]:
        if not subject.walk(partition).at_head:
            continue
        for _ in range(_TRIES):
            cursor, _ = subject.head(partition)
            page = subject.page(partition, cursor)
            if page.events:
                fail("A closed partition grew.")
            if page.cursor == cursor:
                break
        else:
            fail("At the end of a closed partition the cursor still moves.")


# What only ZeroEventHub v1 has.


@_check_v1("A request without parameters is 400: the feed speaks v1.")
def negotiation(subject: Subject) -> None:
    expect(subject.discovery(), "A request without parameters", 200, 400, 422)


@_check_v1("Another number of partitions than the feed's is 400.")
def partition_count(subject: Subject) -> None:
    _, cursor = subject.parameters()
    for count in (len(subject.partitions()) + 1, 0):
        answer = subject.send([("n", str(count)), cursor])
        if answer.ok and count:
            subject.understand(answer, subject.partitions()[0])
            note(f"n={count} is emulated, which ZeroEventHub v1 allows.", answer)
        expect(subject.send([("n", str(count)), cursor]), f"n={count}", 400)


@_check_v1("An n that is not a number is 400.")
def partition_count_malformed(subject: Subject) -> None:
    _, cursor = subject.parameters()
    for count in ("x", "", "1.5", "-1", "9" * 30):
        expect(subject.send([("n", count), cursor]), f"n={count[:9]!r}", 400)


@_check_v1("Several cursors in one request are served.")
def several_cursors(subject: Subject) -> None:
    if len(subject.partitions()) < 2:  # noqa: PLR2004 - it takes two
        skip("The feed has one partition.")
    left, right = subject.partitions()[:2]
    parameters = [*subject.parameters(left), subject.parameters(right)[1], ("pagesizehint", "2")]
    answer = expect(subject.send(parameters), "A request with two cursors")
    page = PageText.of(answer.body)
    if "json" in page.faults:
        fail(f"The answer cannot be read: {page.faults['json']}.")
    text = answer.body.decode(errors="replace")
    lines = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not {line.get("partition") for line in lines if "cursor" in line} >= {left, right}:
        fail("There is no checkpoint for each of the partitions.")


@_check_v1("Headers come only if they are requested, and by name.", needs=1)
def headers(subject: Subject, partition: int, known: Walk) -> None:
    if any(event.headers for event in known.events):
        fail("Headers came, though none were requested.", known.pages[0][0])
    page = subject.page(partition, FIRST, [("headers", "_all"), ("pagesizehint", "25")])
    subject.expect_same(known.events[: len(page.settled)], page.settled, "with headers")
    names = sorted({name for event in page.events for name in event.headers or {}})
    if not names:
        skip("The events have no headers.", subject.probe.last)
    page = subject.page(partition, FIRST, [("headers", names[0]), ("pagesizehint", "25")])
    found = {name for event in page.events for name in event.headers or {}}
    if found - {names[0]}:
        note(f"{names[0]} was requested, and more came as well.", subject.probe.last)
    if names[0] not in found:
        fail(f"{names[0]} was requested, but did not come.")


@_check_v1("The events are those that FeedAPI v2 gives.")
def same_events(subject: Subject) -> None:
    if not subject.discovery().ok:
        skip("The feed speaks v1 only.")
    partition, known = subject.sample(1)
    expected = known.events[:50]
    events = Subject(subject.probe).read(partition, FIRST, len(expected))
    subject.expect_same(expected, events, "in FeedAPI v2")
