"""Events are deleted batch by batch while writers write and readers read."""

import math
import threading
from functools import partial
from itertools import product

import pytest
from harness.ordering_table import (
    ALL,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCING,
    for_each,
)
from harness.published import install, published
from harness.shop import orders, place, write
from harness.statements import count_of, execute
from harness.trimmed import numbers, trim
from harness.waiting import until
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    Uuid,
    event,
    func,
    insert,
    select,
)

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable
from zeroeventhub.publisher import deletion
from zeroeventhub.publisher.retention import Compaction, Retention


def source():
    """Return a feed over orders."""
    return TableFeed(orders, data="data", retention=Retention())


def fill(engine):
    """Place ten orders."""
    write(engine, 10)


def test_batches_are_bounded_and_told(feed, engine):
    """No transaction deletes more than `rows`, and `on_progress` is called for each."""
    there, heard = [], []

    def committed(connection):
        there.append(connection.scalar(select(func.count()).select_from(orders)))

    event.listen(engine, "commit", committed)
    trim(feed, 9, rows=3, on_progress=lambda *progress: heard.append(progress))
    assert heard == [(3, 3), (6, 6), (8, 8)]
    assert [left for left in dict.fromkeys(there) if left < 10] == [7, 4, 2]


def test_batches_without_events_are_refused(any_shop):
    """A trim, or a compaction, in batches of no events is refused."""
    feed = TableFeed(
        orders, data="data", key="customer", retention=Retention(), compaction=Compaction()
    )
    bound = feed.bind(any_shop)
    for use, rows in product((partial(trim, bound, 9), bound.compact), (0, math.nan)):
        with pytest.raises(ConfigurationError, match="rows has to be above zero"):
            use(rows=rows)


def test_batch_may_have_more_keys_than_a_statement_takes_parameters(postgresql):
    """A large batch of events that are found by several columns is deleted."""
    names = [f"key_{number}" for number in range(5)]
    columns = [Column(name, Integer, primary_key=True, autoincrement=False) for name in names]
    table = Table("log", MetaData(), *columns)
    table.metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        numbers = func.generate_series(1, 14_000).column_valued()
        connection.execute(insert(table).from_select(names, select(*[numbers] * 5)))
    feed = TableFeed(table, ordering="sequenced", retention=Retention())
    install(feed, postgresql)
    bound = feed.bind(postgresql)
    until(lambda: bound.head() == 14_000, "every event has its position")
    assert trim(bound, 14_001, rows=20_000) == 14_000


def test_feed_that_is_trimmed_by_two_at_once_goes_on(any_feed):
    """A trim continues after events that another process has trimmed meanwhile."""
    plans = [any_feed.plan_trim(below=9) for _ in range(2)]
    assert [any_feed.trim(plan, rows=3) for plan in plans] == [8, 0]
    stale = any_feed.plan_trim(below=10)
    trim(any_feed, 11)
    assert any_feed.trim(stale) == 0
    assert numbers(any_feed) == []


@for_each(*SEQUENCING)
def test_batch_of_events_that_are_gone_already_is_not_the_last(log, case):
    """Positions of deleted events are trimmed as well, also a whole batch of them."""
    log.assert_news(*range(30))
    log.run("DELETE FROM log WHERE n < 15")
    assert trim(log.feed, 26, rows=4) == 10
    assert log.feed.plan_trim(below=26).first is None
    assert log.everything() == [*range(25, 30)]


@for_each(*SEQUENCING)
def test_positions_beside_the_events_go_with_them(log, case):
    """With the ordering sequenced, positions are trimmed too, and a reinserted key stays."""
    log.assert_news(0, 1, 2, 3)
    plan = log.feed.plan_trim(below=4)
    log.run("DELETE FROM log WHERE n = 1", "INSERT INTO log (id, n) VALUES (2, 9)")
    log.feed.trim(plan)
    positions = log.source().ordering(log.database).source.table
    found = count_of(log.engine, positions)
    assert log.count("SELECT count(*) FROM log") == 2
    assert log.news() == [9]
    assert log.everything() == [3, 9]
    assert found <= 2


@for_each(SEQUENCED, SEQUENCED_MARIADB)
def test_key_that_gets_a_new_position_beside_a_batch_stays(log, case):
    """An event stays whose key is inserted again, and gets a position, while a batch is deleted."""
    log.assert_news(0, 1, 2, 3)
    done = []

    def insert_again(statement):
        if "FOR UPDATE" in statement and not done:
            done.append(statement)
            log.run("DELETE FROM log WHERE n = 1", "INSERT INTO log (id, n) VALUES (2, 9)")
            assert log.restarted().head() == 5

    plan = log.feed.plan_trim(below=4)
    event.listen(log.engine, "before_cursor_execute", lambda *call: insert_again(call[2]))
    log.feed.trim(plan)
    assert len(done) == 1
    assert log.news() == [9]


