"""How many events lie behind a cursor, and how old the first of them is: on every database."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from harness.published import EVERY_ORDERING, TWO, published
from harness.shop import metadata, orders, place
from sqlalchemy import DateTime, insert, literal_column, null, type_coerce

from zeroeventhub import FIRST, LAST, Lag, TableFeed
from zeroeventhub.errors import BadCursor, Diverged, FeedFailure, Trimmed
from zeroeventhub.publisher import lag_query


@pytest.fixture(params=EVERY_ORDERING)
def publishing(request):
    """Make a feed over orders on each database, in each of its orderings; and its engine."""
    database, ordering = request.param
    engine = request.getfixturevalue(database)
    return lambda **options: published(engine, ordering=ordering, **options), engine


def counted(feed, cursor, partition=0):
    """The number of events behind a cursor, which has to be all of them."""
    lag = feed.lag(partition, cursor)
    assert lag.exact
    return lag.events


@pytest.mark.parametrize("options", [{}, TWO], ids=["one partition", "two"])
def test_lag_is_what_a_reader_would_get(publishing, options):
    """From every cursor as many events are counted as are read, in each partition."""
    make, engine = publishing
    feed = make(**options)
    assert feed.lag(0, FIRST) == Lag(0, 0.0)
    with engine.begin() as connection:
        place(connection, 23, partitions=len(feed.info().partitions))
    for partition in feed.info().partitions:
        cursor = FIRST
        while True:
            page = feed.read(partition.id, cursor, 4)
            rest = feed.read(partition.id, cursor, 100)
            assert counted(feed, cursor, partition.id) == len(rest.events)
            if not page.events:
                break
            cursor = page.cursor
        assert feed.lag(partition.id, cursor) == feed.lag(partition.id, LAST) == Lag(0, 0.0)


def test_events_that_are_deleted_are_not_counted(publishing):
    """What can no longer be read lies behind no cursor, even if it still has a position."""
    make, engine = publishing
    feed = make(time="placed", mutable=True)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        ages = [500, 400, 300, 200, 100, 50]
        rows = [{"placed": now - timedelta(seconds=age), "data": {}} for age in ages]
        connection.execute(insert(orders), rows)
    assert counted(feed, FIRST) == 6
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id.in_([1, 2, 5])))
    lag = feed.lag(0, FIRST)
    assert (lag.events, lag.exact) == (3, True)
    assert 299 < lag.seconds < 360
    with engine.begin() as connection:
        connection.execute(orders.delete())
    assert feed.lag(0, FIRST) == Lag(0, 0.0)


def test_count_ends_somewhere(publishing, monkeypatch):
    """Beyond what is counted at most there are more, and that is said."""
    monkeypatch.setattr(lag_query, "MOST", 5)
    monkeypatch.setattr(lag_query, "MOST_LOOKED_UP", 4)
    make, engine = publishing
    feed = make(**TWO)
    # Where positions lie beside the events, they know when they were given.
    most = 4 if "cursor-of-time" in feed.info().extensions else 5
    for count in range(1, 7):
        with engine.begin() as connection:
            place(connection, 2, partitions=2)
        for partition in (0, 1):
            lag = feed.lag(partition, FIRST)
            assert (lag.events, lag.exact) == (min(count, most), count <= most)


def test_deleted_events_may_hide_others(engine, monkeypatch):
    """Where nothing but deleted events was looked at, what lies behind them is not known."""
    monkeypatch.setattr(lag_query, "MOST_LOOKED_UP", 5)
    feed = published(engine, ordering="sequenced", mutable=True)
    with engine.begin() as connection:
        place(connection, 9)
    assert feed.lag(0, FIRST).events == 5
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id < 8))
    assert feed.lag(0, FIRST) == Lag(0, None, exact=False)


def ages(feed, engine, placed):
    """The age of an event that was placed at a moment, and is the only one."""
    with engine.begin() as connection:
        connection.execute(orders.delete())
        connection.execute(insert(orders), {"placed": placed, "data": {}})
    return feed.lag(0, FIRST).seconds


def test_age_is_told_by_the_time_of_the_first_event(publishing):
    """A moment in any zone is as long ago as it is; one to come is not ago at all; and without a
    time the age is known to an ordering alone that gave the event its position.
    """
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
    """A time may be text of ISO 8601; text that is no time is a row that cannot be served."""
    metadata.create_all(sqlite)
    feed = TableFeed(orders, data="data", time="customer", mutable=True).bind(sqlite)
    with sqlite.begin() as connection:
        moment = (datetime.now(UTC) - timedelta(minutes=10)).isoformat()
        connection.execute(insert(orders), {"customer": moment, "data": {}})
    assert 600 <= feed.lag(0, FIRST).seconds < 660
    with sqlite.begin() as connection:
        connection.execute(orders.update().values(customer="yesterday"))
    with pytest.raises(FeedFailure, match="position 1 has no time"):
        feed.lag(0, FIRST)
    odd = type_coerce(orders.c.customer, DateTime)
    feed = TableFeed(orders, data="data", time=odd, mutable=True).bind(sqlite)
    with pytest.raises(FeedFailure, match="position 1 has no time"):
        feed.lag(0, FIRST)


def test_time_may_be_an_expression(sqlite):
    """What is not a column is asked for as it is."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 1)
    for time, seconds in [(type_coerce(null(), DateTime), None), (_moment("'2999-01-01'"), 0)]:
        feed = TableFeed(orders, data="data", time=time).bind(sqlite)
        assert feed.lag(0, FIRST) == Lag(1, seconds)


def _moment(sql):
    return type_coerce(literal_column(sql), DateTime)


def test_lag_of_a_cursor_is_refused_as_a_read_is(sqlite):
    """A cursor of no feed, of another history, or below what is left is refused."""
    metadata.create_all(sqlite)
    feed = TableFeed(orders, data="data").bind(sqlite)
    with sqlite.begin() as connection:
        place(connection, 9)
    cursor = feed.read(0, FIRST, 5).cursor
    with pytest.raises(BadCursor):
        feed.lag(0, "nonsense")
    with pytest.raises(Diverged):
        feed.lag(0, "1-99")
    with sqlite.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id < 6))
    with pytest.raises(Trimmed):
        feed.lag(0, cursor)


def test_what_is_not_settled_is_not_counted(postgresql):
    """Beside an open writer only the events below its number lie behind a cursor."""
    feed = published(postgresql, **TWO)
    with postgresql.begin() as connection:
        place(connection, 4, partitions=2)
    before = counted(feed, FIRST)
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 6, partitions=2)
        assert counted(feed, FIRST) == before
        slow.commit()
    assert counted(feed, FIRST) == before + 4
