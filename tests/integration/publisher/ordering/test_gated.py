"""The gate: an exact horizon under every kind of writer, and a guard against early numbers."""

import json
from uuid import uuid4

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import Column, Integer, MetaData, Table, insert, inspect, text
from sqlalchemy.exc import IntegrityError

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError

SOURCE = TableFeed(orders, data="data", ordering="gated")


@pytest.fixture
def feed(postgresql):
    """A feed over an empty table of orders with a gate."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        SOURCE.install(connection)
    return SOURCE.bind(postgresql)


def numbers(feed, cursor=FIRST):
    """Read the numbers of all events that follow a cursor."""
    return [event.data["n"] for event in feed.read(0, cursor, 1000).events]


def marks(connection):
    """Count the marks that are left in the locks of all transactions."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    return connection.scalar(text(query))


def test_horizon_is_known_at_once(feed, postgresql):
    """A feed that starts beside an open writer reads up to that writer's mark."""
    with postgresql.begin() as connection:
        place(connection, 2)
    with postgresql.connect() as slow:
        place(slow, 1, first=2)
        with postgresql.begin() as connection:
            place(connection, 1, first=3)
        assert numbers(feed) == [0, 1]
    assert numbers(feed) == [0, 1, 3]


def test_transaction_leaves_one_mark(feed, postgresql):
    """However often a transaction writes, it holds one lock, and it goes with the transaction."""
    with postgresql.connect() as connection:
        for number in range(3):
            place(connection, 1, first=number)
        assert marks(connection) == 1
        connection.rollback()
        assert marks(connection) == 0


def test_savepoint_takes_its_mark_with_it(feed, postgresql):
    """A savepoint that is rolled back leaves no mark, and the next write leaves a new one."""
    with postgresql.connect() as slow:
        savepoint = slow.begin_nested()
        place(slow, 1)
        savepoint.rollback()
        assert marks(slow) == 0
        with postgresql.begin() as connection:
            place(connection, 1, first=1)
        place(slow, 1, first=2)
        with postgresql.begin() as connection:
            place(connection, 1, first=3)
        assert numbers(feed) == [1]
        slow.commit()
    assert numbers(feed) == [1, 2, 3]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders (data) SELECT jsonb_build_object('n', 1)",
        """WITH early AS (SELECT 1 AS n)
        INSERT INTO orders (data) SELECT jsonb_build_object('n', n) FROM early""",
        "INSERT INTO orders (data) VALUES ('{\"n\": 1}') ON CONFLICT DO NOTHING",
    ],
)
def test_every_kind_of_insert_passes_the_gate(feed, postgresql, statement):
    """The mark is left before the statement draws a number, whatever its form."""
    with postgresql.connect() as slow:
        slow.exec_driver_sql(statement)
        with postgresql.begin() as connection:
            place(connection, 1, first=2)
        assert numbers(feed) == []
        slow.commit()
    assert numbers(feed) == [1, 2]


def test_copy_passes_the_gate(feed, postgresql):
    """COPY leaves its mark before its first row."""
    with postgresql.connect() as slow:
        cursor = slow.connection.cursor()
        with cursor.copy("COPY orders (data) FROM STDIN") as copy:
            copy.write_row([json.dumps({"n": 1})])
        with postgresql.begin() as connection:
            place(connection, 1, first=2)
        assert numbers(feed) == []
        slow.connection.commit()
    assert numbers(feed) == [1, 2]


def test_number_drawn_early_is_refused(feed, postgresql):
    """A number that was drawn before its INSERT began is refused, and says what to do."""
    with postgresql.connect() as connection:
        drawn = connection.scalar(text("SELECT nextval('orders_id_seq')"))
        with pytest.raises(IntegrityError, match="leave id out"):
            connection.execute(insert(orders), {"id": drawn, "data": {}})
    with postgresql.connect() as connection, pytest.raises(IntegrityError, match="before"):
        connection.execute(insert(orders), {"id": 1, "data": {}})


@pytest.mark.parametrize("start", [1, 100, 2**31, 2**33])
def test_first_number_of_a_sequence_lies_above_the_mark(feed, postgresql, start):
    """A sequence that has been set but not drawn from yields a mark below its next number."""
    with postgresql.begin() as connection:
        connection.execute(text(f"SELECT setval('orders_id_seq', {start}, false)"))
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 1, first=1)
        assert numbers(feed) == []
        with postgresql.connect() as reader:
            assert SOURCE.ordering("postgresql").horizon(reader).settled == start - 1
        slow.commit()
    assert numbers(feed) == [0, 1]


def test_writer_needs_no_right_but_to_insert(feed, postgresql):
    """The gate reads a sequence that writers may but draw from, and obeys none of their names."""
    writer = f"writer_{uuid4().hex}"
    names = (
        "current_setting(text, boolean)",
        "set_config(text, text, boolean)",
        "pg_sequence_last_value(regclass)",
        "pg_advisory_xact_lock_shared(integer, integer)",
    )
    stolen = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
    with postgresql.connect() as connection:
        for statement in (
            f"CREATE ROLE {writer}",
            f"CREATE SCHEMA evil AUTHORIZATION {writer}",
            f"GRANT INSERT (data) ON orders TO {writer}",
            f"GRANT UPDATE ON SEQUENCE orders_id_seq TO {writer}",
            f"SET LOCAL ROLE {writer}",
            "CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false)",
            "CREATE DOMAIN evil.oid AS pg_catalog.oid CHECK (false)",
            "CREATE DOMAIN evil.regclass AS pg_catalog.regclass CHECK (false)",
            *(f"CREATE FUNCTION evil.{name} RETURNS boolean {stolen}" for name in names),
            f"CREATE FUNCTION evil.same(text, text) RETURNS boolean {stolen}",
            f"CREATE FUNCTION evil.same(bigint, bigint) RETURNS bigint {stolen}",
            f"CREATE FUNCTION evil.less(bigint, integer) RETURNS bigint {stolen}",
            "CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
            "CREATE OPERATOR evil.& (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint)",
            "CREATE OPERATOR evil.- (FUNCTION = evil.less, LEFTARG = bigint, RIGHTARG = integer)",
            "SET LOCAL search_path = evil, pg_catalog, public",
        ):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("INSERT INTO public.orders (data) VALUES ('{\"n\": 1}')")
        assert marks(connection) == 1


