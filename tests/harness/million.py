"""A table of many events, on each database, and what reading it costs there."""

import re
import sqlite3
from contextlib import closing, contextmanager

from psycopg import sql
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    event,
    text,
)

from zeroeventhub import TableFeed
from zeroeventhub.publisher.partition_hash import hash_on_connect, partition_expression

FEW = 100
"""How many events the last partition has, behind all others."""

metadata = MetaData()
events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("skewed", Integer, nullable=False),
    Column("spread", Integer, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("name", String(20), nullable=False),
    Column("happened", DateTime, nullable=False),
    Column("data", JSON, nullable=False),
    Index("events_skewed", "skewed", "id"),
    Index("events_spread", "spread", "id"),
    Index("events_by_name", "name"),
    Index("events_by_time", "skewed", "happened", "id"),
    Index("events_by_time_alone", "happened"),
    sqlite_autoincrement=True,
)
BY_NAME = partition_expression(events.c.name, 4)

FILL = {
    "postgresql": """INSERT INTO events
SELECT n, CASE WHEN n > {late} THEN 1 ELSE 0 END, n * 7919 % 16,
    CASE WHEN n % 1000 = 0 THEN 'rare' ELSE 'usual' END, 'e' || n,
    timestamp '2020-01-01' + n * interval '1 second', '{{"n": 1}}'
FROM generate_series(1, {rows}::bigint) AS n""",
    "mariadb": """INSERT INTO events
SELECT seq, IF(seq > {late}, 1, 0), seq * 7919 % 16,
    IF(seq % 1000 = 0, 'rare', 'usual'), CONCAT('e', seq),
    TIMESTAMPADD(SECOND, seq, '2020-01-01'), '{{"n": 1}}'
FROM seq_1_to_{rows}""",
    "sqlite": """INSERT INTO events
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})
SELECT n, iif(n > {late}, 1, 0), n * 7919 % 16,
    iif(n % 1000 = 0, 'rare', 'usual'), 'e' || n,
    strftime('%Y-%m-%d %H:%M:%S', '2020-01-01', '+' || n || ' seconds'), '{{"n": 1}}'
FROM numbers""",
}

FEEDS = {
    "one partition": {},
    "skewed": {"partition": "skewed", "partitions": 3},
    "spread": {"partition": "spread", "partitions": 17},
    "sequenced": {"partition": "skewed", "partitions": 3, "ordering": "sequenced"},
}


def feed(name):
    """The feed over the events of this name; each of its partitions but the last has events."""
    options = FEEDS[name] if name != "by expression" else {"partition": BY_NAME, "partitions": 5}
    # Of the partitions, only those that are skewed have an index of their times.
    timed = name in {"one partition", "skewed", "sequenced"}
    time = {"time": "happened"} if timed else {}
    return TableFeed(events, data="data", type="kind", id="name", **time, **options)


def fill(engine, rows):
    """Fill the tables: that of the events, and those that the ordering sequenced has beside it."""
    metadata.create_all(engine)
    hash_on_connect(engine)
    database = engine.dialect.name
    with engine.begin() as connection:
        if database == "postgresql":
            # As after a bulk load, without statistics yet.
            connection.exec_driver_sql("ALTER TABLE events SET (autovacuum_enabled = off)")
        statement = FILL[database].format(rows=rows, late=rows - FEW)
        connection.exec_driver_sql(
            statement.replace("%", "%%") if database != "sqlite" else statement
        )
        if database == "postgresql":
            connection.exec_driver_sql(
                f"SELECT setval(pg_get_serial_sequence('events', 'id'), {rows})"
            )
        if database != "mariadb":
            Index("events_by_expression", BY_NAME, events.c.id).create(connection)
        _give_positions(connection, rows)
    events.indexes = {index for index in events.indexes if index.name != "events_by_expression"}


def _give_positions(connection, rows):
    """Give every event the position of its number, as the ordering would in many small steps."""
    ordering = feed("sequenced").ordering(connection.dialect.name)
    for statement in ordering.ddl(connection).install:
        connection.execute(text(statement.replace(":", r"\:")))
    positions = ordering.source.table.name
    state = positions.replace("_positions_", "_state_")
    connection.execute(
        text(
            f"INSERT INTO {positions} (position, key_1, {_quoted(connection, 'partition')}, at) "
            "SELECT id, id, skewed, happened FROM events"
        )
    )
    if connection.dialect.name == "sqlite":
        return  # it counts in sqlite_sequence
    low = ", low" if connection.dialect.name == "postgresql" else ""
    values = f"1, {rows}, '2020-02-01'" + (", 0" if low else "")
    connection.execute(text(f"INSERT INTO {state} (id, last, at{low}) VALUES ({values})"))


def _quoted(connection, name):
    return connection.dialect.identifier_preparer.quote(name)


@contextmanager
def noting(engine):
    """Note the statements that are sent, with their parameters."""
    seen = []

    def note(connection, cursor, statement, parameters, *_):
        if not statement.startswith("EXPLAIN") and re.search(
            r"\bFROM [`\"]?(events|zeroeventhub_positions)", statement
        ):
            seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def nodes(plan):
    """Yield the nodes of a plan of PostgreSQL."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def plans_on_postgresql(engine, statement, parameters):
    """Return how PostgreSQL carries a statement out: planned for its values, and for any."""
    names = [*dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))]
    for number, name in enumerate(names, 1):
        statement = statement.replace(f"%({name})s", f"${number}")
    values = ", ".join(sql.Literal(parameters[name]).as_string() for name in names)
    plans = {}
    with engine.connect() as connection:
        for mode in ("force_custom_plan", "force_generic_plan"):
            settings = ("enable_sort = off", "enable_seqscan = off", f"plan_cache_mode = {mode}")
            for setting in settings:
                connection.exec_driver_sql(f"SET LOCAL {setting}")
            run = f"EXECUTE one ({values})" if names else "EXECUTE one"
            cursor = connection.connection.cursor()
            cursor.execute(f"PREPARE one AS {statement.replace('%%', '%')}")
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {run}")
            plans[mode] = cursor.fetchone()[0][0]["Plan"]
            cursor.execute("DEALLOCATE one")
    return plans


def steps_on_sqlite(path, statement, parameters):
    """Count the steps of SQLite's machine that a statement takes, and return its plan."""
    from zeroeventhub.publisher.partition_hash import register

    steps = 0

    def count():
        nonlocal steps
        steps += 1

    with closing(sqlite3.connect(path)) as connection:
        register(connection)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        connection.set_progress_handler(count, 100)
        connection.execute(statement, parameters).fetchall()
    return steps * 100, plan


READ = ("key", "next", "prev", "first", "last", "rnd", "rnd_next")


def rows_on_mariadb(connection):
    """Return how many rows and entries of indexes a session of MariaDB has read."""
    found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read_%%'").all()
    return sum(int(row[1]) for row in found if row[0].removeprefix("Handler_read_") in READ)
