"""What a database has to say of itself, and that no other file asks which one it is."""

import re
from pathlib import Path

import pytest
from harness.statements import add
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import StaticPool

import zeroeventhub
from zeroeventhub import FIRST, TableFeed, TypeFilter, cursor_tables, partition_expression
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.databases import DATABASES, database_of
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.port import Database, ErrorCodes
from zeroeventhub.errors import ConfigurationError, Fenced
from zeroeventhub.publisher.ordering import BY_DATABASE, Horizon, Ordering

LIBRARY = Path(zeroeventhub.__file__).parent
MAY_ASK = (LIBRARY / "databases", LIBRARY / "publisher" / "ordering")
FILES = [file for file in LIBRARY.rglob("*.py") if not {*MAY_ASK} & {*file.parents}]


ASKING = re.compile(
    rf"""["']({"|".join(DATABASES)})["']|import.*\bdialects\b|sqlalchemy\.dialects"""
)
"""Matches a line that names a database or imports a dialect of SQLAlchemy's."""


def asked(source):
    """Return the lines of a source that ask which database it is."""
    return [line for line in source.splitlines() if ASKING.search(line)]


WAYS_TO_ASK = [
    "alone = engine.dialect.name == 'sqlite'",
    "if name in {'mysql', 'mariadb'}: pass",
    "match name:\n    case 'postgresql': pass",
    "@compiles(Clock, 'sqlite')\ndef clock(): pass",
    "from sqlalchemy.dialects import mysql",
    "from sqlalchemy import dialects",
    "import sqlalchemy.dialects.postgresql",
]


def test_only_the_databases_and_their_orderings_ask_which_database_it_is():
    """No file outside the two folders names a database or imports a dialect."""
    assert all(map(asked, WAYS_TO_ASK))
    found = {str(file.relative_to(LIBRARY)): asked(file.read_text()) for file in FILES}
    # The name of a driver's package, by which the log knows how it numbers errors.
    found.pop("server/problems.py", None)
    assert not {file: lines for file, lines in found.items() if lines}


class Session:
    """Read on a connection as it is: this database has neither deadlines nor other readers."""

    def begin(self, connection, step):
        connection.rollback()

    def end(self, connection, kept):
        connection.rollback()


class Pretend(Database):
    """A fifth database, with no more than it has to say; its SQL happens to be that of SQLite."""

    names = ("pretend",)
    unix_time = "CAST(strftime('%s', 'now') AS REAL)"
    row_number = Integer()
    error_codes = ErrorCodes(changed=frozenset({"SQLITE_ERROR"}))

    def insert_ignore(self, table):
        return sqlite.insert(table).on_conflict_do_nothing()

    def upsert(self, table, changes):
        keys = [column.name for column in table.primary_key]
        return sqlite.insert(table).on_conflict_do_update(index_elements=keys, set_=changes)

    def read_only(self, dialect, seconds):
        return Session()

    def is_transient(self, error):
        return "locked" in str(error)

    def choose_index(self, connection, keys):
        return IndexHint()

    def exact(self, text):
        return text.collate("BINARY")

    def lower(self, text):
        return func.lower(text)

    def text_hash(self, text):
        return f"length({text})"

    def decimals(self, connection, time, *, is_side_table):
        return 0


class Order(Ordering):
    """An ordering of it, by the position alone: this database has one writer."""

    def check(self, connection):
        pass

    def horizon(self, connection):
        last = connection.scalar(select(func.max(self.source.position))) or 0
        return Horizon(settled=last, highest=last)


@pytest.fixture
def engine(monkeypatch):
    """An engine of the pretend database, which the library knows for the time of a test."""
    monkeypatch.setitem(DATABASES, "pretend", Pretend())
    monkeypatch.setitem(BY_DATABASE, "pretend", {"observed": Order})
    engine = create_engine("sqlite://", poolclass=StaticPool)
    engine.dialect.name = "pretend"
    yield engine
    engine.dispose()


def test_the_guide_names_all_that_may_differ():
    """Every attribute and method of the port is in the table of docs/databases.md, and no other."""
    guide = (LIBRARY.parent / "docs" / "databases.md").read_text()
    rows = [line.partition("|")[2] for line in guide.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    own = {*vars(Database), *Database.__annotations__}
    assert named == {name for name in own if not name.startswith("_")} - {"names"}


def test_a_feed_reads_from_a_database_that_the_port_describes(engine):
    """A feed over a table of the pretend database publishes its events, of all types or of one."""
    log = Table(
        "log", MetaData(), Column("id", Integer, primary_key=True), Column("kind", String(9))
    )
    log.create(engine)
    add(engine, log, [{"kind": "Made"}, {"kind": "sent"}, {"kind": "made"}])
    feed = TableFeed(log, data=["id"], type="kind", partition=partition_expression(log.c.kind, 1))
    bound = feed.bind(engine)
    assert [event.data["id"] for event in bound.read(0, FIRST, 9).events] == [1, 2, 3]
    made = TypeFilter(frozenset({"made"}))
    assert [event.data["id"] for event in bound.read(0, FIRST, 9, types=made).events] == [1, 3]
    assert {finding.level for finding in bound.check()} == {"ok", "warning"}


def test_a_store_lies_in_a_database_that_the_port_describes(engine):
    """A consumer's cursor is written, moved and fenced in the pretend database."""
    store = CursorStore(engine, tables=cursor_tables(MetaData()))
    with engine.begin() as connection:
        store.create_tables(connection)
        place = store.load(connection, "billing", 0)
        store.advance(connection, "billing", 0, place, "c1")
        with pytest.raises(Fenced):
            store.advance(connection, "billing", 0, place, "c2")
        claimed = store.leases.claim(connection, "billing", "me", [0], seconds=30, share=True)
        assert claimed.held == {0}
        assert store.enter(connection, "billing", 0, "me").cursor == "c1"


def test_a_database_that_the_library_does_not_know_is_refused(engine):
    """Another name is an error that says which databases there are."""
    engine.dialect.name = "oracle"
    with pytest.raises(ConfigurationError, match="PostgreSQL, MariaDB, MySQL or SQLite"):
        database_of(engine)
