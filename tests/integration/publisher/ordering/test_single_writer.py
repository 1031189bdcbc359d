"""The row id of SQLite: which tables give each number once, and in the order of commits."""

import pytest
from harness.log import LOG
from harness.ordering_table import SINGLE_WRITER, assert_refused, shows


@pytest.fixture
def case():
    """The ordering of all tests here."""
    return SINGLE_WRITER


@shows("it needs", SINGLE_WRITER)
def test_single_writer_needs_an_autoincrement(log):
    """A table of SQLite is refused without AUTOINCREMENT, and needs nothing else."""
    log.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    assert_refused(log, "INTEGER PRIMARY KEY AUTOINCREMENT")
    log.run("DROP TABLE log", "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT,n INTEGER)")
    everything = "SELECT count(*) FROM sqlite_master"
    before = log.count(everything)
    log.publish()
    assert log.count(everything) == before


def test_table_from_which_nothing_is_deleted_needs_no_autoincrement(log):
    """Without AUTOINCREMENT a table is published if nothing is ever deleted from it."""
    log.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    log.publish(append_only=True)
    log.write(0, 1)
    assert log.news() == [0, 1]
    log.write(2)
    assert log.news() == [2]


@pytest.mark.parametrize(
    "declaration",
    [
        "id BIGINT PRIMARY KEY, n INTEGER",
        "id INT PRIMARY KEY, n INTEGER",
        "id INTEGER UNIQUE, n INTEGER PRIMARY KEY",
    ],
)
def test_key_that_is_not_the_row_id_is_refused(log, declaration):
    """Only INTEGER PRIMARY KEY is the row id; other keys are numbers from anywhere."""
    log.run(f"CREATE TABLE log ({declaration})")
    assert_refused(log, "is not the INTEGER PRIMARY KEY", append_only=True)


def test_table_without_row_ids_is_refused(log):
    """The key of a table WITHOUT ROWID is a number from anywhere."""
    log.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER) WITHOUT  ROWID")
    assert_refused(log, "is not the INTEGER PRIMARY KEY", append_only=True)


@pytest.mark.parametrize(
    "column",
    [
        "n INTEGER /* AUTOINCREMENT */",
        'n INTEGER, "autoincrement" TEXT',
        "n INTEGER -- AUTOINCREMENT\n",
    ],
)
def test_comment_is_not_a_declaration(log, column):
    """The word AUTOINCREMENT in a comment or in a name does not make a table safe."""
    log.run(f"CREATE TABLE log (id INTEGER PRIMARY KEY, {column})")
    assert_refused(log, "AUTOINCREMENT")


def test_memory_of_numbers_may_be_wiped(log):
    """Events are seen although SQLite has been made to forget the last number."""
    log.publish()
    log.write(0)
    log.run("DELETE FROM sqlite_sequence")
    assert log.news() == [0]


def test_deleted_tail_keeps_its_numbers(log):
    """A cursor behind a deleted last row stays good, and the next event is not skipped."""
    log.publish()
    log.feed = log.source(mutable=True).bind(log.engine)
    log.write(0, 1, 2)
    assert log.news() == [0, 1, 2]
    log.run("DELETE FROM log WHERE n > 0")
    assert log.news() == []
    log.write(3)
    assert log.news() == [3]


def test_number_below_the_first_position_is_refused(log):
    """Rows with numbers below 1, where every cursor stands behind them, are refused."""
    LOG.create(log.engine)
    log.run("INSERT INTO log (id, n) VALUES (0, 0)")
    assert_refused(log, "start at 1")
