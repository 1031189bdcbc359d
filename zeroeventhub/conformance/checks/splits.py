"""Checks of the extension splits."""

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.checks.stop import read_until
from zeroeventhub.conformance.finding import fail, skip
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import SPLITS as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST, LAST, SPLITS

if TYPE_CHECKING:
    from zeroeventhub.conformance.answer import SentEvent

_SUFFIX = "/splits"
_COUNT = 4


def _split(subject: Subject, partition: int, count: int, *extra: tuple[str, str]) -> list[str]:
    parameters = [("token", subject.token), ("partition", str(partition)), ("count", str(count))]
    answer = subject.probe.ask(_SUFFIX, [*parameters, *extra])
    if not answer.ok:
        fail(f"Splitting was answered with status {answer.status}.", answer)
    try:
        cursors = msgspec.json.decode(answer.body, type=dict[str, list[str]])["cursors"]
    except (msgspec.DecodeError, KeyError, RecursionError):
        fail("The answer holds no list of cursors.", answer)
    if not 2 <= len(cursors) <= count + 1:  # noqa: PLR2004 - a piece has two ends
        fail(f"{len(cursors) - 1} pieces came, and {count} were asked for.", answer)
    if {FIRST, LAST, ""} & set(cursors):
        fail("A boundary is _first or _last, not a real cursor.", answer)
    return cursors


@check("splits", SECTION, "The pieces, read one after the other, are the whole.", extension=SPLITS)
def _whole(subject: Subject) -> None:
    partition, known = subject.sample(1)
    if not known.at_head:
        stop = known.marks[-1].cursor
        cursors = _split(subject, partition, _COUNT, ("stop", stop))
    else:
        cursors = _split(subject, partition, _COUNT)
    events: list[SentEvent] = []
    for start, stop in pairwise(cursors):
        if start != stop:
            events += read_until(subject, partition, start, stop, "1000")
    subject.expect_same(known.events, events, "in pieces")


@check("splits-bounds", SECTION, "The pieces lie between cursor and stop.", extension=SPLITS)
def _bounds(subject: Subject) -> None:
    partition, known = subject.sample(3)
    marks = known.ends()
    if not marks:
        skip("There is no checkpoint with events before and behind it.")
    start, stop = marks[0], known.marks[-1]
    bounds = [("cursor", start.cursor), ("stop", stop.cursor)]
    cursors = _split(subject, partition, _COUNT, *bounds)
    if (cursors[0], cursors[-1]) != (start.cursor, stop.cursor):
        fail("The first and the last boundary are not those asked for.", subject.probe.last)
    events: list[SentEvent] = []
    for left, right in pairwise(cursors):
        events += read_until(subject, partition, left, right, "1000") if left != right else []
    subject.expect_same(known.events[start.count : stop.count], events, "in pieces")
    if len(events) != stop.count - start.count:
        fail(f"{len(events)} events came in pieces of {stop.count - start.count}.")


@check("splits-one", SECTION, "One piece has two boundaries.", extension=SPLITS)
def _one(subject: Subject) -> None:
    partition, _ = subject.sample()
    _split(subject, partition, 1)


@check("splits-malformed", SECTION, "A count that is not 1 to 1000 is 400.", extension=SPLITS)
def _malformed(subject: Subject) -> None:
    common = [("token", subject.token), ("partition", str(subject.partitions()[0]))]
    refused(subject, common, "A request without a count", suffix=_SUFFIX)
    for cursor in (LAST, "conformance-no-such-cursor"):
        parameters = [*common, ("count", "2"), ("cursor", cursor)]
        refused(subject, parameters, f"cursor={cursor}", suffix=_SUFFIX, statuses={400, 410})
    for count in ("0", "1001", "-1", "x", "", "1.5"):
        refused(subject, [*common, ("count", count)], f"count={count!r}", suffix=_SUFFIX)
