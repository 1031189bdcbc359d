"""The row id of SQLite: which tables give each number once, and in the order of commits."""

import pytest
from harness.log import LOG
from harness.ordering_table import SINGLE_WRITER, assert_refused, shows


@pytest.fixture
def case():
    """The ordering of all tests here."""
    return SINGLE_WRITER


@shows("it needs", SINGLE_WRITER)
def test_single_writer_needs_an_autoincrement(bare):
    """A table of SQLite is refused without AUTOINCREMENT, and needs nothing else."""
    bare.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    assert_refused(bare, "INTEGER PRIMARY KEY AUTOINCREMENT")
    bare.run("DROP TABLE log", "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT,n INTEGER)")
    everything = "SELECT count(*) FROM sqlite_master"
    before = bare.count(everything)
    bare.publish()
    assert bare.count(everything) == before


def test_table_from_which_nothing_is_deleted_needs_no_autoincrement(bare):
    """Without AUTOINCREMENT a table is published if nothing is ever deleted from it."""
    bare.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    bare.publish(append_only=True)
    bare.assert_news(0, 1)
    bare.assert_news(2)


@pytest.mark.parametrize(
    "declaration",
    [
        "id BIGINT PRIMARY KEY, n INTEGER",
        "id INT PRIMARY KEY, n INTEGER",
        "id INTEGER UNIQUE, n INTEGER PRIMARY KEY",
        "id INTEGER PRIMARY KEY, n INTEGER) WITHOUT  ROWID --",
    ],
)
def test_key_that_is_not_the_row_id_is_refused(bare, declaration):
    """Only INTEGER PRIMARY KEY is the row id; other keys are numbers from anywhere."""
    bare.run(f"CREATE TABLE log ({declaration})")
    assert_refused(bare, "is not the INTEGER PRIMARY KEY", append_only=True)


@pytest.mark.parametrize(
    "column",
    [
        "n INTEGER /* AUTOINCREMENT */",
        'n INTEGER, "autoincrement" TEXT',
        "n INTEGER -- AUTOINCREMENT\n",
    ],
)
def test_comment_is_not_a_declaration(bare, column):
    """The word AUTOINCREMENT in a comment or in a name does not make a table safe."""
    bare.run(f"CREATE TABLE log (id INTEGER PRIMARY KEY, {column})")
    assert_refused(bare, "AUTOINCREMENT")


def test_memory_of_numbers_may_be_wiped(log):
    """Events are seen although SQLite has been made to forget the last number."""
    log.write(0)
    log.run("DELETE FROM sqlite_sequence")
    assert log.news() == [0]


def test_deleted_tail_keeps_its_numbers(log):
    """A cursor behind a deleted last row stays good, and the next event is not skipped."""
    log.feed = log.source(mutable=True).bind(log.engine)
    log.assert_news(0, 1, 2)
    log.run("DELETE FROM log WHERE n > 0")
    assert log.news() == []
    log.assert_news(3)


def test_number_below_the_first_position_is_refused(bare):
    """Rows with numbers below 1, where every cursor stands behind them, are refused."""
    LOG.create(bare.engine)
    bare.run("INSERT INTO log (id, n) VALUES (0, 0)")
    assert_refused(bare, "start at 1")
