"""SQLite, where one writes at a time, and its row id."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.log import LOG, append, connected
from harness.ordering_table import (
    ON_SQLITE,
    SHOWN,
    SINGLE_WRITER,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.waiting import DEADLINE
from sqlalchemy import MetaData
from sqlalchemy.event import listen
from sqlalchemy.exc import OperationalError


@shows("it needs", SINGLE_WRITER)
def test_single_writer_needs_an_autoincrement(bare):
    """A table of SQLite needs AUTOINCREMENT, unless nothing is ever deleted, and nothing else."""
    bare.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    assert_refused(bare, "INTEGER PRIMARY KEY AUTOINCREMENT")
    bare.publish(append_only=True)
    bare.assert_news(0, 1)
    bare.assert_news(2)
    bare.run("DROP TABLE log", "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT,n INTEGER)")
    everything = "SELECT count(*) FROM sqlite_master"
    before = bare.count(everything)
    bare.publish()
    assert bare.count(everything) == before


@pytest.mark.parametrize(
    ("declaration", "append_only"),
    [
        ("id BIGINT PRIMARY KEY, n INTEGER", True),
        ("id INT PRIMARY KEY, n INTEGER", True),
        ("id INTEGER PRIMARY KEY DESC, n INTEGER", True),
        ("id INTEGER UNIQUE, n INTEGER PRIMARY KEY", True),
        ("id INTEGER UNIQUE, n INTEGER PRIMARY KEY AUTOINCREMENT", True),
        ("id INTEGER PRIMARY KEY, n INTEGER) WITHOUT  ROWID --", True),
        ("id INTEGER PRIMARY KEY, n INTEGER /* AUTOINCREMENT */", False),
        ('id INTEGER PRIMARY KEY, n INTEGER, "autoincrement" TEXT', False),
        ("id INTEGER PRIMARY KEY, n INTEGER -- AUTOINCREMENT\n", False),
    ],
)
@for_each(SINGLE_WRITER)
def test_key_that_is_not_the_row_id_is_refused(bare, declaration, append_only):
    """Only INTEGER PRIMARY KEY is the row id, and no comment or name makes it AUTOINCREMENT."""
    bare.run(f"CREATE TABLE log ({declaration})")
    complaint = "is not the INTEGER PRIMARY KEY" if append_only else "AUTOINCREMENT"
    assert_refused(bare, complaint, append_only=append_only)


@for_each(*ON_SQLITE)
def test_table_of_an_attached_database_is_refused(bare):
    """Its numbers and triggers would be looked for in the engine's own file."""
    LOG.create(bare.engine)
    translated = bare.engine.execution_options(schema_translate_map={None: "aside"})
    with refusal("attached database"):
        bare.restarted(translated).info()
    with refusal("attached database"):
        bare.source(LOG.to_metadata(MetaData(), schema="aside")).bind(bare.engine).info()


@for_each(*ON_SQLITE)
def test_table_named_in_another_case_is_refused(bare):
    """SQLite finds such a table, but its numbers and triggers are found by its own name alone."""
    LOG.create(bare.engine)
    with refusal("'LOG' is named 'log'"):
        bare.source(LOG.to_metadata(MetaData(), name="LOG")).bind(bare.engine).info()


@for_each(*ON_SQLITE)
def test_connection_that_reads_what_is_not_committed_is_refused(log):
    """With a shared cache it would show events that are rolled back afterwards."""
    listen(log.engine, "connect", lambda own, _: own.execute("PRAGMA read_uncommitted = 1"))
    log.engine.dispose()
    with refusal("read_uncommitted"):
        log.restarted().info()


@pytest.mark.parametrize("table", ["log", "other"])
@shows("an open writer of the table", *ON_SQLITE)
def test_open_writer_of_sqlite_holds_back_other_writers(log, table):
    """Beside an open writer, to whatever table, others wait until it has ended; readers read."""
    log.run("CREATE TABLE other (n integer)")
    log.write(0)
    with ThreadPoolExecutor(1) as pool, log.engine.connect() as slow:
        slow.exec_driver_sql(f"INSERT INTO {table} (n) VALUES (1)")
        with (
            connected(log.engine.url, timeout=0.05) as impatient,
            pytest.raises(OperationalError, match="locked"),
            impatient.begin() as connection,
        ):
            append(connection, 99)
        waiting = pool.submit(log.write, 2)
        assert log.news() == [0]
        assert not waiting.done()
        slow.commit()
        waiting.result(DEADLINE)
    assert log.news() == ([1, 2] if table == "log" else [2])


SHOWN.update(
    (row, case)
    for row in ("writers wait for each other", "a long transaction elsewhere")
    for case in ON_SQLITE
)


@shows("COPY, LOAD DATA, INSERT … SELECT", *ON_SQLITE)
def test_bulk_in_sqlite_is_like_any_insert(log):
    """Events that are written in bulk are seen in the order in which they were written."""
    log.run("CREATE TABLE originals (n integer)", "INSERT INTO originals VALUES (1), (2), (3)")
    log.write(0)
    log.run("INSERT INTO log (n) SELECT n FROM originals ORDER BY n DESC")
    log.write(4)
    assert log.news() == [0, 3, 2, 1, 4]
