"""What trimming takes and what it leaves: plans, batches, and those who stand in its way."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from harness.log import LOG, Log, append, stranger
from harness.ordering_table import ALL, OBSERVED, OBSERVED_MARIADB, SEQUENCING
from harness.shop import metadata, orders
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, event, func, insert, select

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    Diverged,
    FeedFailure,
    Trimmed,
    Unavailable,
)
from zeroeventhub.publisher.deleting import pacing
from zeroeventhub.publisher.retention import Retention

HOUR = timedelta(hours=1)


@pytest.fixture
def log(request, case):
    """A log in an empty database, whose feed is trimmed."""
    found = Log(request.getfixturevalue(case.database), case)
    LOG.metadata.create_all(found.engine)
    with found.engine.begin() as connection:
        found.source(retention=Retention()).install(connection)
    found.feed = found.source(retention=Retention()).bind(found.engine)
    return found


def of_each(*cases):
    """Run a test for orderings, each on its database."""
    names = [f"{case.ordering}-{case.database}" for case in cases]
    return pytest.mark.parametrize("case", cases, ids=names)


def shop_source(**options):
    """Return a feed over orders in two partitions."""
    given = {"data": "data", "partition": "part", "partitions": 2, "time": "placed"}
    return TableFeed(orders, **{**given, "retention": Retention(), **options})


@pytest.fixture
def shop(engine):
    """An engine of a database with ten orders, the oldest of ten hours ago."""
    metadata.create_all(engine)
    now = datetime.now(UTC)
    with engine.begin() as connection:
        shop_source().install(connection)
        for hours in range(10, 0, -1):
            row = {"part": hours % 2, "placed": now - hours * HOUR, "data": {"n": hours}}
            connection.execute(insert(orders), row)
    return engine


def numbers(feed, partition=0):
    """Return the numbers of all events of a partition that are left."""
    return [event.data["n"] for event in feed.read(partition, FIRST, 1000).events]


def test_plan_by_age(shop):
    """By age all events go before which there is none that is younger, whatever the partition."""
    feed = shop_source().bind(shop)
    plan = feed.plan_trim(older_than=4.5 * HOUR)
    assert (plan.events, plan.first, plan.until, plan.wanted) == (6, 1, 6, 6)
    assert plan.newest - plan.oldest == 5 * HOUR
    assert "6 events would go, positions 1 to 6, of " in str(plan)
    with shop.begin() as connection:
        young = {"part": 0, "placed": datetime.now(UTC)}
        connection.execute(orders.update().where(orders.c.id == 4).values(young))
    plan = feed.plan_trim(older_than=4.5 * HOUR)
    assert (plan.events, plan.until) == (3, 3)
    assert feed.trim(plan) == 3
    assert (numbers(feed), numbers(feed, 1)) == ([7, 6, 4, 2], [5, 3, 1])


def test_all_that_is_said_holds_for_what_goes(shop):
    """Of an age, a position and what is kept elsewhere the lowest counts."""
    feed = shop_source().bind(shop)
    for cut, until in (
        ({"older_than": 4.5 * HOUR, "below": 4}, 3),
        ({"older_than": 4.5 * HOUR, "below": 9}, 6),
        ({"older_than": 4.5 * HOUR, "sealed": 2}, 2),
        ({"sealed": lambda: 5}, 5),
        ({"below": feed.cursor_after(7)}, 7),
        ({"below": 99}, 10),
        ({"older_than": timedelta(0)}, 10),
    ):
        assert feed.plan_trim(**cut).until == until, cut
    for cut in ({"older_than": 20 * HOUR}, {"below": 1}, {"sealed": 0}, {"sealed": -1}):
        plan = feed.plan_trim(**cut)
        assert (plan.first, plan.events, plan.until) == (None, 0, 0)
        assert feed.trim(plan) == 0
        assert str(plan) == "Nothing to trim: the mark is at position 0."


def test_what_cannot_be_meant_is_refused(shop):
    """A plan for nothing, for times to come, and for times that nobody knows, is refused."""
    feed = shop_source().bind(shop)
    with pytest.raises(ConfigurationError, match="Say what to trim"):
        feed.plan_trim()
    with pytest.raises(ConfigurationError, match="still to come"):
        feed.plan_trim(older_than=-HOUR)
    with pytest.raises(ConfigurationError, match="does not know the times"):
        shop_source(time=None).bind(shop).plan_trim(older_than=HOUR)
    with pytest.raises(ConfigurationError, match=r"retention=Retention\(\)"):
        shop_source(retention=None).bind(shop).plan_trim(below=3)
    with pytest.raises(BadCursor):
        feed.plan_trim(below="nonsense")
    with pytest.raises(Diverged):
        feed.plan_trim(below="1-99")
    last = feed.cursor_after(10)
    with shop.begin() as connection:
        connection.execute(orders.update().where(orders.c.id == 10).values(data={"n": 99}))
    with pytest.raises(Diverged):
        feed.plan_trim(below=last)
    with shop.begin() as connection:
        connection.execute(orders.update().values(placed=None))
    with pytest.raises(ConfigurationError, match="has no time"):
        feed.plan_trim(older_than=HOUR)


def test_sequenced_feed_is_trimmed_by_the_age_of_positions(shop):
    """Where the ordering knows since when events have their positions, no column is needed."""
    source = TableFeed(orders, data="data", ordering="sequenced", retention=Retention())
    with shop.begin() as connection:
        source.install(connection)
    feed = source.bind(shop)
    assert len(numbers(feed)) == 10
    assert feed.plan_trim(older_than=timedelta(0)).events == 10
    with shop.begin() as connection:
        connection.execute(insert(orders), {"data": {"n": 0}})
    plan = feed.plan_trim(older_than=timedelta(days=1))
    assert plan.until in {0, 10}  # SQLite and MariaDB say of old events that they are of 1970
    assert feed.trim(feed.plan_trim(older_than=timedelta(0))) == 11


@of_each(*(case for case in ALL if case not in SEQUENCING and case.database != "sqlite"))
def test_never_above_the_horizon(log, case):
    """What is committed behind somebody who still writes is not settled, and stays."""
    log.write(0, 1)
    assert log.news() == [0, 1]
    with log.engine.connect() as slow:
        append(slow, 2)
        log.write(3, 4)
        plan = log.feed.plan_trim(below=10**6)
        assert (plan.events, plan.until) == (2, 2)
        log.feed.trim(plan)
        slow.commit()
    assert log.news() == [2, 3, 4]
    assert log.everything() == [2, 3, 4]


def test_batches_are_bounded_and_told(shop):
    """No transaction deletes more than it may, and who asked hears of each."""
    feed = shop_source().bind(shop)
    commits, heard = [], []
    event.listen(shop, "commit", lambda _: commits.append(1))
    feed.trim(feed.plan_trim(below=9), rows=3, told=lambda *progress: heard.append(progress))
    assert heard == [(3, 3), (6, 6), (8, 8)]
    assert len(commits) >= 3


@of_each(*SEQUENCING)
def test_batch_of_events_that_are_gone_already_is_not_the_last(log, case):
    """Positions outlive their events, and are trimmed as well, however many lie side by side."""
    log.write(*range(30))
    assert log.news() == [*range(30)]
    log.run("DELETE FROM log WHERE n < 15")
    plan = log.feed.plan_trim(below=26)
    assert log.feed.trim(plan, rows=4) == 10
    assert log.feed.plan_trim(below=26).first is None
    assert log.everything() == [*range(25, 30)]


def test_trimmed_by_two_at_once(shop):
    """Who trims what somebody else has trimmed meanwhile goes on behind it."""
    feed = shop_source().bind(shop)
    plans = [feed.plan_trim(below=9) for _ in range(2)]
    assert [feed.trim(plan, rows=3) for plan in plans] == [8, 0]
    stale = feed.plan_trim(below=10)
    feed.trim(feed.plan_trim(below=11))
    assert feed.trim(stale) == 0
    assert numbers(feed) == []


@of_each(OBSERVED, OBSERVED_MARIADB)
def test_rows_that_others_have_locked_are_waited_for(log, case, monkeypatch):
    """Somebody who keeps an old event locked stops trimming, not the other way round, and what
    was trimmed before is known.
    """
    monkeypatch.setattr(pacing, "TRIES", 2)
    log.write(*range(6))
    assert log.news() == [*range(6)]
    plan = log.feed.plan_trim(below=6)
    with log.engine.connect() as holder:
        holder.exec_driver_sql("SELECT * FROM log WHERE id = 3 FOR UPDATE")
        with pytest.raises(Unavailable):
            log.feed.trim(plan, rows=2)
        assert log.everything() == [2, 3, 4, 5]
    assert log.feed.trim(plan, rows=2) == 3
    assert log.everything() == [5]


@of_each(*(case for case in ALL if case.database != "sqlite"))
def test_no_writer_waits_for_a_batch(log, case):
    """While a batch is being deleted others write to the table, and need not wait."""
    log.write(*range(6))
    assert log.news() == [*range(6)]
    plan = log.feed.plan_trim(below=6)
    written = []

    def beside(_connection):
        thread = threading.Thread(target=lambda: written.append(log.write(9)))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    event.listen(log.engine, "commit", beside, once=True)
    log.feed.trim(plan)
    assert written == [None]
    assert log.everything() == [5, 9]


def test_events_that_others_refer_to_stay(engine):
    """Where the database keeps an event from being deleted, its batch changes nothing."""
    own = MetaData()
    copied = orders.to_metadata(own)
    Table("notes", own, Column("order", ForeignKey(copied.c.id)), Column("n", Integer))
    own.create_all(engine)
    source = TableFeed(copied, data="data", retention=Retention(own))
    with engine.begin() as connection:
        source.install(connection)
        connection.execute(insert(copied), [{"data": {"n": number}} for number in range(6)])
        connection.execute(insert(own.tables["notes"]), {"order": 4})
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda own, _: own.execute("PRAGMA foreign_keys = ON"))
        engine.dispose()
    feed = source.bind(engine)
    plan = feed.plan_trim(below=6)
    with pytest.raises(FeedFailure):
        feed.trim(plan, rows=2)
    assert numbers(feed) == [2, 3, 4, 5]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(copied)) == 4


RIGHTS = {
    "observed": ["SELECT, DELETE ON log"],
    "sequenced": ["SELECT, DELETE, UPDATE ON log"],
}


@of_each(OBSERVED, *(case for case in SEQUENCING if case.database == "postgresql"))
def test_rights_of_whoever_trims(log, case):
    """A user of its own needs to read and delete events, and to change the mark, and no more; a
    feed's user only reads the mark.
    """
    log.write(*range(4))
    assert log.news() == [*range(4)]
    tables = [*log.source().ordering("postgresql").source.table.metadata.tables]
    with stranger(log) as (name, engine):
        beside = {
            "observed": ["SELECT ON SEQUENCE log_id_seq"],
            "sequenced": [f"SELECT, DELETE ON {table}" for table in tables],
        }[case.ordering]
        rights = [*RIGHTS[case.ordering], *beside, "SELECT, UPDATE ON zeroeventhub_retention"]
        if case.ordering == "sequenced":
            rights.append("USAGE ON SCHEMA public")
        for right in rights:
            log.run(f"GRANT {right} TO {name}")
        feed = log.source(retention=Retention()).bind(engine)
        assert feed.trim(feed.plan_trim(below=3)) == 2
        log.run(f"REVOKE UPDATE ON zeroeventhub_retention FROM {name}")
        assert [event.data["n"] for event in feed.read(0, FIRST, 9).events] == [2, 3]
        with pytest.raises(Trimmed):
            feed.read(0, "1-1", 9)
        plan = feed.plan_trim(below=4)
        with pytest.raises(FeedFailure):
            feed.trim(plan)
    assert log.everything() == [2, 3]
