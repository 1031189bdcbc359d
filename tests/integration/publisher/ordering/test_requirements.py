"""What an ordering needs of a table, and which tables it refuses."""

import uuid
from contextlib import nullcontext

import pytest
from harness.log import (
    LOG,
    append,
    stranger,
)
from harness.ordering_table import (
    ALL,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCED_SQLITE,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    assert_refused,
    refusal,
    shows,
)
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Uuid, inspect

from zeroeventhub import FIRST
from zeroeventhub.errors import ConfigurationError, FeedFailure

# it needs


@shows("it needs", OBSERVED, GATED)
def test_reader_needs_the_table_and_its_sequence(log):
    """A role is refused until it may read the table and the sequence, and needs no more."""
    log.publish()
    log.write(0)
    with stranger(log) as (name, engine):
        feed = log.restarted(engine)
        with pytest.raises((ConfigurationError, FeedFailure)):
            feed.info()
        log.run(f"GRANT SELECT ON log TO {name}")
        with refusal("GRANT SELECT ON SEQUENCE"):
            feed.info()
        log.run(f"GRANT SELECT ON SEQUENCE log_id_seq TO {name}")
        assert [event.data["n"] for event in feed.read(0, FIRST, 10).events] == [0]


@shows("it needs", *WATCHING)
def test_watching_needs_numbers_that_the_database_draws(log):
    """A column that draws from nothing is refused with what to declare; one that draws will do."""
    word = "IDENTITY" if log.database == "postgresql" else "AUTO_INCREMENT"
    assert_refused(log, word, keyed("number")[0])
    log.run("DROP TABLE log")
    log.publish()


@shows("it needs", OBSERVED_MARIADB)
def test_mariadb_has_to_show_its_metadata_locks(log):
    """Without its plugin MariaDB is refused, and with it the feed goes on."""
    if log.is_mysql:
        pytest.skip("MySQL shows its locks in performance_schema")
    log.publish()
    log.run("UNINSTALL SONAME 'metadata_lock_info'")
    try:
        with refusal("metadata_lock_info") as refused:
            log.restarted().info()
    finally:
        log.run("INSTALL SONAME 'metadata_lock_info'")
    assert "INSTALL SONAME 'metadata_lock_info'" in str(refused.value)
    log.write(0)
    assert log.news() == [0]


# Three kinds of users and what they lack, of whom MariaDB has only the last.
RIGHTS = {
    "locks": ([], "GRANT SELECT ON performance_schema"),
    "prepared": (["SELECT ON performance_schema.*"], "GRANT XA_RECOVER_ADMIN"),
    "nothing": (["SELECT ON performance_schema.*", "XA_RECOVER_ADMIN ON *.*"], None),
}


@pytest.mark.parametrize("lacking", RIGHTS)
@shows("it needs", OBSERVED_MARIADB)
def test_reader_on_mysql_needs_two_rights(log, lacking):
    """Who may not see locks or prepared transactions is told so; others see who is writing."""
    if lacking != "nothing" and not log.is_mysql:
        pytest.skip("MariaDB shows them to everybody")
    log.publish()
    log.write(0)
    with stranger(log) as (name, engine):
        rights, complaint = RIGHTS[lacking]
        granted = [f"SELECT ON {log.engine.url.database}.log", *(rights if log.is_mysql else ())]
        log.run(*(f"GRANT {right} TO {name}" for right in granted))
        log.feed = log.restarted(engine)
        with nullcontext() if complaint is None else refusal(complaint):
            assert log.news() == [0]
            log.assert_order_of(lambda slow: append(slow, 1))


TRIGGERS = {
    "postgresql": "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal",
    "mariadb": "SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = database()",
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'",
}


@shows("it needs", GATED)
def test_gate_is_two_triggers_and_two_functions(log):
    """A table without its gate is refused; a gate is made of what the document says."""
    LOG.create(log.engine)
    with refusal("zeroeventhub ddl --ordering gated"):
        log.restarted().info()
    log.publish()
    functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    assert (log.count(TRIGGERS["postgresql"]), log.count(functions)) == (2, 2)
    assert inspect(log.engine).get_table_names() == ["log"]


