"""Change logs of ordinary tables: what a log says, applied in order, is the table."""

import uuid

import pytest
import sqlalchemy as sa
from harness.captured import CASCADES, PERSON, applied, events, there, tortured
from harness.databases import new_database, own_mariadb
from harness.engines import connected
from harness.statements import execute, scalars
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, Capture, Compaction, EventLog, Retention
from zeroeventhub.errors import ConfigurationError

PET = """CREATE TABLE pet (
    kind VARCHAR(9) NOT NULL, no INTEGER NOT NULL, name VARCHAR(40), PRIMARY KEY (kind, no))"""


def captured(engine, *statements, tables=("person",)):
    """Run statements that make tables, then capture these in one log; return the log."""
    execute(engine, *statements)
    metadata = sa.MetaData()
    log = EventLog(metadata, "changes")
    metadata.create_all(engine)
    with engine.begin() as connection:
        Capture(log, *tables).install(connection)
    return log


def said(engine, log):
    """Return each event in short: what happened, to what, and the row after it."""
    with engine.connect() as connection:
        return [(row.type, row.key, row.data["after"]) for row in events(connection, log)]


def test_log_has_an_event_of_each_change(engine):
    """Rows that were there are read, then each change has its event, with the row around it."""
    ada, bob = ({"id": n, "name": name, "age": None} for n, name in ((1, "ada"), (2, "bob")))
    log = captured(engine, PERSON, "INSERT INTO person (id, name) VALUES (2, 'bob'), (1, 'ada')")
    execute(engine, "UPDATE person SET age = 36 WHERE id = 1")
    with engine.connect() as connection:
        connection.execute(sa.text("DELETE FROM person"))
        connection.rollback()
    execute(engine, "UPDATE person SET id = 3 WHERE id = 2", "DELETE FROM person WHERE id = 1")
    older = ada | {"age": 36}
    expected = [
        ("read", 1, None, ada),
        ("read", 2, None, bob),
        ("update", 1, ada, older),
        ("delete", 2, bob, None),
        ("insert", 3, None, bob | {"id": 3}),
        ("delete", 1, older, None),
    ]
    feed = log.feed(cloudevents=True).bind(engine)
    found = [event.data for event in feed.read(0, FIRST, 100).events]
    for event, (operation, key, before, after) in zip(found, expected, strict=True):
        assert (event["type"], event["partitionkey"]) == (f"person.{operation}", f"person/{key}")
        transaction = event["data"].pop("transaction")
        assert (transaction is not None) == (engine.dialect.name == "postgresql")
        assert event["data"] == {
            "table": "person",
            "operation": operation,
            "key": {"id": key},
            "before": before,
            "after": after,
            "actor": None,
        }


ACTING = {
    "postgresql": "SELECT set_config('zeroeventhub.actor', 'ada', true)",
    "mariadb": "SET @zeroeventhub_actor = 'ada'",
}


@pytest.mark.parametrize("database", ACTING)
def test_event_names_who_acts(request, database):
    """The actor is what the session says; on PostgreSQL, until its transaction ends."""
    engine = request.getfixturevalue(database)
    log = captured(engine, PERSON)
    execute(engine, ACTING[database], "INSERT INTO person (id) VALUES (1)")
    with engine.connect() as connection:
        assert [row.data["actor"] for row in events(connection, log)] == ["ada"]


def test_several_tables_are_in_one_log(engine):
    """Tables share a log in one order, and a key of several columns cannot be mistaken."""
    log = captured(engine, PERSON, PET, tables=("person", "pet"))
    execute(
        engine,
        "INSERT INTO pet VALUES ('cat', 1, 'tom')",
        "INSERT INTO person (id, name) VALUES (1, 'ada')",
        "UPDATE pet SET name = 'tim'",
    )
    with engine.connect() as connection:
        found = [(row.type, row.key.replace(" ", "")) for row in events(connection, log)]
        keys = [row.data["key"] for row in events(connection, log)]
    cat = 'pet/["cat",1]'
    assert found == [("pet.insert", cat), ("person.insert", "person/1"), ("pet.update", cat)]
    assert keys == [{"kind": "cat", "no": 1}, {"id": 1}, {"kind": "cat", "no": 1}]
    with engine.begin() as connection:
        Capture(log, "person", "pet").uninstall(connection)
    execute(engine, "DELETE FROM pet", "DELETE FROM person")
    assert len(said(engine, log)) == 3


def test_log_is_compacted_to_the_table(sqlite):
    """By key, the log keeps the last event of each row that is there."""
    log = captured(sqlite, PERSON)
    execute(sqlite, *(f"INSERT INTO person (id) VALUES ({n})" for n in range(4)))
    execute(sqlite, "UPDATE person SET age = 1", "UPDATE person SET age = 2 WHERE id < 2")
    execute(sqlite, "DELETE FROM person WHERE id = 3")
    with sqlite.connect() as connection:
        before = applied(events(connection, log))
    feed = log.feed(
        version=None,
        retention=Retention(),
        compaction=Compaction(tombstone=log.table.c.type.like("%.delete")),
    )
    with sqlite.begin() as connection:
        feed.install(connection)
    feed.bind(sqlite).compact()
    with sqlite.connect() as connection:
        rows = events(connection, log)
        assert applied(rows) == before == there(connection)
    assert len(rows) <= 5


