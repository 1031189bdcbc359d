"""What open writers hold back, each other and a feed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.log import append, connected, polling, prepared
from harness.ordering_table import (
    ALL,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    shows,
)
from harness.waiting import DEADLINE
from sqlalchemy.exc import OperationalError

from zeroeventhub.errors import Unavailable

# an open writer of the table


@shows("an open writer of the table", *WATCHING)
def test_open_writer_holds_back_what_was_drawn_behind_it(log):
    """What was drawn behind an open writer is seen once that has ended, in the order of numbers."""
    log.assert_news(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        log.write(2)
        assert log.news() == []
        slow.commit()
    assert log.news() == [1, 2]
    with log.engine.connect() as slow:
        append(slow, 3)
        log.write(4)
        assert log.news() == []
        slow.rollback()
    assert log.news() == [4]


@shows("an open writer of the table", SEQUENCED, SEQUENCED_MARIADB)
def test_open_writer_holds_back_nothing_but_its_own(log):
    """What others commit beside an open writer is seen at once, and its own events after them."""
    with log.engine.connect() as slow:
        append(slow, 1)
        log.assert_news(2)
        log.assert_news(3)
        slow.commit()
    assert log.news() == [1]
    assert log.everything() == [2, 3, 1]


def assert_locked(log):
    """Show that no writer can write just now."""
    with (
        connected(log.engine.url, timeout=0.05) as impatient,
        pytest.raises(OperationalError, match="locked"),
        impatient.begin() as connection,
    ):
        append(connection, 99)


@shows("an open writer of the table", *ON_SQLITE)
def test_open_writer_of_sqlite_holds_back_other_writers(log):
    """Beside an open writer no other can write to SQLite, and every reader can read."""
    log.write(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        assert_locked(log)
        assert log.news() == [0]
        slow.commit()
    log.write(2)
    assert log.news() == [1, 2]


# writers wait for each other


# Who waits for a transaction that stays open waits for good: any limit shows it.
LIMITS = {
    "postgresql": {"options": "-c lock_timeout=5s"},
    "mariadb": {"init_command": "SET innodb_lock_wait_timeout = 5, lock_wait_timeout = 5"},
}


@shows("writers wait for each other", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_writers_do_not_wait_for_each_other(log):
    """A writer beside an open one draws, writes and commits at once, while others read."""
    with connected(log.engine.url, **LIMITS[log.database]) as engine, polling(log.feed):
        # At MySQL's default everybody waits for a writer who has taken back a part of his work.
        impatient = engine.execution_options(isolation_level="READ COMMITTED")
        for number in range(0, 15, 3):
            with impatient.connect() as slow:
                # It is a writer, although it has drawn nothing as yet.
                slow.exec_driver_sql("INSERT INTO log (n) SELECT n FROM log WHERE n < 0")
                with impatient.begin() as quick:
                    append(quick, number)
                append(slow, number + 1)
                savepoint = slow.begin_nested()
                append(slow, 99)
                savepoint.rollback()
                with impatient.begin() as quick:
                    append(quick, number + 2)
                slow.commit()
    assert sorted(log.everything()) == list(range(15))


@shows("writers wait for each other", *ON_SQLITE)
def test_writers_of_sqlite_wait_for_each_other(log):
    """A writer of SQLite waits until the one before it has ended, and then goes on."""
    with ThreadPoolExecutor(1) as pool, log.engine.connect() as slow:
        append(slow, 0)
        assert_locked(log)
        waiting = pool.submit(log.write, 1)
        assert not waiting.done()
        slow.commit()
        waiting.result(DEADLINE)
    assert log.news() == [0, 1]


# a long transaction elsewhere


@shows("a long transaction elsewhere", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_transaction_elsewhere_has_no_effect(log):
    """A writer to other tables, or a reader of this one for hours, holds nothing back."""
    log.run("CREATE TABLE other (n integer)")
    lasting = log.engine.execution_options(isolation_level="REPEATABLE READ")
    with log.engine.connect() as elsewhere, lasting.connect() as export:
        export.exec_driver_sql("SELECT * FROM log")
        elsewhere.exec_driver_sql("INSERT INTO other VALUES (1)")
        log.assert_news(0)
        log.assert_news(1)


@shows("a long transaction elsewhere", OBSERVED, GATED, SEQUENCED, SEQUENCED_MARIADB)
def test_transaction_prepared_elsewhere_has_no_effect(log):
    """A transaction that is prepared elsewhere holds nothing back."""
    log.run("CREATE TABLE other (n integer)")
    with prepared(log, "INSERT INTO other VALUES (1)"):
        log.assert_news(0)


@shows("a long transaction elsewhere", *ON_SQLITE)
def test_transaction_elsewhere_in_sqlite_keeps_writers_waiting(log):
    """A writer to another table of SQLite keeps writers of this one waiting, not readers."""
    log.run("CREATE TABLE other (n integer)")
    log.write(0)
    with log.engine.connect() as elsewhere:
        elsewhere.exec_driver_sql("INSERT INTO other VALUES (1)")
        assert_locked(log)
        assert log.news() == [0]
    log.assert_news(1)


# a new process beside an open writer


@shows("a new process beside an open writer", OBSERVED, OBSERVED_MARIADB)
def test_new_process_waits_for_open_writers(log):
    """A new process does not know what is decided until the writers of its time have ended."""
    log.write(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        log.write(2)
        log.feed = log.restarted()
        for _ in range(2):
            with pytest.raises(Unavailable):
                log.news()
        slow.commit()
    assert log.news() == [0, 1, 2]


@shows("a new process beside an open writer", GATED, *SEQUENCING, SINGLE_WRITER)
def test_new_process_knows_at_once(log, case):
    """A new process beside an open writer shows what is decided, and no more."""
    log.write(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        if case not in ON_SQLITE:
            log.write(2)
        log.feed = log.restarted()
        assert log.news() == ([0, 2] if case in {SEQUENCED, SEQUENCED_MARIADB} else [0])
        slow.commit()
    assert log.news() == ([1, 2] if case == GATED else [1])


# a savepoint rolled back


@shows("a savepoint rolled back", *ALL)
def test_events_of_a_savepoint_rolled_back_are_not_seen(log):
    """What a savepoint took back is no event; what stands around it is."""
    with log.engine.connect() as connection:
        append(connection, 0)
        savepoint = connection.begin_nested()
        append(connection, 1)
        savepoint.rollback()
        append(connection, 2)
        connection.commit()
    log.write(3)
    assert log.news() == [0, 2, 3]