@shows("it needs", *SEQUENCING)
def test_sequencing_needs_a_key_a_trigger_and_tables(log):
    """A table without its trigger is refused, and one without a key cannot have one."""
    LOG.create(log.engine)
    with refusal("zeroeventhub ddl --ordering sequenced"):
        log.restarted().info()
    log.publish()
    assert log.count(TRIGGERS[log.database]) == 1
    beside = inspect(log.engine).get_table_names()
    beside.remove("log")
    # SQLite needs neither an outbox nor a state.
    assert len(beside) == (1 if log.database == "sqlite" else 3)
    assert_refused(log, "no primary key", Table("keyless", MetaData(), Column("n", Integer)))


@shows("it needs", SEQUENCED_SQLITE)
def test_row_id_of_sqlite_is_a_key(log):
    """INTEGER PRIMARY KEY is a key without the words NOT NULL, and no other type is."""
    log.run("CREATE TABLE log (id TEXT PRIMARY KEY, n INTEGER)")
    assert_refused(log, "may be NULL")
    log.run("DROP TABLE log", "CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    log.publish()


@shows("it needs", SINGLE_WRITER)
def test_single_writer_needs_an_autoincrement(log):
    """A table of SQLite is refused without AUTOINCREMENT, and needs nothing else."""
    log.run("CREATE TABLE log (id INTEGER PRIMARY KEY, n INTEGER)")
    assert_refused(log, "INTEGER PRIMARY KEY AUTOINCREMENT")
    log.run("DROP TABLE log", "CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)")
    everything = "SELECT count(*) FROM sqlite_master"
    before = log.count(everything)
    log.publish()
    assert log.count(everything) == before


# a key of text, of two columns, drawn by a client

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
        "draws from no sequence|is not AUTO_INCREMENT|is not the INTEGER PRIMARY KEY",
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
def test_any_key_can_be_sequenced(log, kind):
    """Events come in the order in which they were committed, whatever order their keys have."""
    table, values = keyed(kind)
    log.publish(table)
    for numbers in ([0], [1], [2, 3], [4]):
        with log.engine.begin() as connection:
            for number in numbers:
                connection.execute(table.insert(), {**values(number), "n": number})
        assert log.news() == numbers
    assert log.everything() == [0, 1, 2, 3, 4]


@shows("a key of text, of two columns, drawn by a client", *WATCHING, SINGLE_WRITER)
def test_keys_that_clients_draw_are_refused(log):
    """A key that the database does not draw has no order that a feed could rely on."""
    for kind, (_, _, complaint) in KEYS.items():
        assert_refused(log, complaint, keyed(kind)[0])


# CACHE above 1, descending or cycling numbers

UNRULY = {
    "cached": "CACHE 20",
    "descending": "INCREMENT -1 MINVALUE 1 MAXVALUE 1000 RESTART 1000",
    "cycling": "MAXVALUE 3 CYCLE",
}


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", OBSERVED, GATED)
def test_unruly_sequences_are_refused(log, kind):
    """A sequence whose numbers do not rise one by one is refused, before and after the start."""
    log.publish()
    log.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    with refusal("INCREMENT 1 CACHE 1 NO CYCLE"):
        log.restarted().info()
    assert_refused(log, "INCREMENT 1 CACHE 1 NO CYCLE")


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", SEQUENCED)
def test_unruly_sequences_can_be_sequenced(log, kind):
    """Sessions that draw numbers in any order, even twice, have their events seen in turn."""
    LOG.create(log.engine)
    log.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    log.publish()
    sessions = [log.engine.connect() for _ in range(2)]
    for number in range(6):
        session = sessions[number % 2]
        # A number comes again only once its last event is gone.
        log.run("DELETE FROM log")
        append(session, number)
        session.commit()
        assert log.news() == [number]
    for session in sessions:
        session.close()


# a position that may be NULL or stand twice

NOT_A_KEY = {
    ("twice", "postgresql"): "id bigserial",
    ("twice", "mariadb"): "id bigint AUTO_INCREMENT, KEY (id)",
    ("twice", "sqlite"): "id integer NOT NULL",
    ("NULL", "postgresql"): "id bigint UNIQUE DEFAULT nextval('numbers')",
    ("NULL", "mariadb"): "id bigint UNIQUE",
    ("NULL", "sqlite"): "id integer UNIQUE",
}


@pytest.mark.parametrize("kind", ["twice", "NULL"])
@shows("a position that may be NULL or stand twice", *ALL)
def test_position_that_is_no_key_is_refused(log, case, kind):
    """A column that does not tell events apart is no position, wherever its numbers come from."""
    if case.database == "postgresql":
        log.run("CREATE SEQUENCE numbers")
    log.run(f"CREATE TABLE log (n integer, {NOT_A_KEY[kind, case.database]})")
    # SQLite has no other column whose order is the order of commits.
    complaint = "INTEGER PRIMARY KEY" if case == SINGLE_WRITER else "may be NULL or stand in two"
    assert_refused(log, complaint, position="id")


@shows("a position that may be NULL or stand twice", OBSERVED, GATED, SEQUENCED)
def test_index_over_some_rows_is_no_key(log):
    """A unique index over a part of the rows does not tell all of them apart."""
    log.run(
        "CREATE TABLE log (id bigserial, n integer)",
        "CREATE UNIQUE INDEX ON log (id) WHERE n > 0",
        "CREATE UNIQUE INDEX ON log (abs(id))",
    )
    assert_refused(log, "may be NULL or stand in two", position="id")


# a view, a table without a log or without transactions


@shows("a view", *ALL)
def test_view_is_refused(log):
    """A view is refused as one; what is written does not pass it."""
    log.publish()
    log.run("CREATE VIEW look AS SELECT id, n FROM log")
    view = Table("look", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))
    assert_refused(log, "view", view)
    with refusal("view"):
        log.source(view).bind(log.engine).info()


