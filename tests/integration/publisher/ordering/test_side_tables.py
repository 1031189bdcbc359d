"""The key by which an event is told from others."""

import re
import uuid

import pytest
from harness.log import LOG
from harness.ordering_table import (
    ALL,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCED_SQLITE,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.statements import add, execute
from harness.trimmed import trim
from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, String, Table, Uuid
from sqlalchemy.exc import IntegrityError

from zeroeventhub.publisher.retention import Retention

# By kind: the columns, the values in an event, and what is said where such a key will not do.
KEYS = {
    "text": ({"id": String(40)}, lambda n: {"id": f"order {9 - n}"}, "a column of whole numbers"),
    "two columns": (
        {"shop": Integer, "id": Integer},
        lambda n: {"shop": 9 - n, "id": 1},
        "no primary key of one column",
    ),
    "uuid": ({"id": Uuid}, lambda n: {"id": uuid.UUID(int=9 - n)}, "a column of whole numbers"),
    "number": (
        {"id": BigInteger},
        lambda n: {"id": 9 - n},
        "draws from no sequence.*IDENTITY|is not AUTO_INCREMENT|is not the INTEGER PRIMARY KEY",
    ),
}


def keyed(kind):
    """Return a table whose key clients draw, and what makes the values of an event."""
    columns, values, _ = KEYS[kind]
    key = [
        Column(name, type_, primary_key=True, autoincrement=False)
        for name, type_ in columns.items()
    ]
    return Table("log", MetaData(), *key, Column("n", Integer)), values


@pytest.mark.parametrize("kind", KEYS)
@shows("a key of text, of two columns, drawn by a client", *SEQUENCING)
def test_any_key_can_be_sequenced(bare, kind):
    """Events come in the order in which they were committed, whatever order their keys have."""
    table, values = keyed(kind)
    bare.publish(table)
    for numbers in ([0], [1], [2, 3], [4]):
        with bare.engine.begin() as connection:
            for number in numbers:
                connection.execute(table.insert(), {**values(number), "n": number})
        assert bare.news() == numbers
    assert bare.everything() == [0, 1, 2, 3, 4]


@shows("a key of text, of two columns, drawn by a client", *WATCHING, SINGLE_WRITER)
def test_keys_that_clients_draw_are_refused(bare):
    """A key that the database does not draw has no order that a feed could rely on."""
    for kind, (_, _, complaint) in KEYS.items():
        assert_refused(bare, complaint, keyed(kind)[0])


@for_each(*SEQUENCING)
def test_key_of_single_precision_is_refused(bare):
    """Rows of such keys would stay after a trim, and be sent again; those of doubles go."""
    single = {"postgresql": "real", "mariadb": "float"}.get(bare.database)
    if single is not None:
        bare.run(f"CREATE TABLE log (id {single} PRIMARY KEY, n integer)")
        assert_refused(bare, "single precision")
        bare.run("DROP TABLE log")
    bare.run("CREATE TABLE log (id double precision PRIMARY KEY NOT NULL, n integer)")
    table = Table("log", MetaData(), Column("id", Double, primary_key=True), Column("n", Integer))
    bare.publish(table, retention=Retention())
    bare.run("INSERT INTO log VALUES (0.1, 0), (16777217, 1)")
    assert bare.news() == [0, 1]
    assert trim(bare.feed, 3) == 2
    assert bare.count("SELECT count(*) FROM log") == 0


NOT_A_KEY = {
    ("twice", "postgresql"): "id bigserial",
    ("twice", "mariadb"): "id bigint AUTO_INCREMENT, KEY (id)",
    ("twice", "sqlite"): "id integer NOT NULL",
    ("NULL", "postgresql"): "id bigint UNIQUE DEFAULT nextval('numbers')",
    ("NULL", "mariadb"): "id bigint UNIQUE",
    ("NULL", "sqlite"): "id integer UNIQUE",
}


@pytest.mark.parametrize("kind", ["twice", "NULL"])
@shows("a position that may be NULL or stand twice", *ALL, later=(GATED,))
def test_position_that_is_no_key_is_refused(bare, case, kind):
    """A column that does not tell events apart is no position, wherever its numbers come from."""
    if case.database == "postgresql":
        bare.run("CREATE SEQUENCE numbers")
    bare.run(f"CREATE TABLE log (n integer, {NOT_A_KEY[kind, case.database]})")
    # SQLite has no other column whose order is the order of commits.
    complaint = "INTEGER PRIMARY KEY" if case == SINGLE_WRITER else "may be NULL or the same in two"
    assert_refused(bare, complaint, position="id")


@for_each(OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER)
def test_number_below_the_first_position_is_refused(bare):
    """Rows with numbers below 1, where every cursor stands behind them, are refused."""
    LOG.create(bare.engine)
    number = -1 if bare.database == "mariadb" else 0
    bare.run(f"INSERT INTO log (id, n) VALUES ({number}, 0)")
    assert_refused(bare, "start at 1")


@for_each(*ALL, later=(OBSERVED_MARIADB, SEQUENCED_SQLITE))
def test_any_name_of_a_table_will_do(bare, case):
    """Statements quote every name, wherever it stands, and find it in the locks."""
    key = Column("The Id's", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    part = Column("per%cent:", Integer, nullable=False)
    rows = Column("n", Integer)
    name = 'Mixed "quo"ted, it\'s per%cent co:lon' + "x" * 23
    table = Table(name, MetaData(), key, part, rows, sqlite_autoincrement=True)
    bare.publish(table, partition=part, partitions=2, append_only=True)
    assert bare.news() == []
    with bare.engine.connect() as slow:
        slow.execute(table.insert(), {"per%cent:": 0, "n": 0})
        if case not in ON_SQLITE:
            add(bare.engine, table, {"per%cent:": 0, "n": 1})
            assert bare.news() == ([1] if bare.ordering == "sequenced" else [])
        slow.commit()
    assert 0 in bare.news()
    if case == GATED:
        with bare.engine.begin() as early, pytest.raises(IntegrityError, match="drawn before"):
            early.execute(table.insert(), {"The Id's": 1, "per%cent:": 0, "n": 1})


@for_each(*SEQUENCING)
def test_part_of_a_key_is_no_key(bare):
    """Only a key or an index over all rows, of one column itself, tells events apart."""
    table = Table("log", MetaData(), Column("name", String(9)), Column("n", Integer))
    bare.run("CREATE TABLE log (name varchar(9) NOT NULL, n integer, PRIMARY KEY (name, n))")
    if bare.database != "mariadb":
        bare.run("CREATE UNIQUE INDEX part ON log (name) WHERE name > 'm'")
    if bare.database == "postgresql":
        bare.run("CREATE UNIQUE INDEX computed ON log (lower(name))")
    assert_refused(bare, "NOT NULL and UNIQUE", table, position="name")
    bare.run("CREATE UNIQUE INDEX whole ON log (name)")
    bare.publish(table, position="name")


@for_each(SEQUENCED_MARIADB)
def test_keys_are_told_apart_as_their_table_does(bare):
    """Keys that differ in their letters alone are two, whatever the database takes for equal."""
    table = Table(
        "log", MetaData(), Column("id", String(9), primary_key=True), Column("n", Integer)
    )
    bare.run("CREATE TABLE log (id varchar(9) PRIMARY KEY, n integer) COLLATE utf8mb4_bin")
    bare.publish(table)
    keys = ["a", "A", "漢", "字"]
    add(bare.engine, table, [{"id": key, "n": n} for n, key in enumerate(keys)])
    assert bare.news() == [0, 1, 2, 3]
    bare.run("ALTER TABLE log CONVERT TO CHARACTER SET utf16 COLLATE utf16_bin")
    for _ in ("positions", "outbox"):
        with refusal("ALTER TABLE zeroeventhub_") as refused:
            bare.source(table).bind(bare.engine).info()
        bare.run(re.search(r"ALTER TABLE .*\w", str(refused.value))[0])
    bare.source(table).bind(bare.engine).info()


@for_each(SEQUENCED)
def test_index_that_could_not_be_built_is_no_key(bare):
    """An index that met two rows of one key when it was built tells no events apart."""
    table = Table("log", MetaData(), Column("name", String(9)), Column("n", Integer))
    bare.run("CREATE TABLE log (name text NOT NULL, n integer)")
    add(bare.engine, table, [{"name": "a", "n": 1}, {"name": "a", "n": 2}])
    by_itself = bare.engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(IntegrityError):
        execute(by_itself, "CREATE UNIQUE INDEX CONCURRENTLY whole ON log (name)")
    assert_refused(bare, "NOT NULL and UNIQUE", table, position="name")


@shows("a view", *ALL)
def test_view_is_refused(log):
    """A view is refused as one; what is written does not pass it."""
    log.run("CREATE VIEW look AS SELECT id, n FROM log")
    view = Table("look", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))
    assert_refused(log, "view", view)
    with refusal("view"):
        log.source(view).bind(log.engine).info()


@for_each(OBSERVED_MARIADB, SEQUENCED_MARIADB)
def test_name_of_nothing_is_refused(log):
    """A table or column that does not exist is refused, also if its name ends in a space."""
    with refusal("There is no table 'log '"):
        log.source(LOG.to_metadata(MetaData(), name="log ")).bind(log.engine).info()
    if log.ordering == "sequenced":
        table = LOG.to_metadata(MetaData())
        table.append_column(Column("part ", Integer, nullable=False))
        source = log.source(table, partition="part ", partitions=2)
        with log.engine.connect() as connection, refusal("no column 'part '"):
            source.ordering("mariadb").ddl(connection)
