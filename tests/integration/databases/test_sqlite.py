"""What SQLite alone does: which readers and writers wait for each other, and deadlines."""

import sqlite3
import time
from contextlib import closing

import pytest
from harness.published import published
from harness.shop import write
from harness.statements import scalars
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from zeroeventhub import FIRST
from zeroeventhub.databases.error_codes import is_transient
from zeroeventhub.settings import Capacity


def test_locked_sqlite_is_transient(sqlite_url):
    """A database that another one writes to is free later."""
    engine = create_engine(sqlite_url, connect_args={"timeout": 0.01})
    with engine.connect() as writer, engine.connect() as other:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DBAPIError) as raised:
            other.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY)"))
    assert is_transient(raised.value)


@pytest.mark.slow
def test_deadline_is_for_each_statement(sqlite):
    """Statements that are each in time may take longer together, by the clock that SQLite lacks."""
    feed = published(sqlite, Capacity(statement_seconds=2.0))
    write(sqlite, 3_000)
    feed.info()
    waits = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def wait(connection, cursor, statement, *_):
        if ".data" in statement:
            waits.append(time.sleep(0.8))

    assert len(feed.read(0, FIRST, 3_000).events) == 3_000
    assert len(waits) >= 3


def test_reader_of_sqlite_locks_nothing_between_statements(sqlite):
    """A writer that waits for no lock can write between any two statements of a reader."""
    feed = published(sqlite)
    writes = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def write_beside(connection, *_):
        with closing(sqlite3.connect(sqlite.url.database, timeout=0)) as own:
            own.execute("INSERT INTO orders (data) VALUES ('{}')")
            own.commit()
        writes.append(own)

    cursor = FIRST
    for _ in range(3):
        feed.head()
        cursor = feed.read(0, cursor, 2).cursor
        feed.lag(0, cursor)
    event.remove(sqlite, "before_cursor_execute", write_beside)
    assert len(writes) > 20


def test_check_recommends_the_journal_that_does_not_lock(sqlite):
    """A check warns of a journal mode in which readers and writers wait for each other."""
    feed = published(sqlite)
    (found,) = [one for one in feed.check() if one.subject == "journal"]
    assert (found.level, found.statement) == ("warning", "PRAGMA journal_mode = WAL")
    scalars(sqlite, found.statement)
    assert [one for one in feed.check() if one.subject == "journal"] == []


@pytest.mark.parametrize("mode", ["MEMORY", "OFF"])
def test_check_warns_of_a_database_that_rolls_nothing_back(sqlite_url, mode):
    """Without a journal in a file, what a writer takes back may stay; memory has no file."""
    for url, expected in ((sqlite_url, 1), ("sqlite://", 0)):
        engine = create_engine(url, poolclass=StaticPool)
        event.listen(engine, "connect", lambda own, _: own.execute(f"PRAGMA journal_mode = {mode}"))
        found = [one for one in published(engine).check() if one.subject == "journal"]
        assert len(found) == expected
        assert all("may stay" in one.sentence for one in found)
