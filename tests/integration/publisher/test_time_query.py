"""Places in a feed by position and by time, none of them above the horizon."""

import random
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import insert, text

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.publisher.cursor import Place

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
ELSEWHERE = timezone(timedelta(hours=5, minutes=30))


def source(**options):
    """A feed over two partitions of orders that knows their times."""
    return TableFeed(
        orders, data="data", partition="part", partitions=2, **{"time": "placed", **options}
    )


@pytest.fixture(params=["by default", "sequenced"])
def seeking(request, engine):
    """Make a feed over an empty table of orders, in two orderings on each database."""
    metadata.create_all(engine)

    def make(**options):
        ordering = None if request.param == "by default" else "sequenced"
        publisher = source(ordering=ordering, **options)
        with engine.begin() as connection:
            publisher.install(connection)
        return publisher.bind(engine)

    return make


def events(feed, cursor, partition=0):
    """Read the data of all events that follow a cursor."""
    return [event.data for event in feed.read(partition, cursor, 1000).events]


def place_at(engine, minutes, part=0):
    """Append events of given minutes after noon, each in a transaction of its own."""
    for minute in minutes:
        with engine.begin() as connection:
            row = {"part": part, "placed": NOON + timedelta(minutes=minute), "data": {"m": minute}}
            connection.execute(insert(orders), row)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.test_all) for seed in (1, 2))]
)
def test_moment_leaves_no_later_event_behind(seeking, engine, seed):
    """Behind the cursor of a moment come all of its events and later ones, the first of all first,
    although times do not rise with positions.
    """
    dice = random.Random(seed)
    minutes = [dice.randrange(60) for _ in range(30)]
    place_at(engine, minutes)
    place_at(engine, [0, 59], part=1)
    feed = seeking()
    for moment in range(-1, 62, 7):
        found = [event["m"] for event in events(feed, feed.cursor_at(_minute(moment)))]
        late = [minute for minute in minutes if minute >= moment]
        assert [minute for minute in found if minute >= moment] == late
        assert found[:1] == late[:1]


def test_moment_keeps_its_cursor(seeking, engine):
    """A moment is the same in any zone, and its cursor stays once one of its events is settled."""
    place_at(engine, [0, 10, 5])
    feed = seeking()
    moment, first = _minute(10), feed.cursor_at(_minute(10))
    assert feed.cursor_at(moment.astimezone(ELSEWHERE)) == first
    with pytest.raises(ConfigurationError, match="time zone"):
        feed.cursor_at(moment.replace(tzinfo=None))
    place_at(engine, [10, 4, 30])
    assert feed.cursor_at(moment) == first
    assert feed.cursor_at(_minute(60)) == feed.read(0, LAST, 1).cursor


def test_partition_has_moments_of_its_own(seeking, engine):
    """A moment is looked for in one partition."""
    place_at(engine, [30], part=0)
    place_at(engine, [10, 30], part=1)
    feed = seeking()
    assert events(feed, feed.cursor_at(_minute(20), 1), 1) == [{"m": 30}]
    assert events(feed, feed.cursor_at(_minute(20), 0), 0) == [{"m": 30}]


@pytest.mark.parametrize("ordering", ["observed", "gated"])
def test_no_place_lies_above_the_horizon(postgresql, ordering):
    """Beside an open writer neither a moment nor a position leads past what it may still write."""
    metadata.create_all(postgresql)
    publisher = source(ordering=ordering)
    with postgresql.begin() as connection:
        publisher.install(connection)
    feed = publisher.bind(postgresql)
    place_at(postgresql, [0])
    assert len(events(feed, FIRST)) == 1
    with postgresql.connect() as slow:
        place(slow, 1)
        place_at(postgresql, [10])
        here = feed.cursor_after(1)
        assert Place.of(here).position == 1
        assert feed.cursor_at(_minute(10)) == feed.read(0, LAST, 1).cursor == here
        with pytest.raises(BadCursor, match="0 to 1"):
            feed.cursor_after(2)
        slow.commit()
    assert [event["m"] for event in events(feed, feed.cursor_at(_minute(10)))] == [10]
    assert Place.of(feed.cursor_after(2)).position == 2


def test_position_need_not_be_that_of_an_event(seeking, engine):
    """The cursor after a position is good where its event is gone, and 0 is the beginning."""
    place_at(engine, [0, 10, 20])
    feed = seeking()
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM orders WHERE id = 2"))
    assert events(feed, feed.cursor_after(2)) == [{"m": 20}]
    assert len(events(feed, feed.cursor_after(0))) == 2
    for wrong in (-1, 4):
        with pytest.raises(BadCursor):
            feed.cursor_after(wrong)


def test_sequenced_feed_knows_when_positions_were_given(engine):
    """Without a time column, a moment is compared with when the event got its position."""
    metadata.create_all(engine)
    publisher = source(ordering="sequenced", time=None)
    with engine.begin() as connection:
        publisher.install(connection)
    feed = publisher.bind(engine)
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
    metadata.create_all(engine)
    with pytest.raises(ConfigurationError, match="which column"):
        source(time=None).bind(engine).cursor_at(NOON)
    with pytest.raises(ConfigurationError, match="timestamps"):
        source(time="kind").bind(engine).cursor_at(NOON)


def _minute(number):
    return NOON + timedelta(minutes=number)


@pytest.mark.parametrize("form", ["12:00:01", "12:00:01.000000", "12:00:01.5", "12:00:01.500000"])
def test_moment_of_sqlite_is_found_in_every_form(sqlite, form):
    """Times that SQLite or others wrote, with a fraction or without, are of their moment."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        for time_of_day in ("12:00:00", form, "12:00:02"):
            row = f"INSERT INTO orders (placed, data) VALUES ('2013-01-01 {time_of_day}', '{{}}')"
            connection.execute(text(row))
    feed = TableFeed(orders, data="data", time="placed").bind(sqlite)
    moment = datetime.fromisoformat(f"2013-01-01T{form}+00:00")
    assert Place.of(feed.cursor_at(moment)).position == 1
    assert Place.of(feed.cursor_at(moment + timedelta(microseconds=1))).position == 2
