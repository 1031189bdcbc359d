"""Positions that are found by a time, by an id or by a count, and the lag, on every database."""

import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from harness.engines import connected
from harness.published import TWO, published
from harness.shop import metadata, orders, place, write
from harness.statements import add, execute
from harness.tables import event_table
from sqlalchemy import DateTime, Float, Integer, Uuid, insert, text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, LAST, Lag, TableFeed
from zeroeventhub.errors import BadCursor, ConfigurationError, FeedFailure
from zeroeventhub.publisher import lookups
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
    """A moment has the same cursor in any zone and at any later time, in each partition."""
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
    """Without a column of timestamps, the error for a moment says which option to give."""
    for time_, complaint in ((None, "which column"), ("kind", "timestamps")):
        with pytest.raises(ConfigurationError, match=complaint):
            published(engine, time=time_).cursor_at(NOON)


def _minute(number):
    return NOON + timedelta(minutes=number)


@pytest.mark.parametrize("real", ["timestamptz", "timestamp"])
@pytest.mark.parametrize("declared", [True, False])
def test_moment_of_postgresql_is_found_in_sessions_of_any_zone(postgresql, real, declared):
    """Neither the zone of a session nor a declaration without or with a zone moves a moment."""
    execute(postgresql, f"CREATE TABLE log (id bigserial PRIMARY KEY, at {real})")
    table = event_table("log", at=DateTime(timezone=declared))
    for zone in ("America/Los_Angeles", "Pacific/Kiritimati"):
        with connected(postgresql.url, options=f"-c TimeZone={zone}") as host:
            execute(host, "TRUNCATE log RESTART IDENTITY")
            for hour in (10, 11, 12, 13):
                execute(host, f"INSERT INTO log (at) VALUES ('2013-01-01 {hour}:00+00')")
            feed = TableFeed(table, data=["id"], time="at").bind(host)
            assert events(feed, feed.cursor_at(NOON)) == [{"id": 3}, {"id": 4}]


