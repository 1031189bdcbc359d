"""Checks of the extension lag."""

from typing import Any

import msgspec

from zeroeventhub.conformance.checks.parameters import refused
from zeroeventhub.conformance.finding import fail
from zeroeventhub.conformance.registry import check
from zeroeventhub.conformance.sections import LAG as SECTION
from zeroeventhub.conformance.subject import Subject
from zeroeventhub.protocol import FIRST, LAG, LAST

_SUFFIX = "/lag"


def _lag(subject: Subject, partition: int, cursor: str) -> dict[str, Any]:
    parameters = [("token", subject.token), ("partition", str(partition)), ("cursor", cursor)]
    answer = subject.probe.ask(_SUFFIX, parameters)
    if not answer.ok:
        fail(f"The lag of a cursor was answered with status {answer.status}.", answer)
    if answer.media_type != "application/json":
        fail(f"A lag came as {answer.media_type or 'nothing in particular'}.", answer)
    try:
        found = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        fail("The answer is not a JSON object.", answer)
    events, seconds = found.get("events"), found.get("seconds", 0)
    if type(events) is not int or events < 0:
        fail("The answer holds no number of events.", answer)
    if type(seconds) not in {int, float} or seconds < 0:
        fail("seconds is not a number from 0 on.", answer)
    if found.get("more", True) is not True:
        fail("more is there, and is not true.", answer)
    return found


@check("lag", SECTION, "Behind a cursor lie as many events as lag says.", extension=LAG)
def _exact(subject: Subject) -> None:
    partition, known = subject.sample(1)
    places = [(FIRST, 0), *((mark.cursor, mark.count) for mark in known.marks)]
    for cursor, before in places[:: max(1, len(places) // 3)]:
        found = _lag(subject, partition, cursor)
        answer = subject.probe.last
        # What has been read was settled then; more may have come since.
        if "more" not in found and found["events"] < len(known.events) - before:
            fail(f"{found['events']} events were counted, and more can be read.", answer)
        if known.at_head:
            events = subject.read(partition, cursor, found["events"], [("pagesizehint", "1000")])
            if len(events) < found["events"]:
                fail(f"{found['events']} events were counted; {len(events)} can be read.", answer)


@check("lag-head", SECTION, "Behind _last there are 0 events, 0 seconds old.", extension=LAG)
def _head(subject: Subject) -> None:
    partition, _ = subject.sample()
    found = _lag(subject, partition, LAST)
    if found != found | {"events": 0, "seconds": 0} or "more" in found:
        fail("Behind _last there is nothing, and lag says otherwise.", subject.probe.last)


@check("lag-malformed", SECTION, "The lag of what is no cursor is refused.", extension=LAG)
def _malformed(subject: Subject) -> None:
    common = [("token", subject.token), ("partition", str(subject.partitions()[0]))]
    refused(subject, common, "A request without a cursor", suffix=_SUFFIX)
    for cursor in ("", "conformance-no-such-cursor"):
        parameters = [*common, ("cursor", cursor)]
        refused(subject, parameters, f"cursor={cursor!r}", suffix=_SUFFIX, statuses={400, 410})