# Types.

TYPED = {
    "sqlite": """CREATE TABLE typed (id BIGINT NOT NULL PRIMARY KEY, price DECIMAL(30, 10),
        ratio DOUBLE, photo BLOB, day DATE, moment TIMESTAMP, document JSON, flag BOOLEAN)""",
    "postgresql": """CREATE TABLE typed (id BIGINT PRIMARY KEY, price NUMERIC(30, 10),
        ratio DOUBLE PRECISION, photo BYTEA, day DATE, moment TIMESTAMPTZ, document JSONB,
        flag BOOLEAN)""",
    "mariadb": """CREATE TABLE typed (id BIGINT PRIMARY KEY, price DECIMAL(30, 10), ratio DOUBLE,
        photo BLOB, day DATE, moment TIMESTAMP(6) NULL, document JSON, flag BOOLEAN)""",
}
PHOTO = {"postgresql": r"'\x00ff'::bytea"}
MOMENT = {"sqlite": "2013-01-01 10:00:00.5", "mariadb": "2013-01-01T10:00:00.500000+00:00"}
ZONE = {"postgresql": "SET LOCAL timezone = '{}'", "mariadb": "SET time_zone = '{}'"}


def test_values_keep_what_json_cannot_hold(engine):
    """Decimals are text, bytes hexadecimal digits, numbers whole; times are as the guide says."""
    name = engine.dialect.name
    log = captured(engine, TYPED[name], tables=("typed",))
    price = "12.5" if name == "sqlite" else "12345678901234567890.1250000000"
    zone = "+00" if name == "postgresql" else ""
    with engine.begin() as connection:
        if name in ZONE:
            connection.exec_driver_sql(ZONE[name].format("+00:00"))
        connection.exec_driver_sql(f"""INSERT INTO typed VALUES (
            9007199254740993, {price}, 0.30000000000000004, {PHOTO.get(name, "x'00ff'")},
            '2013-01-01', '2013-01-01 10:00:00.5{zone}', '{{"a":[1]}}', true)""")
        if name in ZONE:
            connection.exec_driver_sql(ZONE[name].format("+05:00"))
        connection.exec_driver_sql("UPDATE typed SET photo = NULL")
    ((_, key, after), (*_, later)) = said(engine, log)
    assert key == "typed/9007199254740993"
    assert after == {
        "id": 9007199254740993,
        "price": price,
        "ratio": 0.30000000000000004,
        "photo": "00ff",
        "day": "2013-01-01",
        "moment": MOMENT.get(name, "2013-01-01T10:00:00.5+00:00"),
        "document": {"a": [1]},
        "flag": True if name == "postgresql" else 1,
    }
    assert later == after | {"photo": None}


