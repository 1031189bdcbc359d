"""Old events that come late, and one change in several feeds: nothing stays hidden."""

from datetime import UTC, datetime, timedelta

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import JSON, BigInteger, Column, Integer, MetaData, Table, insert, text
from sqlalchemy.exc import IntegrityError

from zeroeventhub import FIRST, TableFeed

THEN = datetime(2003, 1, 1, tzinfo=UTC)

ORDERINGS = [
    ("postgresql", "observed"),
    ("postgresql", "gated"),
    ("postgresql", "sequenced"),
    ("mariadb", "observed"),
    ("mariadb", "sequenced"),
    ("sqlite", "single-writer"),
    ("sqlite", "sequenced"),
]

refunds = Table(
    "refunds",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("data", JSON),
    sqlite_autoincrement=True,
)


@pytest.fixture
def engine(request, database):
    """An engine of an empty database."""
    return request.getfixturevalue(database)


def open_feed(engine, ordering, table=orders):
    """Create a table if need be, install its ordering, and return the feed."""
    table.metadata.create_all(engine)
    source = TableFeed(
        table, data="data", time="placed" if table is orders else None, ordering=ordering
    )
    with engine.begin() as connection:
        source.install(connection)
    return source.bind(engine)


def numbers(feed, cursor=FIRST):
    """Read the numbers of all events that follow a cursor."""
    return [event.data["n"] for event in feed.read(0, cursor, 1000).events]


def old_events(count, **columns):
    """Make events of long ago, with negative numbers."""
    return [
        {"part": 0, "placed": THEN + timedelta(days=day), "data": {"n": day - count}}
        | {name: first + day for name, first in columns.items()}
        for day in range(count)
    ]


@pytest.mark.parametrize(("database", "ordering"), ORDERINGS)
def test_old_events_come_at_the_end_with_their_own_time(engine, ordering):
    """Old events that draw new positions reach everybody who follows, and keep their time."""
    feed = open_feed(engine, ordering)
    with engine.begin() as connection:
        place(connection, 3)
    cursor = feed.read(0, FIRST, 10).cursor
    with engine.begin() as connection:
        connection.execute(insert(orders), old_events(5))
        place(connection, 1, first=3)
    assert numbers(feed, cursor) == [-5, -4, -3, -2, -1, 3]
    assert numbers(feed, feed.cursor_at(THEN + timedelta(days=2)))[:2] == [-3, -2]


@pytest.mark.parametrize(("database", "ordering"), ORDERINGS)
def test_history_is_loaded_under_its_own_numbers_before_anybody_reads(engine, ordering):
    """History that is loaded before the feed is there comes first, and new events follow it."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(orders), old_events(5, id=100))
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT setval('orders_id_seq', max(id)) FROM orders"))
    feed = open_feed(engine, ordering)
    with engine.begin() as connection:
        place(connection, 2)
    assert numbers(feed) == [-5, -4, -3, -2, -1, 0, 1]


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "sqlite"])
def test_sequenced_takes_old_numbers_at_any_time(engine):
    """A sequenced feed shows rows with old numbers behind those that it has shown."""
    feed = open_feed(engine, "sequenced")
    with engine.begin() as connection:
        connection.execute(insert(orders), old_events(2, id=100))
    cursor = feed.read(0, FIRST, 10).cursor
    with engine.begin() as connection:
        connection.execute(insert(orders), old_events(3, id=50))
    assert numbers(feed, cursor) == [-3, -2, -1]


def test_gate_keeps_old_numbers_out(postgresql):
    """Behind a gate, old numbers that no consumer would see are refused."""
    open_feed(postgresql, "gated")
    with postgresql.begin() as connection:
        place(connection, 3)
    with postgresql.connect() as connection, pytest.raises(IntegrityError, match="leave id out"):
        connection.execute(insert(orders), old_events(1, id=2))


@pytest.mark.parametrize(("database", "ordering"), ORDERINGS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_change_is_in_all_of_its_feeds_or_in_none(engine, ordering, outcome):
    """A transaction that writes to the tables of two feeds is seen in both, or in neither."""
    feeds = [open_feed(engine, ordering), open_feed(engine, ordering, refunds)]
    cursors = [feed.read(0, FIRST, 10).cursor for feed in feeds]
    with engine.connect() as connection:
        place(connection, 1)
        connection.execute(insert(refunds), {"data": {"n": 0}})
        getattr(connection, outcome)()
    expected = [0] if outcome == "commit" else []
    assert [numbers(feed, cursor) for feed, cursor in zip(feeds, cursors, strict=True)] == [
        expected,
        expected,
    ]


@pytest.mark.parametrize(("database", "ordering"), ORDERINGS[:5])
def test_open_change_holds_back_each_feed_by_itself(engine, ordering):
    """While a transaction over two feeds is open, neither shows what it may still come before."""
    feeds = [open_feed(engine, ordering), open_feed(engine, ordering, refunds)]
    for feed in feeds:
        assert numbers(feed) == []
    with engine.connect() as slow:
        place(slow, 1)
        slow.execute(insert(refunds), {"data": {"n": 0}})
        with engine.begin() as connection:
            place(connection, 1, first=1)
            connection.execute(insert(refunds), {"data": {"n": 1}})
        for feed in feeds:
            assert numbers(feed) == ([1] if ordering == "sequenced" else [])
        slow.commit()
    for feed in feeds:
        assert numbers(feed) == ([1, 0] if ordering == "sequenced" else [0, 1])
