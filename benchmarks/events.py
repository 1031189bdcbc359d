"""The events of the benchmarks: about 300 bytes of JSON each, made in the database."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Engine,
    Float,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

_MEMBERS = """
    'id', n, 'customer', 'customer ' || (n % 9973),
    'email', 'customer' || (n % 9973) || '@example.com',
    'amount', round(n % 90000 / 100.0, 2), 'tax', round(n % 90000 / 400.0, 2),
    'items', n % 7 + 1, 'weight', round(n % 83 / 8.0, 1), 'currency', 'NOK', 'status', 'placed',
    'channel', 'web', 'city', 'Trondheim', 'country', 'Norway', 'carrier', 'post',
    'placed', '2026-01-01T10:00:00Z'
"""

_POSTGRESQL = f"""
    SELECT jsonb_build_object({_MEMBERS}, 'express', n % 7 = 0) AS data
    FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n
    ORDER BY n
"""  # noqa: S608 - no value of anybody's

_SQLITE = f"""
    WITH RECURSIVE series(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM series WHERE n < :last)
    SELECT json_object(
        {_MEMBERS}, 'express', json(CASE WHEN n % 7 = 0 THEN 'true' ELSE 'false' END)) AS data
    FROM series
"""  # noqa: S608 - no value of anybody's

_MARIADB = f"""
    SELECT JSON_OBJECT(
        {
    _MEMBERS.replace("'customer ' || (n % 9973)", "CONCAT('customer ', n % 9973)").replace(
        "'customer' || (n % 9973) || '@example.com'", "CONCAT('customer', n % 9973, '@example.com')"
    )
},
        'express', JSON_EXTRACT(IF(n % 7 = 0, 'true', 'false'), '$')) AS data
    FROM (SELECT seq AS n FROM seq_1_to_100000000 WHERE seq BETWEEN :first AND :last) AS series
"""  # noqa: S608 - no value of anybody's

_SOURCES = {"postgresql": _POSTGRESQL, "sqlite": _SQLITE, "mariadb": _MARIADB}

FORMS = {"jsonb": JSONB, "json": JSON, "text": Text, "envelope": JSONB}
"""What the column of the data may be, and jsonb that is published in an envelope of CloudEvents."""

BATCH = 1_000_000


def feed_table(name: str, form: str = "json") -> Table:
    """Return a table of events, with the data in a form of FORMS."""
    return Table(
        name,
        MetaData(),
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("data", FORMS[form], nullable=False),
        sqlite_autoincrement=True,
    )


def effects_table() -> Table:
    """Return a table for what a consumer writes: the members of the data, in columns."""
    return Table(
        "benchmark_effects",
        MetaData(),
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        *(Column(name, Text) for name in ("customer", "email", "currency", "status", "channel")),
        *(Column(name, Text) for name in ("city", "country", "carrier", "placed")),
        *(Column(name, Float) for name in ("amount", "tax", "weight")),
        Column("items", Integer),
        Column("express", Boolean),
    )


def fill(engine: Engine, table: Table, count: int, *, members: str = "") -> None:
    """Make a table anew, with so many events.

    Args:
        engine: of its database.
        table: to make.
        count: of the events.
        members: of the documents, as SQL, in the place of all of them; PostgreSQL only.
    """
    table.drop(engine, checkfirst=True)
    table.create(engine)
    source = _SOURCES[engine.dialect.name]
    if members:
        source = (
            f"SELECT jsonb_build_object({members}) AS data "  # noqa: S608 - the suites' own
            "FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS n ORDER BY n"
        )
    if isinstance(table.c.data.type, Text) and engine.dialect.name == "postgresql":
        source = f"SELECT data::text FROM ({source}) AS made"  # noqa: S608 - the text above
    for first in range(1, count + 1, BATCH):
        last = min(first + BATCH - 1, count)
        with engine.begin() as connection:
            connection.execute(
                text(f"INSERT INTO {table.name} (data) {source}"), {"first": first, "last": last}
            )
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"VACUUM ANALYZE {table.name}"))
    with engine.connect() as connection:
        found = connection.scalar(select(func.count()).select_from(table))
    assert found == count  # noqa: S101 - else nothing measured means anything