@shows("a table without a log or without transactions", OBSERVED, GATED)
def test_table_without_a_log_is_refused(log):
    """An unlogged table is refused with the statement that mends it, at any time."""
    log.publish()
    log.run("ALTER TABLE log SET UNLOGGED")
    assert_refused(log, "ALTER TABLE log SET LOGGED")
    with refusal("ALTER TABLE log SET LOGGED"):
        log.restarted().info()
    log.run("ALTER TABLE log SET LOGGED")
    log.write(0)
    assert log.news() == [0]


@shows("a table without a log or without transactions", SEQUENCED)
def test_table_without_a_log_has_no_effect_on_positions(primary, primary_log):
    """An unlogged table is empty after a crash, and what is written then is seen as new."""
    log = primary_log
    log.run("CREATE UNLOGGED TABLE log (id bigserial PRIMARY KEY, n integer)")
    log.publish()
    log.write(0, 1)
    assert log.news() == [0, 1]
    log.engine.dispose()
    primary.crash()
    assert log.everything() == []
    log.write(2)
    assert log.count("SELECT min(id) FROM log") == 1
    assert log.news() == [2]


@pytest.mark.parametrize("kind", ["MyISAM", "Aria", "MEMORY"])
@shows("a table without a log or without transactions", OBSERVED_MARIADB, SEQUENCED_MARIADB)
def test_table_without_transactions_is_refused(log, kind):
    """A table of an engine without transactions is refused with the statement that mends it."""
    if kind == "Aria" and log.is_mysql:
        pytest.skip("MySQL has no Aria")
    log.run(f"CREATE TABLE log (id bigint AUTO_INCREMENT PRIMARY KEY, n integer) ENGINE = {kind}")
    assert_refused(log, "ALTER TABLE log ENGINE = InnoDB")
    with refusal(kind):
        log.restarted().info()
    log.run("ALTER TABLE log ENGINE = InnoDB")
    log.publish()