@pytest.mark.parametrize(
    ("database", "kind", "keys"),
    [
        ("postgresql", "interval", ["'1 year'", "'365 days'"]),
        ("mariadb", "time", ["'30:00'", "'06:00'"]),
        ("mariadb", "double", ["1e308", "1"]),
    ],
)
def test_keys_by_which_rows_are_not_found_again_are_refused(request, database, kind, keys):
    """A trim does not leave rows without their positions, nor delete another row for one."""
    engine = request.getfixturevalue(database)
    execute(engine, f"CREATE TABLE visits (at {kind} PRIMARY KEY, n integer)")
    visits = Table("visits", MetaData(), autoload_with=engine)
    publisher = TableFeed(visits, data=["n"], ordering="sequenced", retention=Retention())
    install(publisher, engine)
    for number, key in enumerate(keys):
        execute(engine, f"INSERT INTO visits VALUES ({key}, {number})")
    feed = publisher.bind(engine)
    with pytest.raises(ConfigurationError, match=r"not found again by what is read of visits\.at"):
        trim(feed, 2)
    assert numbers(feed) == [0, 1]
    assert count_of(engine, visits) == 2


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the wait for a locked row."""
    monkeypatch.setattr(deletion, "TRIES", 2)
    monkeypatch.setattr("zeroeventhub.publisher.deletion.LOCK_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@for_each(OBSERVED, OBSERVED_MARIADB)
def test_rows_that_others_have_locked_are_waited_for(log, case):
    """A trim waits for a locked row; the connection gets its own lock timeout back."""
    log.assert_news(*range(6))
    plan = log.feed.plan_trim(below=6)
    patience = {
        "postgresql": "SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout'",
        "mariadb": "SELECT @@SESSION.innodb_lock_wait_timeout",
    }[case.database]
    before = log.count(patience)
    with log.engine.connect() as holder:
        holder.exec_driver_sql("SELECT * FROM log WHERE id = 3 FOR UPDATE")
        with pytest.raises(Unavailable):
            log.feed.trim(plan, rows=2)
        assert log.everything() == [2, 3, 4, 5]
    assert log.feed.trim(plan, rows=2) == 3
    assert log.everything() == [5]
    assert log.count(patience) == before


@for_each(*(case for case in ALL if case.database != "sqlite"))
def test_no_writer_waits_for_a_batch(log, case):
    """Writers write to the table without waiting while a batch is being deleted."""
    log.assert_news(*range(6))
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


def test_events_that_others_refer_to_stay(postgresql):
    """If a foreign key keeps an event from being deleted, its batch changes nothing."""
    feed = published(postgresql, retention=Retention())
    with postgresql.begin() as connection:
        place(connection, 6)
        connection.exec_driver_sql("CREATE TABLE notes AS SELECT 4 AS of")
        connection.exec_driver_sql("ALTER TABLE notes ADD FOREIGN KEY (of) REFERENCES orders")
    with pytest.raises(FeedFailure):
        feed.trim(feed.plan_trim(below=6), rows=2)
    assert numbers(feed) == [2, 3, 4, 5]
    assert count_of(postgresql, orders) == 4


@pytest.mark.parametrize("delete", [lambda feed: trim(feed, 2), lambda feed: feed.compact()])
@pytest.mark.parametrize(
    ("kind", "key"),
    [(DateTime(), "2024-01-01 00:00:00"), (Uuid(), "0f8fad5b-d9cb-469f-a165-70867728950e")],
)
def test_keys_in_a_form_of_another_program_are_deleted(sqlite, kind, key, delete):
    """A row of SQLite goes with its position also where SQLAlchemy writes its key otherwise."""
    visits = Table("visits", MetaData(), Column("at", kind, primary_key=True), Column("who", Text))
    visits.metadata.create_all(sqlite)
    publisher = TableFeed(
        visits, key="who", ordering="sequenced", retention=Retention(), compaction=Compaction()
    )
    install(publisher, sqlite)
    execute(sqlite, f"INSERT INTO visits VALUES ('{key}', 'ann'), ('{key[:-1]}1', 'ann')")
    feed = publisher.bind(sqlite)
    assert delete(feed) == 1
    install(publisher, sqlite)
    assert [event.data["at"][-1] for event in feed.read(0, FIRST, 9).events] == ["1"]
