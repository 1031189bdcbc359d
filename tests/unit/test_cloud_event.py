"""What is read from CloudEvents, and from what is none."""

from datetime import UTC, datetime

import pytest

from zeroeventhub import Event
from zeroeventhub.cloud_event import (
    event_id,
    event_identity,
    event_key,
    event_time,
    event_type,
    traceparent,
)


def cloud_event(**attributes):
    """An event with attributes."""
    return Event.of({"specversion": "1.0", **attributes})


def test_ids_are_unique_within_a_source():
    """Events of one id are the same if they come from the same source."""
    one = cloud_event(source="/shop", id="7")
    assert event_identity(one) == event_identity(cloud_event(source="/shop", id="7", data=1))
    others = [cloud_event(source="/bar", id="7"), cloud_event(source="/shop", id="8")]
    others += [cloud_event(source='/shop", "7', id=""), cloud_event(id="7")]
    assert len({event_identity(one), *map(event_identity, others)}) == 5
    assert event_identity(cloud_event(source="/shop")) is None


def test_key_is_the_partition_key_or_else_the_subject():
    """The extension Partitioning counts before the attribute that all events may have."""
    assert event_key(cloud_event(subject="ada")) == "ada"
    assert event_key(cloud_event(subject="ada", partitionkey="c7")) == "c7"
    assert event_key(cloud_event()) is None


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-01-02T03:04:05+01:00", datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", None),
        ("0001-01-01T00:00:00+01:00", None),
        ("yesterday", None),
        (7, None),
    ],
)
def test_time_is_a_moment_with_a_zone(time, expected):
    """A time is given in UTC; one without a zone, or of no moment, is none."""
    assert event_time(cloud_event(time=time)) == expected


@pytest.mark.parametrize(
    "event",
    [
        Event.of({"id": "7", "source": "/shop", "type": "t", "subject": "s", "traceparent": "p"}),
        Event.of("text"),
        Event.of([1]),
        Event(b'{"specversion":"1.0","id":"7","amount":1e400}'),
        cloud_event(id=7, type=None, subject=[], traceparent={}, time={}),
    ],
)
def test_of_what_is_no_cloud_event_nothing_is_known(event):
    """Events of other forms, or that Python cannot hold, have no attributes."""
    readers = (event_id, event_identity, event_key, event_time, event_type, traceparent)
    assert [reader(event) for reader in readers] == [None] * 6


def test_trace_is_the_events_own_or_its_headers():
    """The attribute counts before the header that v1 feeds send."""
    header = Event.of({"n": 1}, {"traceparent": "of the header"})
    both = Event.of({"specversion": "1.0", "traceparent": "its own"}, header.headers)
    assert [traceparent(header), traceparent(both)] == ["of the header", "its own"]
