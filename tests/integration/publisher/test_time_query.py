"""Places in a feed by position and by time, none of them above the horizon."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from harness.published import TWO, published
from harness.shop import metadata, orders, place
from harness.tables import event_table
from sqlalchemy import DateTime, insert, text
from sqlalchemy.dialects import mysql, postgresql

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.cursor import Place

TIMESTAMP_0 = (
    DateTime()
    .with_variant(postgresql.TIMESTAMP(precision=0), "postgresql")
    .with_variant(mysql.DATETIME(fsp=0), "mysql", "mariadb")
)
"""A column of times without a fraction of a second; SQLite has text."""

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
ELSEWHERE = timezone(timedelta(hours=5, minutes=30))


def events(feed, cursor, partition=0):
    """Read the data of all events that follow a cursor."""
    return [event.data for event in feed.read(partition, cursor, 1000).events]


def place_at(engine, minutes, part=0):
    """Append events of given minutes after noon, each in a transaction of its own."""
    for minute in minutes:
        with engine.begin() as connection:
            row = {"part": part, "placed": NOON + timedelta(minutes=minute), "data": {"m": minute}}
            connection.execute(insert(orders), row)


def test_moment_keeps_its_cursor(publishing):
    """A moment is the same in any zone; its cursor stays, and is looked for in one partition."""
    make, engine = publishing
    feed = make(time="placed", **TWO)
    place_at(engine, [0, 10, 5])
    moment, first = _minute(10), feed.cursor_at(_minute(10))
    assert feed.cursor_at(moment.astimezone(ELSEWHERE)) == first
    with pytest.raises(ConfigurationError, match="time zone"):
        feed.cursor_at(moment.replace(tzinfo=None))
    place_at(engine, [10, 4, 30])
    assert feed.cursor_at(moment) == first
    assert feed.cursor_at(_minute(60)) == feed.read(0, LAST, 1).cursor
    place_at(engine, [20, 50], part=1)
    assert events(feed, feed.cursor_at(_minute(40), 1), 1) == [{"m": 50}]
    assert events(feed, feed.cursor_at(_minute(20), 0), 0) == [{"m": 30}]


def test_sequenced_feed_knows_when_positions_were_given(engine):
    """Without a time column, a moment is compared with when the event got its position."""
    feed = published(engine, ordering="sequenced", **TWO)
    moments = []
    for minute in range(10):
        place_at(engine, [minute], part=minute % 2)
        feed.read(0, FIRST, 1)
        moments.append(datetime.now(UTC) + timedelta(milliseconds=2))
        time.sleep(0.004)  # SQLite's clock counts milliseconds
    everything = range(10)
    for moment, minute in zip(moments, everything, strict=True):
        found = events(feed, feed.cursor_at(moment)) + events(feed, feed.cursor_at(moment, 1), 1)
        assert sorted(event["m"] for event in found) == [*everything[minute + 1 :]]
    assert feed.cursor_at(NOON) == "1-0"


def test_feed_without_times_says_so(engine):
    """Where no column is the time, or one of text is, a moment is refused with what to change."""
    for time_, complaint in ((None, "which column"), ("kind", "timestamps")):
        with pytest.raises(ConfigurationError, match=complaint):
            published(engine, time=time_).cursor_at(NOON)


def _minute(number):
    return NOON + timedelta(minutes=number)


@pytest.mark.parametrize("form", ["12:00:01", "12:00:01.000000", "12:00:01.5", "12:00:01.500000"])
def test_moment_of_sqlite_is_found_in_every_form(sqlite, form):
    """Times that SQLite or others wrote, with a fraction or without, are of their second."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        for time_of_day in ("12:00:00.9", form, "12:00:02"):
            row = f"INSERT INTO orders (placed, data) VALUES ('2013-01-01 {time_of_day}', '{{}}')"
            connection.execute(text(row))
    feed = TableFeed(orders, data="data", time="placed").bind(sqlite)
    for micros, position in ((0, 1), (999_999, 1), (1_000_000, 2)):
        moment = NOON + timedelta(seconds=1, microseconds=micros)
        assert Place.of(feed.cursor_at(moment)).position == position


def test_event_whose_time_was_cut_lies_behind_its_moment(engine):
    """A database that keeps seconds cuts a time; a moment of the same second is before it."""
    table = event_table("cut", at=TIMESTAMP_0)
    table.create(engine)
    written = NOON.replace(microsecond=700_000, tzinfo=None)
    with engine.begin() as connection:
        cut = {"sqlite": written.replace(microsecond=0)}.get(engine.dialect.name, written)
        connection.execute(insert(table), [{"at": cut - timedelta(seconds=2)}, {"at": cut}])
    feed = TableFeed(table, time="at", data={"id": table.c.id}).bind(engine)
    cursor = feed.cursor_at(NOON.replace(microsecond=600_000))
    assert [event.data for event in feed.read(0, cursor, 9).events][-1] == {"id": 2}


@pytest.mark.parametrize("micros", [0, 400, 999])
def test_position_given_in_the_millisecond_of_a_moment_lies_behind_it(sqlite, micros):
    """SQLite notes when a position was given in milliseconds; a moment within one is before it."""
    metadata.create_all(sqlite)
    publisher = TableFeed(orders, data="data", ordering="sequenced", **TWO)
    with sqlite.begin() as connection:
        publisher.install(connection)
        place(connection, 1)
        (table,) = connection.execute(
            text("SELECT name FROM sqlite_master WHERE name LIKE 'zeroeventhub_positions%'")
        ).scalars()
        noted = "2013-01-01 12:00:00.123000"
        connection.execute(text(f"UPDATE {table} SET at = :noted"), {"noted": noted})
    feed = publisher.bind(sqlite)
    moment = NOON + timedelta(milliseconds=123, microseconds=micros)
    assert Place.of(feed.cursor_at(moment)).position == 0
