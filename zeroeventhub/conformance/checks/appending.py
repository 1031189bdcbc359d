"""Checks of appends, which write: all events of a check have a name of its own in their ids."""

import gzip
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from zeroeventhub.conformance.answer import Answer, fail, skip
from zeroeventhub.conformance.check import check
from zeroeventhub.conformance.subject import MOST_EVENTS, Parameters, Subject, decode, expect
from zeroeventhub.extensions import APPEND, PRODUCER_SEQUENCE
from zeroeventhub.protocol import (
    LARGEST_BATCH,
    LARGEST_BATCH_BYTES,
    LARGEST_EVENT_BYTES,
    LAST,
    Appended,
)
from zeroeventhub.wire import CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE

TYPE = "zeroeventhub.conformance"
"""The type of all events that the checks append."""

_NOT_ALLOWED = {401, 403, 422}
_PATIENCE = 10.0
_PAUSE = 0.1

_check = partial(check, APPEND, writes=True)
_check_sequence = partial(check, PRODUCER_SEQUENCE, writes=True)

Batch = Sequence[dict[str, Any]] | bytes


class _Writer:
    """Append events to one key, and read them; skip the check if the log does not take them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        # The key, with which all ids begin; no other check and no other run has it.
        self.name = f"conformance-{uuid4()}"
        first = self.send([self.event("first", data={})])
        if first.status in _NOT_ALLOWED:
            skip(f"The log does not take events of type {TYPE} from you.", first)
        self._partition = _appended(first, "An event")[0].partition
        self._cursor = subject.page(self._partition, LAST).cursor

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        """Return an event, whose id ends with a name."""
        event = {"id": f"{self.name}-{name}", "type": TYPE, "key": self.name, **more}
        values = ["\u00eb\u2028", 0.5, None, True]
        return {"data": {"id": event["id"], "key": event["key"], "values": values}, **event}

    def versioned(self, name: str, version: int | None) -> dict[str, Any]:
        """Return an event of another key, all of whose events have versions."""
        expected = {} if version is None else {"expectedVersion": version}
        return self.event(name, key=f"{self.name}-versions", **expected)

    def send(
        self,
        batch: Batch,
        parameters: Parameters = (),
        *,
        media_type: str = NDJSON_TYPE,
        coding: str | None = None,
    ) -> Answer:
        """Send a batch; events are sent as lines, and bytes as they are."""
        headers = {"Content-Type": media_type} | ({"Content-Encoding": coding} if coding else {})
        content = batch if isinstance(batch, bytes) else _lines(batch)
        return self._subject.probe.ask(
            "/append", parameters, method="POST", headers=headers, content=content
        )

    def append(
        self, batch: Sequence[dict[str, Any]], parameters: Parameters = (), what: str = "A batch"
    ) -> list[Appended]:
        """Append a batch; fail unless the answer names its events in their order."""
        found = _appended(self.send(batch, parameters), what)
        if [one.id for one in found] != [one["id"] for one in batch]:
            fail("The answer does not name the events in the order of the batch.")
        return found

    def refuse(
        self, batch: Batch, status: int, kind: str, what: str, parameters: Parameters = ()
    ) -> dict[str, Any]:
        """Send a batch that has to be refused; return the members of the problem."""
        answer = expect(self.send(batch, parameters), what, status)
        problem = answer.document
        if not isinstance(problem, dict) or not str(problem.get("type")).endswith(f"/{kind}"):
            fail(f"{what} was answered with {status}, but not with a problem of kind {kind}.")
        return problem

    def expect_log(self, *events: dict[str, Any]) -> None:
        """Fail unless the log has these events of the key, and no others but the first."""
        # Once the last event of the key is read, no earlier one can come.
        end = self.event(f"end-{uuid4()}")
        self.append([end])
        ending = time.monotonic() + _PATIENCE
        while end["data"] not in (found := self._read()):
            if time.monotonic() > ending:
                fail(f"An event that was appended is not read within {_PATIENCE:g} s.")
            time.sleep(_PAUSE)
        expected = [*(one["data"] for one in events), end["data"]]
        if found != expected:
            shown = ", ".join(str(data.get("id")).removeprefix(self.name) for data in found)
            fail(f"Other events of a key are read than were appended: their ids end in {shown}.")

    def _read(self) -> list[Any]:
        """Return the data of all events of the key but the first."""
        read = self._subject.read(self._partition, self._cursor, MOST_EVENTS)
        found = [one.cloud_event.get("data", one.data) for one in read]
        return [one for one in found if isinstance(one, dict) and one.get("key") == self.name]


def _lines(batch: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in batch)


def _appended(answer: Answer, what: str) -> list[Appended]:
    """Return what an answer says of the events of a batch; fail if they are not appended."""
    found: list[Appended] = decode(answer, APPEND, what, 201)
    if "no-store" not in answer.cache_control:
        fail("The answer to an append does not say no-store.", answer)
    return found


def _counted(producer: str, sequence: int | str) -> Parameters:
    return [("producer", producer), ("sequence", str(sequence))]


@_check("The events of a batch are appended in their order, and read.")
def append(subject: Subject) -> None:
    writer = _Writer(subject)
    batch = [writer.event(str(number)) for number in range(3)]
    if any(one.version is not None for one in writer.append(batch)):
        fail("An event that expects no version got one.")
    writer.expect_log(*batch)


@_check("CloudEvents are appended, with their subjects as keys.")
def append_cloudevents(subject: Subject) -> None:
    writer = _Writer(subject)
    batch = [writer.event("1"), writer.versioned("2", 0), writer.versioned("3", None)]
    renamed = {"key": "subject", "expectedVersion": "expectedversion"}
    cloud = [
        {"specversion": "1.0", "source": "/conformance"}
        | {renamed.get(name, name): value for name, value in event.items()}
        for event in batch
    ]
    what = "A batch of CloudEvents"
    answer = writer.send(json.dumps(cloud).encode(), media_type=CLOUDEVENTS_BATCH_TYPE)
    if [one.version for one in _appended(answer, what)] != [None, 1, 2]:
        fail("The events of the batch did not get the versions of their subjects.")
    writer.expect_log(batch[0])
    binary = {name: value for name, value in cloud[0].items() if name != "data"}
    body = json.dumps([{**binary, "id": f"{writer.name}-4", "data_base64": "AAAA"}]).encode()
    answer = writer.send(body, media_type=CLOUDEVENTS_BATCH_TYPE)
    expect(answer, "A CloudEvent with data_base64", 400)


@_check("A batch may be compressed by gzip.")
def append_gzip(subject: Subject) -> None:
    writer = _Writer(subject)
    batch, other = [writer.event("1")], [writer.event("2")]
    _appended(writer.send(gzip.compress(_lines(batch)), coding="gzip"), "A gzip")
    broken = writer.send(gzip.compress(_lines(other))[:-3], coding="gzip")
    expect(broken, "A gzip that is cut off", 400)
    writer.expect_log(*batch)


@_check("A batch that is sent again is answered the same, and appended once.")
def append_again(subject: Subject) -> None:
    writer = _Writer(subject)
    batch = [writer.event(str(number)) for number in range(3)]
    first = writer.append(batch[:2])
    if writer.append(batch[:2], what="The same batch again") != first:
        fail("The same batch again was answered differently.")
    writer.append([*batch[1:], batch[0]], what="A batch with events that the log has")
    writer.expect_log(*batch)


@_check("An id of another event is 409, of kind id-reused.")
def append_id_reused(subject: Subject) -> None:
    writer = _Writer(subject)
    event = writer.event("1")
    writer.append([event])
    others: dict[str, Any] = {"data": {}, "key": f"{writer.name}-other"}
    for name, value in others.items():
        what = f"Another {name} for the id of an event"
        writer.refuse([{**event, name: value}], 409, "id-reused", what)
    writer.expect_log(event)


@_check("A batch is appended all together or not at all.")
def append_whole(subject: Subject) -> None:
    writer = _Writer(subject)
    known = writer.event("1")
    writer.append([known])
    reused, late = {**known, "data": {}}, writer.versioned("2", 7)
    new = writer.event("3")
    writer.refuse([new, reused], 409, "id-reused", "A batch that reuses an id")
    writer.refuse([new, late], 409, "conflict", "A batch that expects another version")
    writer.refuse([new, {}], 400, "bad-request", "A batch with a malformed line")
    writer.expect_log(known)


@_check("An event is appended only at the expected version, and gets the next one.")
def append_versions(subject: Subject) -> None:
    writer = _Writer(subject)
    batch = [writer.versioned("1", 0), writer.versioned("2", None), writer.versioned("3", 2)]
    for _ in range(2):
        if [one.version for one in writer.append(batch)] != [1, 2, 3]:
            fail("The events of a key do not have the versions that follow the expected one.")
    for version in (0, 2, 4):
        late = [writer.versioned("4", version)]
        found = writer.refuse(late, 409, "conflict", "Another version than the key has")
        if (found.get("key"), found.get("version")) != (late[0]["key"], 3):
            fail("The problem does not name the key and its version.")
    if writer.append([writer.versioned("4", 3)])[0].version != len(batch) + 1:
        fail("An event at the expected version did not get the next one.")


@_check("A producer's batches are taken in their order, and the last one again.")
def append_producers(subject: Subject) -> None:
    writer = _Writer(subject)
    batches = [[writer.event(str(number))] for number in range(3)]
    for sequence, batch in enumerate(batches, 1):
        for late in {sequence - 2, sequence + 1} - {-1, 0}:
            what = f"Batch {late} after batch {sequence - 1}"
            parameters = _counted(writer.name, late)
            found = writer.refuse(batch, 409, "out-of-sequence", what, parameters)
            if found.get("sequence") != sequence - 1:
                fail("The problem does not name the sequence of the last batch.")
        for _ in range(2):
            writer.append(batch, _counted(writer.name, sequence))
    what = "Another event with the sequence of the last batch"
    new, last = [writer.event("new")], _counted(writer.name, len(batches))
    writer.refuse(new, 409, "id-reused", what, last)
    writer.expect_log(*(event for batch in batches for event in batch))


@_check("A body that is no batch of events is 400.")
def append_malformed(subject: Subject) -> None:
    writer = _Writer(subject)
    good = writer.event("1")
    lacking = [{key: good[key] for key in good if key != name} for name in ("id", "type", "data")]
    names = ("", "x" * 201, "x ", "x\0", 7)
    wrong = [{**good, name: value} for name in ("id", "type", "key") for value in names]
    wrong += [{**good, "data": value} for value in (7, "\0")]
    jumps = [
        [writer.versioned("2", before), writer.versioned("3", after)]
        for before, after in ((None, 0), (0, 5))
    ]
    bodies = [_lines([good, one]) for one in [*lacking, *wrong]]
    bodies += [_lines(jump) for jump in jumps]
    bodies += [b"", b"[]", b"{", b"7\n", _lines([good]) + b"\xff\n", _lines([good]) + b"{}"]
    for body in bodies:
        expect(writer.send(body), f"The batch {body[-60:]!r}", 400)
    bad = ("0", "-1", "x", "", str(2**53))
    counted = [_counted(writer.name, sequence) for sequence in bad]
    counted += [_counted("", 1), _counted("x" * 201, 1)]
    counted += [[("producer", writer.name)], [("sequence", "1")]]
    for parameters in counted:
        expect(writer.send([good], parameters), f"An append with {parameters}", 400)
    writer.expect_log()


@_check("A media type or a content coding that the log does not read is 415.")
def append_media_type(subject: Subject) -> None:
    writer = _Writer(subject)
    for media_type in ("text/plain", "application/x-conformance"):
        answer = writer.send([writer.event("1")], media_type=media_type)
        expect(answer, f"A batch as {media_type}", 415)
    answer = writer.send([writer.event("1")], coding="conformance")
    expect(answer, "A batch in an unknown content coding", 415)
    writer.expect_log()


@_check("A batch, or an event, above the limits of section 16 is 413.")
def append_too_large(subject: Subject) -> None:
    writer = _Writer(subject)
    event = writer.event("1")
    for what, body in {
        "A batch of 10,001 events": _lines([event]) * (LARGEST_BATCH + 1),
        "An event of more than 1 MiB": _lines([{**event, "data": "x" * LARGEST_EVENT_BYTES}]),
        "A batch of more than 4 MiB": _lines([event]) + b" " * LARGEST_BATCH_BYTES,
    }.items():
        answer = writer.send(gzip.compress(body), coding="gzip")
        expect(answer, what, 413)
    writer.expect_log()


@_check_sequence("The sequence of a producer is that of its last batch, and 0 before the first.")
def producer_sequence(subject: Subject) -> None:
    writer = _Writer(subject)
    for sequence in range(3):
        if sequence:
            writer.append([writer.event(str(sequence))], _counted(writer.name, sequence))
        if subject.get(PRODUCER_SEQUENCE, None, producer=writer.name) != sequence:
            fail(f"The producer's last batch is {sequence}, but the answer is another number.")
