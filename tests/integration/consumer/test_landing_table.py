"""Landing events in a table, exactly as they came."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Text, cast, select

from zeroeventhub import Event
from zeroeventhub.consumer.landing import LandingTable

CLOUD_EVENT = {
    "specversion": "1.0",
    "id": "e1",
    "source": "/shop",
    "type": "placed",
    "time": "2013-01-01T12:00:00.5+02:00",
    "partitionkey": "c7",
    "data": {"n": 1},
}


@pytest.fixture
def landing(engine):
    """A landing table that has been created."""
    landing = LandingTable("landed")
    with engine.begin() as connection:
        landing.create(connection)
    return landing


def rows(engine, landing):
    """Read all rows in the order of arrival."""
    columns = landing.table.c
    with engine.connect() as connection:
        query = select(landing.table).order_by(columns.partition, columns.arrival)
        return [row._asdict() for row in connection.execute(query)]


def test_arrival_counts_within_a_partition(engine, landing):
    """Events are numbered 1, 2, 3 … within their partition, over any number of pages."""
    for partition, count in [(0, 2), (1, 1), (0, 2)]:
        with engine.begin() as connection:
            landing.land(connection, partition, [Event.of({"n": n}) for n in range(count)])
    places = [(row["partition"], row["arrival"]) for row in rows(engine, landing)]
    assert places == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1)]


NAMES = ("id", "type", "time", "key")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)


def test_attributes_are_those_of_a_cloudevent(engine, landing):
    """Id, type, time and key of a CloudEvent have columns of their own, and others leave NULL."""
    others = [{"id": "x", "type": "y"}, "text", {"specversion": 1, "id": 5}]
    # A time without a zone is not read in the zone of whatever machine this is.
    moments = ["2013-01-01T12:00:00", "2013-01-01", "noon", 5]
    sent = [CLOUD_EVENT, *others, *({**CLOUD_EVENT, "time": one} for one in moments)]
    with engine.begin() as connection:
        landing.land(connection, 0, [Event.of(data) for data in sent])
    found = rows(engine, landing)
    assert [row["data"] for row in found] == sent
    times = [one and one.replace(tzinfo=one.tzinfo or UTC) for one in (r["time"] for r in found)]
    assert times == [MOMENT, *[None] * 7]
    assert [row["id"] for row in found] == ["e1", *[None] * 3, *["e1"] * 4]
    assert [found[0][name] for name in ("id", "type", "key")] == ["e1", "placed", "c7"]
    assert {row[name] for row in found[1:4] for name in NAMES} == {None}


def test_numbers_land_with_all_their_digits(engine, landing):
    """Data is stored as it came, though Python could not hold its numbers."""
    raw = b'{"n":123456789012345678901234567890.12345678901234567890}'
    with engine.begin() as connection:
        landing.land(connection, 0, [Event(raw)])
    with engine.connect() as connection:
        stored = connection.scalar(select(cast(landing.table.c.data, Text)))
    assert stored.replace(" ", "") == raw.decode()
