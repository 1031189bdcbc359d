"""What is read from CloudEvents, and from what is none."""

from datetime import UTC, datetime

import pytest

from zeroeventhub import Event
from zeroeventhub.wire.cloud_event import (
    event_id,
    event_identity,
    event_key,
    event_time,
    event_type,
    traceparent,
)


def cloud_event(headers=None, **attributes):
    """An event with attributes."""
    return Event.of({"specversion": "1.0", **attributes}, headers)


def test_ids_are_unique_within_a_source():
    """Events of one id are the same if they come from the same source."""
    one = cloud_event(source="/shop", id="7")
    assert event_identity(one) == event_identity(cloud_event(source="/shop", id="7", data=1))
    others = [cloud_event(source="/bar", id="7"), cloud_event(source="/shop", id="8")]
    others += [cloud_event(source='/shop", "7', id=""), cloud_event(id="7")]
    assert len({event_identity(one), *map(event_identity, others)}) == 5
    assert event_identity(cloud_event(source="/shop")) is None


MOMENT = datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
IN_HEADER = {"traceparent": "of the header"}


@pytest.mark.parametrize(
    ("reader", "event", "expected"),
    [
        (event_key, cloud_event(subject="ada"), "ada"),
        (event_key, cloud_event(subject="ada", partitionkey="c7"), "c7"),
        (event_key, cloud_event(subject="ada", partitionkey=None), "ada"),
        (event_key, cloud_event(), None),
        (event_time, cloud_event(time="2026-01-02T03:04:05+01:00"), MOMENT),
        (event_time, cloud_event(time="2026-01-02T03:04:05"), None),
        (event_time, cloud_event(time="0001-01-01T00:00:00+01:00"), None),
        (event_time, cloud_event(time="yesterday"), None),
        (event_time, cloud_event(time=7), None),
        (traceparent, Event.of({"n": 1}, IN_HEADER), "of the header"),
        (traceparent, cloud_event(IN_HEADER, traceparent="its own"), "its own"),
    ],
)
def test_attribute_is_the_first_that_counts(reader, event, expected):
    """The partition key counts before the subject, and a trace's attribute before its header."""
    assert reader(event) == expected


@pytest.mark.parametrize(
    "event",
    [
        Event.of({"id": "7", "source": "/shop", "type": "t", "subject": "s", "traceparent": "p"}),
        Event.of("text"),
        Event.of([1]),
        Event(b'{"specversion":"1.0","id":1e400}'),
        cloud_event(id=7, type=None, subject=[], traceparent={}, time={}),
    ],
)
def test_of_what_is_no_cloud_event_nothing_is_known(event):
    """Events of other forms have no attributes, nor is one of another type, or too large."""
    readers = (event_id, event_identity, event_key, event_time, event_type, traceparent)
    assert [reader(event) for reader in readers] == [None] * 6


def test_number_that_python_cannot_hold_hides_no_attribute():
    """An event has its key and id whatever its data is, so that it is in order with its key's."""
    event = Event(
        b'{"specversion":"1.0","source":"/shop","id":"7","type":"t","subject":"ada",'
        b'"time":"2026-01-02T02:04:05Z","data":{"n":1e400}}'
    )
    readers = (event_identity, event_key, event_time, event_type)
    assert [reader(event) for reader in readers] == ['["/shop", "7"]', "ada", MOMENT, "t"]