def test_replica_role_does_not_open_the_gate(feed, postgresql):
    """Writers that switch off ordinary triggers still leave their mark."""
    with postgresql.connect() as slow:
        slow.execute(text("SET LOCAL session_replication_role = replica"))
        place(slow, 1)
        assert marks(slow) == 1


def test_install_can_be_repeated_and_taken_back(feed, postgresql):
    """Installing again changes nothing; uninstalling leaves the table as it was, with its rows."""
    with postgresql.begin() as connection:
        place(connection, 1)
        SOURCE.install(connection)
    assert numbers(feed) == [0]
    with postgresql.begin() as connection:
        SOURCE.uninstall(connection)
        SOURCE.uninstall(connection)
        left = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'zeroeventhub%'"
        assert connection.scalar(text(left)) == 0
        place(connection, 1, first=1)
    with pytest.raises(ConfigurationError, match="zeroeventhub ddl"):
        SOURCE.bind(postgresql).info()


def test_disarmed_gate_is_refused(feed, postgresql):
    """A gate whose trigger is switched off is no gate."""
    with postgresql.begin() as connection:
        connection.execute(text("ALTER TABLE orders DISABLE TRIGGER zeroeventhub_gate"))
    with pytest.raises(ConfigurationError, match="gate"):
        SOURCE.bind(postgresql).info()


def test_leaf_is_guarded(postgresql):
    """A row that goes to a leaf of a partitioned table directly is refused."""
    with postgresql.begin() as connection:
        for statement in (
            """CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY, n integer)
            PARTITION BY RANGE (id)""",
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (1000)",
        ):
            connection.execute(text(statement))
    log = Table("log", MetaData(), autoload_with=postgresql)
    source = TableFeed(log, position="id", data=["n"], ordering="gated")
    with postgresql.begin() as connection:
        source.install(connection)
        connection.execute(text("INSERT INTO log (n) VALUES (0)"))
    with postgresql.connect() as connection, pytest.raises(IntegrityError):
        connection.execute(text("INSERT INTO log_1 (n) VALUES (1)"))
    assert numbers(source.bind(postgresql)) == [0]


def test_table_with_heirs_is_refused(postgresql):
    """A table that others inherit from has no gate that all of its rows pass."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        SOURCE.install(connection)
        connection.execute(text("CREATE TABLE more () INHERITS (orders)"))
    with pytest.raises(ConfigurationError, match="inherit"):
        SOURCE.bind(postgresql).info()


@pytest.mark.parametrize("name", ["Mixed Case", 'quo"ted', "it's", "per%cent", "x" * 63])
def test_any_name_of_a_table_will_do(postgresql, name):
    """The gate's statements quote every name, wherever it stands."""
    key = Column("The Id's", Integer, primary_key=True)
    log = Table(name, MetaData(), key, Column("n", Integer))
    log.metadata.create_all(postgresql)
    source = TableFeed(log, ordering="gated", data=["n"])
    with postgresql.begin() as connection:
        source.install(connection)
        connection.execute(insert(log), {"n": 0})
    assert numbers(source.bind(postgresql)) == [0]
    with postgresql.connect() as connection, pytest.raises(IntegrityError, match="drawn before"):
        connection.execute(insert(log), {"The Id's": 1, "n": 1})


def test_ordering_is_chosen_by_name(sqlite, postgresql):
    """An ordering that a database does not have is refused, with those that it has."""
    with pytest.raises(ConfigurationError, match="single-writer"):
        SOURCE.bind(sqlite)
    with pytest.raises(ConfigurationError, match="observed or gated"):
        TableFeed(orders, ordering="single-writer").bind(postgresql)


@pytest.mark.parametrize("ordering", ["observed", "gated"])
def test_blockers_are_named(postgresql, ordering):
    """Open writers are named with their process and their age; others are not."""
    metadata.create_all(postgresql)
    source = TableFeed(orders, data="data", ordering=ordering)
    with postgresql.begin() as connection:
        source.install(connection)
    with postgresql.connect() as slow, postgresql.connect() as operator:
        pid = slow.scalar(text("SELECT pg_backend_pid()"))
        slow.execute(text("SET LOCAL application_name = 'nightly import'"))
        place(slow, 1)
        (blocker,) = source.ordering("postgresql").blockers(operator)
        assert (blocker.pid, blocker.application) == (pid, "nightly import")
        assert blocker.user == inspect(postgresql).engine.url.username
        slow.execute(text(f"PREPARE TRANSACTION 'of {ordering}'"))
        slow.invalidate()
        (prepared,) = source.ordering("postgresql").blockers(operator)
    with postgresql.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ROLLBACK PREPARED 'of {ordering}'"))
    assert (prepared.pid, prepared.application) == (None, f"of {ordering}")
    assert prepared.age.total_seconds() > 0