@pytest.mark.parametrize("form", ["12:00:01", "12:00:01.000000", "12:00:01.5", "12:00:01.500000"])
def test_moment_of_sqlite_is_found_in_every_form(sqlite, form):
    """SQLite's texts of times are compared by their value, with a fraction or without."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        for time_of_day in ("12:00:00.9", form, "12:00:02"):
            row = f"INSERT INTO orders (placed, data) VALUES ('2013-01-01 {time_of_day}', '{{}}')"
            connection.execute(text(row))
    feed = TableFeed(orders, data="data", time="placed").bind(sqlite)
    for micros, position in ((0, 1), (999_999, 1), (1_000_000, 2)):
        moment = NOON + timedelta(seconds=1, microseconds=micros)
        assert Place.of(feed.cursor_at(moment)).position == position


@pytest.mark.parametrize("declared", [TIMESTAMP_0, DateTime()], ids=["as it is", "without digits"])
@pytest.mark.parametrize("tenth", [7, 3])
def test_event_whose_time_was_cut_follows_its_moment(engine, declared, tenth):
    """An event whose time the database truncated or rounded follows a moment of the same second."""
    event_table("cut", at=TIMESTAMP_0).create(engine)
    table = event_table("cut", at=declared)
    written = NOON.replace(microsecond=tenth * 100_000, tzinfo=None)
    with engine.begin() as connection:
        cut = {"sqlite": written.replace(microsecond=0)}.get(engine.dialect.name, written)
        connection.execute(insert(table), [{"at": cut - timedelta(seconds=2)}, {"at": cut}])
    feed = TableFeed(table, time="at", data={"id": table.c.id}).bind(engine)
    cursor = feed.cursor_at(NOON.replace(microsecond=(tenth - 1) * 100_000))
    assert [event.data for event in feed.read(0, cursor, 9).events] == [{"id": 2}]


@pytest.mark.parametrize("micros", [0, 400, 999])
def test_position_given_in_the_millisecond_of_a_moment_follows_it(sqlite, micros):
    """A position that SQLite gave in the millisecond of a moment follows the moment."""
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


def test_event_is_found_by_its_id(engine):
    """The cursor of an id is the one after its event, and ids are compared exactly."""
    feed, names = published(engine, id="customer"), ["ada", "Ada", "ada ", "7", "\u00e9", "e"]
    add(engine, orders, [{"customer": name, "data": {}} for name in names])
    feed.head()
    for number, name in enumerate(names, 1):
        assert feed.cursor_of(name) == feed.cursor_after(number)
    for unknown in ("ADA", "07", "", "a\0b", "x" * 5000, "\u00c9", "E", "7 "):
        with pytest.raises(BadCursor):
            feed.cursor_of(unknown)


def test_ids_of_numbers_and_uuids_are_found(engine):
    """Ids of numbers and UUIDs are found by their text; other texts have no event."""
    table = event_table("log", position="number", name=Uuid, size=Integer, weight=Float)
    table.metadata.create_all(engine)
    name = uuid.UUID("6f1d9d5e-6c8c-4f0e-9d4b-0d6b1f0a2c3e")
    add(engine, table, {"name": name, "size": -10})
    by_number, by_name, by_size = (
        TableFeed(table, id=column, data=["size"], cloudevents=True).bind(engine)
        for column in (None, "name", "size")
    )
    for feed, known in ((by_number, "1"), (by_name, str(name)), (by_size, "-10")):
        assert feed.read(0, FIRST, 1).events[0].data["id"] == known
        assert feed.cursor_of(known) == feed.cursor_after(1)
    for feed, unknown in [
        *((by_number, name) for name in ("2", "01", "+1", "one", "9" * 30, f"{2**64 + 1}")),
        *((by_name, name) for name in ("1", "", str(uuid.UUID(int=1)))),
        *((by_size, name) for name in ("10", "-010", "-10.0", "-\u0661\u0660", "0", "9" * 19)),
    ]:
        with pytest.raises(BadCursor):
            feed.cursor_of(unknown)
    with pytest.raises(ConfigurationError, match="found by an id"):
        TableFeed(table, id="weight").bind(engine).cursor_of("1")


def test_count_ends_somewhere(publishing, monkeypatch):
    """A lag above the limit is reported as the limit, and as not exact."""
    monkeypatch.setattr(lookups, "MOST", 5)
    monkeypatch.setattr(lookups, "MOST_LOOKED_UP", 4)
    make, engine = publishing
    feed = make(**TWO)
    # Where positions lie beside the events, they know when they were given.
    most = 4 if "cursor-of-time" in feed.info().extensions else 5
    for count in range(1, 7):
        write(engine, 2, partitions=2)
        for partition in (0, 1):
            lag = feed.lag(partition, FIRST)
            assert (lag.events, lag.exact) == (min(count, most), count <= most)


def test_deleted_events_may_hide_others(engine, monkeypatch):
    """If a count examines only deleted events, it is not exact."""
    monkeypatch.setattr(lookups, "MOST_LOOKED_UP", 5)
    feed = published(engine, ordering="sequenced", mutable=True)
    write(engine, 9)
    assert feed.lag(0, FIRST).events == 5
    execute(engine, orders.delete().where(orders.c.id < 8))
    assert feed.lag(0, FIRST) == Lag(0, None, exact=False)


def ages(feed, engine, placed):
    """The age of an event that was placed at a moment, and is the only one."""
    with engine.begin() as connection:
        connection.execute(orders.delete())
        connection.execute(insert(orders), {"placed": placed, "data": {}})
    return feed.lag(0, FIRST).seconds


def test_age_is_told_by_the_time_of_the_first_event(publishing):
    """The age of an event respects its zone, is never negative, and is None if unknown."""
    make, engine = publishing
    feed = make(time="placed", mutable=True)
    now = datetime.now(UTC)
    assert 600 <= ages(feed, engine, now - timedelta(minutes=10)) < 660
    elsewhere = (now - timedelta(minutes=10)).astimezone(timezone(timedelta(hours=5)))
    if engine.dialect.name == "postgresql":  # the others forget zones
        assert 600 <= ages(feed, engine, elsewhere) < 660
    assert ages(feed, engine, now + timedelta(minutes=10)) == 0
    assert ages(feed, engine, None) is None
    feed = make(mutable=True)
    seconds = ages(feed, engine, None)
    if "cursor-of-time" in feed.info().extensions:
        assert 0 <= seconds < 60
    else:
        assert seconds is None


def test_age_is_told_by_text_as_well(sqlite):
    """A time may be text of ISO 8601; other text is a FeedFailure."""
    metadata.create_all(sqlite)
    feed = TableFeed(orders, data="data", time="customer", mutable=True).bind(sqlite)
    with sqlite.begin() as connection:
        moment = (datetime.now(UTC) - timedelta(minutes=10)).isoformat()
        connection.execute(insert(orders), {"customer": moment, "data": {}})
    assert 600 <= feed.lag(0, FIRST).seconds < 660
    execute(sqlite, orders.update().values(customer="yesterday"))
    with pytest.raises(FeedFailure, match="position 1 has no time"):
        feed.lag(0, FIRST)


@pytest.mark.anyio
async def test_time_that_python_lacks_is_an_error_that_says_where(postgresql):
    """A time after the year 9999 is a FeedFailure that says where it is, whatever the driver."""
    execute(postgresql, "CREATE TABLE late (id BIGSERIAL PRIMARY KEY, at TIMESTAMP)")
    execute(postgresql, "INSERT INTO late (at) VALUES ('10001-01-01')")
    late = event_table("late", at=DateTime())
    with pytest.raises(FeedFailure, match="position 1 has no time: timestamp too large"):
        TableFeed(late, data=["id"], time="at").bind(postgresql).lag(0, FIRST)
    own = create_async_engine(postgresql.url.set(drivername="postgresql+asyncpg"))
    with pytest.raises(FeedFailure, match="position 0 or after it cannot be published"):
        await TableFeed(late, data=["id"], headers={"at": "at"}).bind(own).read(0, FIRST, 9)
    await own.dispose()