@pytest.mark.parametrize(
    ("database", "values"),
    [
        ("postgresql", {"'NaN'": "NaN", "'-Infinity'": "-Infinity", "5e-324": 5e-324}),
        ("sqlite", {"9e999": "Infinity", "-9e999": "-Infinity", "5e-324": 5e-324}),
        pytest.param(
            "mariadb",
            {"1.7976931348623157e308": 1.7976931348623157e308, "2.5e-308": 2.5e-308},
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_numbers_that_json_lacks_are_named(request, database, values):
    """What is no number in JSON is text, and every other number is exact."""
    engine = request.getfixturevalue(database)
    log = captured(engine, TYPED[database], tables=("typed",))
    for number, value in enumerate(values):
        execute(engine, f"INSERT INTO typed (id, ratio) VALUES ({number}, {value})")
    assert [after["ratio"] for *_, after in said(engine, log)] == [*values.values()]


def test_numbers_that_differ_in_the_last_digit_have_keys_of_their_own(sqlite):
    """A key of double precision has all the digits that tell it from others."""
    log = captured(sqlite, "CREATE TABLE person (id REAL PRIMARY KEY, name TEXT)")
    execute(sqlite, "INSERT INTO person VALUES (0.3, 'a'), (0.1 + 0.2, 'b')")
    assert {key for _, key, _ in said(sqlite, log)} == {"person/0.3", "person/0.30000000000000004"}


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_table_of_another_schema_is_captured(request, database):
    """A table may be in another schema than the log, which its writers need not be in."""
    engine, schema = request.getfixturevalue(database), f"shop_{uuid.uuid4().hex}"
    table = f"{schema}.person"
    execute(engine, f"CREATE SCHEMA {schema}", PERSON.replace("person", table))
    try:
        log = captured(engine, f"INSERT INTO {table} (id) VALUES (1)", tables=(table,))
        execute(engine, f"INSERT INTO {table} (id) VALUES (2)", f"DELETE FROM {table} WHERE id = 1")
        assert [key for _, key, _ in said(engine, log)] == ["person/1", "person/2", "person/1"]
    finally:
        cascade = " CASCADE" if database == "postgresql" else ""
        execute(engine, f"DROP SCHEMA {schema}{cascade}")


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_table_is_that_of_the_schema_of_the_connection(request, database):
    """A connection that translates schemas has the table and the log of its own captured."""
    engine, schema = request.getfixturevalue(database), f"shop_{uuid.uuid4().hex}"
    log = captured(engine, PERSON, f"CREATE SCHEMA {schema}")
    execute(engine, PERSON.replace("person", f"{schema}.person"))
    try:
        translated = engine.execution_options(schema_translate_map={None: schema})
        log.table.create(translated)
        with translated.begin() as connection:
            Capture(log, "person").install(connection)
        execute(engine, f"INSERT INTO {schema}.person (id) VALUES (1)")
        assert [key for _, key, _ in said(translated, log)] == ["person/1"]
        assert said(engine, log) == []
    finally:
        cascade = " CASCADE" if database == "postgresql" else ""
        execute(engine, f"DROP SCHEMA {schema}{cascade}")


def test_tables_are_those_that_the_connection_finds(postgresql):
    """A migration of one schema after another captures the tables of each, not the first ones."""
    metadata = sa.MetaData()
    log = EventLog(metadata, "changes")
    with postgresql.begin() as connection:
        for number, schema in enumerate(("public", "tenant")):
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.exec_driver_sql(f"SET LOCAL search_path = empty, {schema}")
            connection.exec_driver_sql(PERSON)
            metadata.create_all(connection, checkfirst=False)
            Capture(log, "person").install(connection)
            connection.exec_driver_sql(f"INSERT INTO person (id) VALUES ({number})")
            found = Capture(log, "person").check(connection)
            assert [one.level for one in found] == ["ok"]
            assert [row.key for row in events(connection, log)] == [f"person/{number}"]


@pytest.mark.parametrize(
    "names", [["100%", "a:b", 'say "it\'s"', "{0}"], ["one", "now", "row_of", "old_row"]]
)
def test_columns_have_any_names(engine, names):
    """Columns are captured under their names, also if they have signs, or are ours."""
    names = [sa.Column(name, sa.Integer) for name in names]
    number = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
    sa.Table("person", sa.MetaData(), number, *names).create(engine)
    insert = "INSERT INTO person VALUES ({}, 2, 3, 4, 5)"
    log = captured(engine, insert.format(1))
    execute(engine, insert.format(2), "UPDATE person SET id = 3 WHERE id = 2")
    same_as_table(engine, log)


def test_tables_have_any_names(engine):
    """A table is captured under its name, whatever letters and signs it has."""
    for name in ("pérsøn", 'say "it\'s"', "{0}"):
        number = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
        table = sa.Table(name, sa.MetaData(), number)
        table.create(engine)
        log = captured(engine, table.insert().values(id=1), tables=(name,))
        execute(engine, table.insert().values(id=2), table.delete().where(number == 1))
        with engine.connect() as connection:
            assert applied(events(connection, log)) == {f"{name}/2": {"id": 2}}
        log.table.drop(engine)


def test_texts_of_any_character_set_are_captured(mariadb):
    """Columns of other character sets, as of a server that is set up so, are in the log."""
    log = captured(
        mariadb,
        """CREATE TABLE person (id VARCHAR(9) CHARACTER SET latin1 NOT NULL PRIMARY KEY,
            name TEXT CHARACTER SET cp1250, city TEXT CHARACTER SET utf8mb4,
            kind ENUM('ä', 'ö') CHARACTER SET latin1)""",
        "INSERT INTO person VALUES ('é', 'ž', '漢', 'ö')",
    )
    execute(mariadb, "INSERT INTO person VALUES ('ü', 'č', '字', 'ä')")
    assert len(same_as_table(mariadb, log)) == 2


def test_values_of_domains_are_those_of_their_types(postgresql):
    """Decimals and bytes are text, also in a domain over another domain."""
    log = captured(
        postgresql,
        "CREATE DOMAIN price AS NUMERIC(9, 2)",
        "CREATE DOMAIN fee AS price CHECK (VALUE > 0)",
        "CREATE DOMAIN photo AS BYTEA",
        "CREATE DOMAIN icon AS photo",
        "CREATE TABLE person (id INTEGER PRIMARY KEY, one price, two fee, three photo, four icon)",
        r"INSERT INTO person VALUES (1, 1.5, 1.5, '\x00ff', '\x00ff')",
    )
    ((_, _, row),) = said(postgresql, log)
    assert row == {"id": 1, "one": "1.50", "two": "1.50", "three": "00ff", "four": "00ff"}


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
def test_values_that_only_mariadb_has_are_captured(mariadb):
    """Numbers that are written with zeros before them are numbers, addresses text."""
    log = captured(
        mariadb,
        """CREATE TABLE person (id INTEGER(5) ZEROFILL PRIMARY KEY, born YEAR,
            ratio DOUBLE(8, 2) ZEROFILL, address INET6)""",
        "INSERT INTO person VALUES (7, 0, 1.5, '::1')",
    )
    execute(mariadb, "UPDATE person SET ratio = 2.5")
    row = {"id": 7, "born": 0, "address": "::1"}
    assert said(mariadb, log) == [
        ("person.read", "person/7", row | {"ratio": 1.5}),
        ("person.update", "person/7", row | {"ratio": 2.5}),
    ]


@pytest.mark.filterwarnings("ignore:Unknown schema content:sqlalchemy.exc.SAWarning")
def test_rows_of_periods_are_told_apart(mariadb):
    """A period in the primary key is part of the key of an event."""
    log = captured(
        mariadb,
        """CREATE TABLE stay (room INTEGER, since DATE, until DATE,
            PERIOD FOR during (since, until),
            PRIMARY KEY (room, during WITHOUT OVERLAPS))""",
        "INSERT INTO stay VALUES (1, '2026-01-01', '2027-01-01')",
        tables=("stay",),
    )
    for statement in (
        "DELETE FROM stay FOR PORTION OF during FROM '2026-03-01' TO '2026-05-01'",
        "UPDATE stay FOR PORTION OF during FROM '2026-06-01' TO '2026-07-01' SET room = 2",
    ):
        execute(mariadb, statement)
    with mariadb.connect() as connection:
        rows = connection.exec_driver_sql("SELECT room, since, until FROM stay").all()
        state = applied(events(connection, log)).values()
        found = {(row["room"], row["since"], row["until"]) for row in state}
    assert found == {(room, str(since), str(until)) for room, since, until in rows}
    assert len(found) == 4


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize(
    ("extension", "key", "more"), [("vector", "[1,2]", "[1,3]"), ("ltree", "a.b", "a.c")]
)
def test_keys_are_of_any_type(postgresql, extension, key, more):
    """A key may be of a type of an extension, whose operators writers find."""
    available = "SELECT count(*) FROM pg_available_extensions WHERE name = '{}'"
    if scalars(postgresql, available.format(extension)) == [0]:
        pytest.skip(f"PostgreSQL has no {extension} here")
    log = captured(
        postgresql,
        f"CREATE EXTENSION {extension}",
        f"CREATE TABLE person (id {extension}, no INTEGER, PRIMARY KEY (no, id))",
        f"INSERT INTO person VALUES ('{key}', 1)",
    )
    execute(postgresql, f"INSERT INTO person VALUES ('{more}', 1)", "UPDATE person SET no = 2")
    execute(postgresql, f"DELETE FROM person WHERE id = '{key}'")
    with postgresql.connect() as connection:
        assert [*applied(events(connection, log))] == [f'person/[2, "{more}"]']


def test_ranges_are_written_in_one_style(postgresql):
    """A key that has times is the same one in a session of another style of dates."""
    log = captured(
        postgresql,
        "CREATE TABLE stay (room INTEGER, during TSTZRANGE, PRIMARY KEY (room, during))",
        "INSERT INTO stay VALUES (1, '[2026-01-02 10:00+00,2026-01-03 10:00+00)')",
        tables=("stay",),
    )
    execute(postgresql, "SET LOCAL datestyle = 'German'", "DELETE FROM stay")
    with postgresql.connect() as connection:
        assert applied(events(connection, log)) == {}


def test_long_keys_are_shortened(postgresql, mariadb):
    """A key that the log cannot hold is told by its digest, and its events have one key."""
    for engine in (postgresql, mariadb):
        log = captured(engine, "CREATE TABLE page (url VARCHAR(300) PRIMARY KEY)", tables=["page"])
        execute(engine, f"INSERT INTO page VALUES ('{'x' * 250}'), ('short')", "DELETE FROM page")
        found = [key for _, key, _ in said(engine, log)]
        assert len(set(found)) == 2
        assert len(found) == 4
        assert "page/short" in found


# Statements that change rows in other ways.


def same_as_table(engine, log, *tables):
    """Assert that the log says what is there; return its events in short."""
    with engine.connect() as connection:
        state = {}
        for table in tables or ("person",):
            state |= there(connection, table)
        assert applied(events(connection, log)) == state
    return said(engine, log)


UPSERTS = {
    "sqlite": [
        "REPLACE INTO person VALUES (1, 'b', 5)",
        "INSERT OR IGNORE INTO person VALUES (7, 'c', 1)",
        "INSERT INTO person VALUES (8, 'c', 3) ON CONFLICT (name) DO UPDATE SET age = 9",
        "UPDATE OR REPLACE person SET name = 'c' WHERE id = 4",
        "UPDATE OR REPLACE person SET id = 4 WHERE id = 1",
    ],
    "postgresql": [
        "INSERT INTO person VALUES (1, 'z', 5) ON CONFLICT (id) DO UPDATE SET name = 'y'",
        "INSERT INTO person VALUES (7, 'c', 1) ON CONFLICT DO NOTHING",
        """WITH gone AS (DELETE FROM person WHERE id = 2 RETURNING *)
            INSERT INTO person SELECT id + 10, name, age FROM gone""",
        "UPDATE person SET id = id + 100",
    ],
    "mariadb": [
        "REPLACE INTO person VALUES (1, 'b', 5)",
        "INSERT IGNORE INTO person VALUES (7, 'c', 1)",
        "INSERT INTO person VALUES (8, 'c', 3) ON DUPLICATE KEY UPDATE age = 9",
        "UPDATE person SET id = id + 1 ORDER BY id DESC",
    ],
}


def test_replaced_rows_are_known(engine):
    """Upserts, and rows that another row replaces by any of its unique values, are in the log."""
    log = captured(engine, PERSON, "CREATE UNIQUE INDEX by_name ON person (name)")
    execute(engine, "INSERT INTO person VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1), (4, 'd', 1)")
    for statement in UPSERTS[engine.dialect.name]:
        execute(engine, statement)
        same_as_table(engine, log)


def test_rows_that_a_collation_takes_for_one_are_replaced(sqlite):
    """On SQLite, a row that has the same unique text in another letter case is known to be gone."""
    log = captured(
        sqlite,
        "CREATE TABLE person (id TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, name TEXT)",
        "CREATE UNIQUE INDEX by_name ON person (name COLLATE NOCASE)",
    )
    execute(sqlite, "INSERT INTO person VALUES ('a', 'x'), ('b', 'y'), ('c', 'z')")
    for statement in (
        "REPLACE INTO person VALUES ('A', 'w')",
        "REPLACE INTO person VALUES ('d', 'Y')",
        "UPDATE OR REPLACE person SET id = 'D' WHERE id = 'C'",
        "UPDATE OR IGNORE person SET id = 'a', name = 'Z'",
    ):
        execute(sqlite, statement)
        same_as_table(sqlite, log)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_cascades_are_in_the_log(request, database):
    """Rows that foreign keys change or delete have their events."""
    engine = request.getfixturevalue(database)
    log = captured(engine, PERSON, CASCADES, tables=("person", "child"))
    execute(engine, "INSERT INTO person (id) VALUES (1), (2)")
    execute(engine, "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2)")
    on = ["PRAGMA foreign_keys = ON"] if database == "sqlite" else []
    for statement in ("UPDATE person SET id = 5 WHERE id = 2", "DELETE FROM person WHERE id = 1"):
        with engine.connect() as connection:
            for each in (*on, statement):
                connection.exec_driver_sql(each)
            connection.commit()
        same_as_table(engine, log, "person", "child")
    assert ("child.delete", "child/1", None) in said(engine, log)


def test_cascades_that_fire_no_trigger_are_refused(mariadb):
    """MariaDB changes rows by foreign keys without triggers, so that a log would miss them."""
    execute(
        mariadb,
        PERSON,
        CASCADES.replace("INTEGER REFERENCES", "INTEGER, FOREIGN KEY (parent) REFERENCES"),
    )
    with pytest.raises(ConfigurationError, match="CASCADE"), mariadb.connect() as connection:
        Capture(EventLog(sa.MetaData(), "changes"), "child").install(connection)


def test_truncated_table_is_empty_in_the_log(postgresql):
    """TRUNCATE is an event of each row; where it would not see all rows, it is refused."""
    log = captured(postgresql, PERSON)
    execute(postgresql, "INSERT INTO person (id) VALUES (1), (2)", "TRUNCATE person")
    found = same_as_table(postgresql, log)
    assert found[2:] == [("person.delete", "person/1", None), ("person.delete", "person/2", None)]
    serializable = postgresql.execution_options(isolation_level="SERIALIZABLE")
    with pytest.raises(DBAPIError, match="READ COMMITTED"):
        execute(serializable, "TRUNCATE person")


def test_rows_of_partitions_are_in_the_log(postgresql):
    """Rows that are written to a partition, or that move to another one, have their events."""
    log = captured(
        postgresql,
        f"{PERSON} PARTITION BY RANGE (id)",
        "CREATE TABLE young PARTITION OF person FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE old PARTITION OF person FOR VALUES FROM (100) TO (200)",
    )
    for statement in ("INSERT INTO young (id) VALUES (1), (2)", "UPDATE person SET id = id + 99"):
        execute(postgresql, statement)
        same_as_table(postgresql, log)


def test_writers_need_no_right_to_the_log(postgresql):
    """Who may write to the table has events written, and may write none otherwise."""
    log = captured(postgresql, PERSON)
    user = f"writer_{uuid.uuid4().hex}"
    with postgresql.connect() as connection:
        for statement in (f"CREATE ROLE {user}", f"GRANT INSERT ON person TO {user}"):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"SET LOCAL ROLE {user}")
        connection.exec_driver_sql("INSERT INTO person (id) VALUES (1)")
        assert connection.begin_nested()
        write_all = "SELECT proname FROM pg_proc WHERE proname LIKE 'zeroeventhub%all'"
        name = connection.exec_driver_sql(write_all.replace("%", "%%")).scalar_one()
        with pytest.raises(DBAPIError, match="permission denied"):
            connection.exec_driver_sql(f"SELECT {name}('read')")
        connection.get_nested_transaction().rollback()
        own = "CREATE TEMPORARY TABLE own (id INTEGER)"
        fire = f"""CREATE TRIGGER forge BEFORE TRUNCATE ON own
            EXECUTE FUNCTION {name.removesuffix("_all")}()"""
        with pytest.raises(DBAPIError, match="permission denied"), connection.begin_nested():
            for statement in (own, fire, "TRUNCATE own"):
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql("RESET ROLE")
        assert len(events(connection, log)) == 1
        assert [one.level for one in Capture(log, "person").check(connection)] == ["ok"]
        trigger = name.removesuffix("_all")
        connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {trigger}() TO PUBLIC")
        assert [one.level for one in Capture(log, "person").check(connection)] == ["error"]
        connection.rollback()


def test_rows_that_a_policy_hides_are_never_left_out(postgresql):
    """Where a policy hides rows from the triggers' owner, installing and all writes are refused."""
    execute(
        postgresql,
        PERSON,
        "INSERT INTO person (id, name) VALUES (1, 'ada'), (2, 'hidden')",
        "CREATE POLICY known ON person USING (name <> 'hidden')",
    )
    metadata = sa.MetaData()
    log = EventLog(metadata, "changes")
    metadata.create_all(postgresql)
    user = f"owner_{uuid.uuid4().hex}"
    with postgresql.connect() as connection:
        for statement in (
            f"CREATE ROLE {user}",
            f"GRANT CREATE ON SCHEMA public TO {user}",
            f"ALTER TABLE person OWNER TO {user}",
            f"ALTER TABLE changes OWNER TO {user}",
            f"SET LOCAL ROLE {user}",
            "ALTER TABLE person ENABLE ROW LEVEL SECURITY",
        ):
            connection.exec_driver_sql(statement)
        Capture(log, "person").install(connection)  # an owner sees all rows
        assert len(events(connection, log)) == 2
        connection.exec_driver_sql("ALTER TABLE person FORCE ROW LEVEL SECURITY")
        for statement in ("UPDATE person SET name = 'hidden'", None):
            with pytest.raises(DBAPIError, match="row-level security"), connection.begin_nested():
                if statement:
                    connection.exec_driver_sql(statement)
                else:
                    Capture(log, "person").install(connection)
        connection.rollback()


MEDDLING = {
    "sqlite": [
        """CREATE TRIGGER {name} AFTER INSERT ON person BEGIN
            UPDATE person SET age = coalesce(age, 0) + 1; END"""
    ],
    "postgresql": [
        """CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN UPDATE person SET age = coalesce(age, 0) + 1; RETURN NULL; END $$""",
        "CREATE TRIGGER {name} AFTER INSERT ON person FOR EACH ROW EXECUTE FUNCTION {name}()",
    ],
}


@pytest.mark.parametrize("database", MEDDLING)
@pytest.mark.parametrize("name", ["a_first", pytest.param("zz_last", marks=pytest.mark.test_all)])
def test_triggers_that_change_the_table_again(request, database, name):
    """Whichever trigger comes first, the last event of a row says what it is."""
    engine = request.getfixturevalue(database)
    meddling = [statement.format(name=name) for statement in MEDDLING[database]]
    log = captured(engine, PERSON, *(meddling if name == "a_first" else ()))
    if name == "zz_last":
        with engine.begin() as connection:
            for statement in meddling:
                connection.exec_driver_sql(statement)
    execute(engine, "INSERT INTO person (id) VALUES (1), (2), (3)")
    assert len(same_as_table(engine, log)) > 6


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize(
    ("event", "statement"),
    [
        ("BEFORE INSERT", "REPLACE INTO person VALUES (3, 'a', 7)"),
        ("AFTER INSERT", "REPLACE INTO person VALUES (3, 'a', 7)"),
        ("AFTER UPDATE", "UPDATE OR REPLACE person SET name = 'a' WHERE id = 2"),
    ],
)
def test_triggers_that_change_the_table_while_a_row_is_replaced(
    sqlite, event, statement, comes_first
):
    """A row that is replaced for another unique value is known to be gone, also beside them."""
    meddling = f"""CREATE TRIGGER meddling {event} ON person BEGIN
        UPDATE person SET age = age + 1 WHERE name = NEW.name; END"""
    log = captured(
        sqlite,
        PERSON,
        "CREATE UNIQUE INDEX by_name ON person (name)",
        "INSERT INTO person VALUES (1, 'a', 1), (2, 'b', 2)",
        *([meddling] if comes_first else ()),
    )
    with sqlite.begin() as connection:
        if not comes_first:
            connection.exec_driver_sql(meddling)
        connection.exec_driver_sql(statement)
    same_as_table(sqlite, log)


def test_deletion_has_one_event(sqlite):
    """A row that could have been replaced, and is deleted later, is deleted once in the log."""
    log = captured(sqlite, PERSON, "CREATE UNIQUE INDEX by_name ON person (name)")
    execute(
        sqlite,
        "INSERT INTO person VALUES (1, 'a', 1)",
        "INSERT OR IGNORE INTO person VALUES (2, 'a', 1)",
        "DELETE FROM person",
        "INSERT INTO person VALUES (3, 'c', 1)",
    )
    operations = [kind for kind, _, _ in said(sqlite, log)]
    assert operations == ["person.insert", "person.delete", "person.insert"]


# Columns that change.


def test_columns_that_change_are_noticed(engine):
    """A check names what triggers do not know, and installing again adds it to the log."""
    name = engine.dialect.name
    log = captured(engine, PERSON, "INSERT INTO person (id, name) VALUES (1, 'ada')")
    capture = Capture(log, "person")

    def check():
        with engine.connect() as connection:
            return [(each.level, each.sentence) for each in capture.check(connection)]

    assert [level for level, _ in check()] == ["ok"]
    execute(engine, "ALTER TABLE person ADD COLUMN city VARCHAR(40)")
    execute(engine, "UPDATE person SET city = 'Oslo'")
    ((level, sentence),) = check()
    if name == "postgresql":
        assert level == "ok"
    else:
        assert (level, "do not know city: run" in sentence) == ("error", True)
    with engine.begin() as connection:
        capture.install(connection)
    assert [level for level, _ in check()] == ["ok"]
    assert same_as_table(engine, log)[-1][0] == "person.read"
    execute(engine, "ALTER TABLE person RENAME COLUMN city TO town")
    assert [level for level, _ in check()] == ["ok" if name == "postgresql" else "error"]
    if name == "mariadb":
        with pytest.raises(DBAPIError, match="city"):
            execute(engine, "UPDATE person SET age = 1")
    with engine.begin() as connection:
        capture.install(connection)
    execute(engine, "UPDATE person SET age = 1")
    assert same_as_table(engine, log)[-1][2]["town"] == "Oslo"
    with engine.begin() as connection:
        capture.uninstall(connection)
    ((level, sentence),) = check()
    assert (level, "are not captured: run" in sentence) == ("error", True)


def test_unique_index_that_comes_later_is_noticed(sqlite):
    """Triggers of SQLite do not know for which rows of a later index another row is replaced."""
    log = captured(sqlite, PERSON)
    execute(sqlite, "CREATE UNIQUE INDEX by_name ON person (name)")
    with sqlite.begin() as connection:
        assert [one.level for one in Capture(log, "person").check(connection)] == ["error"]
        Capture(log, "person").install(connection)
        assert [one.level for one in Capture(log, "person").check(connection)] == ["ok"]


def test_table_that_takes_the_place_of_another_is_noticed(engine):
    """A copy of the table under its name has no triggers, though the other one still has them."""
    log = captured(engine, PERSON)
    execute(engine, "ALTER TABLE person RENAME TO person_before", PERSON)
    with engine.begin() as connection:
        assert [one.level for one in Capture(log, "person").check(connection)] == ["error"]
    execute(engine, "DROP TABLE person_before")
    with engine.begin() as connection:
        Capture(log, "person").install(connection)
        assert [one.level for one in Capture(log, "person").check(connection)] == ["ok"]


@pytest.mark.parametrize("how", ["DISABLE", "ENABLE REPLICA"])
@pytest.mark.parametrize("kind", ["truncate", "rows"])
def test_trigger_that_is_disabled_is_noticed(postgresql, kind, how):
    """A check finds a table of which some changes write no events."""
    log = captured(postgresql, PERSON)
    with postgresql.begin() as connection:
        find = sa.text("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'zeroeventhub%'")
        names = sorted(connection.scalars(find))
        name = names[kind == "truncate"]
        connection.exec_driver_sql(f"ALTER TABLE person {how} TRIGGER {name}")
        (found,) = Capture(log, "person").check(connection)
    assert (found.level, "are not captured: run" in found.sentence) == ("error", True)


def test_dropped_column_is_never_silent(engine):
    """PostgreSQL goes on without it; MariaDB refuses the next write, SQLite the migration."""
    log = captured(engine, PERSON, "INSERT INTO person (id, name) VALUES (1, 'ada')")
    drop, update = "ALTER TABLE person DROP COLUMN age", "UPDATE person SET name = 'eve'"
    if engine.dialect.name == "postgresql":
        execute(engine, drop, update)
        assert said(engine, log)[-1][2] == {"id": 1, "name": "eve"}
        drop = "ALTER TABLE person RENAME COLUMN id TO number"
        with pytest.raises(DBAPIError, match=r"\bid\b"):
            execute(engine, drop, update)
        return
    with pytest.raises(DBAPIError, match="age"):
        execute(engine, drop)
        execute(engine, update)


# What cannot be captured.


def test_what_cannot_be_captured_is_refused(any_engine):
    """A missing table, one without a primary key, the log itself, or one of several partitions."""
    execute(any_engine, "CREATE TABLE heap (name VARCHAR(9))")
    log = EventLog(sa.MetaData(), "changes")
    log.table.create(any_engine)
    refused = {"heap": "no primary key", "ghost": "no table 'ghost'", "changes": "the log itself"}
    with any_engine.connect() as connection:
        for table, sentence in refused.items():
            with pytest.raises(ConfigurationError, match=sentence):
                Capture(log, table).install(connection)
    with pytest.raises(ConfigurationError, match="one partition"):
        Capture(EventLog(sa.MetaData(), "split", partitions=2), "heap")
    with pytest.raises(ConfigurationError, match="same keys"):
        Capture(log, "shop.heap", "heap")
    alone = any_engine.execution_options(isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        Capture(log, "heap").install(connection)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("ALTER TABLE person ADD PRIMARY KEY (id) DEFERRABLE", "another order"),
        ("CREATE TABLE child (school TEXT) INHERITS (person)", "Other tables inherit"),
    ],
)
def test_tables_whose_changes_the_log_may_miss_are_refused(postgresql, statement, sentence):
    """A key that writers do not wait for, and rows of tables that inherit, are not captured."""
    drop = "ALTER TABLE person DROP CONSTRAINT person_pkey"
    execute(postgresql, PERSON, *([drop] if "KEY" in statement else ()), statement)
    log = EventLog(sa.MetaData(), "changes")
    with pytest.raises(ConfigurationError, match=sentence), postgresql.begin() as connection:
        Capture(log, "person").install(connection)


REFUSED = {
    "postgresql": "CREATE TABLE child (school TEXT) INHERITS (person)",
    "mariadb": """ALTER TABLE person ADD COLUMN parent INTEGER,
        ADD FOREIGN KEY (parent) REFERENCES person (id) ON DELETE CASCADE""",
}


@pytest.mark.parametrize("database", REFUSED)
def test_table_that_is_refused_by_now_is_released(request, database):
    """Triggers can be removed from a table that has changed so that it is not captured any more."""
    engine = request.getfixturevalue(database)
    log = captured(engine, PERSON)
    execute(engine, REFUSED[database])
    with engine.begin() as connection:
        with pytest.raises(ConfigurationError):
            Capture(log, "person").check(connection)
        Capture(log, "person").uninstall(connection)
    execute(engine, "INSERT INTO person (id) VALUES (1)")
    assert said(engine, log) == []


def test_null_key_is_refused(sqlite):
    """SQLite lets a primary key be NULL; such a row cannot be captured."""
    captured(sqlite, "CREATE TABLE person (id TEXT PRIMARY KEY, name TEXT)")
    with pytest.raises(DBAPIError, match="cannot be captured"):
        execute(sqlite, "INSERT INTO person VALUES (NULL, 'x')")


def test_node_of_a_cluster_is_refused():
    """On a Galera cluster no other node is locked, and a write there would stop all for good."""
    with (
        own_mariadb("--wsrep-on=ON", "--binlog-format=ROW") as node,
        new_database(node.url) as url,
        connected(url) as engine,
    ):
        with pytest.raises(ConfigurationError, match="Galera"):
            captured(engine, PERSON)
        with engine.begin() as connection:
            Capture(EventLog(sa.MetaData(), "changes"), "person").uninstall(connection)


def test_failed_installation_keeps_no_lock(mariadb):
    """Where the log is no log, the installation fails, and writers of the table go on."""
    execute(mariadb, PERSON, "CREATE TABLE changes (position INTEGER)")
    with mariadb.connect() as connection:
        with pytest.raises(DBAPIError, match="partition"):
            Capture(EventLog(sa.MetaData(), "changes"), "person").install(connection)
        execute(mariadb, "INSERT INTO person (id) VALUES (1)")


# Torture.


@pytest.mark.parametrize("wanted", [150, pytest.param(6000, marks=pytest.mark.test_all)])
def test_log_is_the_table_at_every_moment(database_url, wanted):
    """Beside writers that collide, from before the installation on, the log is the table."""
    assert tortured(database_url, wanted, seed=0) >= wanted
