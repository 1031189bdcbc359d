"""How many events lie behind a cursor, and how old the first of them is: on every database."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from harness.published import TWO, published
from harness.shop import metadata, orders, write
from harness.statements import execute
from sqlalchemy import insert

from zeroeventhub import FIRST, Lag, TableFeed
from zeroeventhub.errors import FeedFailure
from zeroeventhub.publisher import lookups


def test_count_ends_somewhere(publishing, monkeypatch):
    """Beyond what is counted at most there are more, and that is said."""
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
    """Where nothing but deleted events was looked at, what lies behind them is not known."""
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
    execute(sqlite, orders.update().values(customer="yesterday"))
    with pytest.raises(FeedFailure, match="position 1 has no time"):
        feed.lag(0, FIRST)
