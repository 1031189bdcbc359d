"""Tables of every type of column, and what lands in them."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Double,
    Engine,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    TypeDecorator,
    Uuid,
    func,
    select,
)

from zeroeventhub import Event
from zeroeventhub.landing import insert_events


class Reversed(TypeDecorator):
    """Text that is kept backwards, and read forwards."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        """Turn the text round."""
        return None if value is None else value[::-1]

    process_result_value = process_bind_param


class Lowered(TypeDecorator):
    """Text that the database makes small."""

    impl = String(40)
    cache_ok = True

    def bind_expression(self, bindvalue):
        """Let the database work on it."""
        return func.lower(bindvalue)


orders = Table(
    "orders of all kinds",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("customer", String(40), nullable=False),
    Column("amount", Numeric(20, 6, asdecimal=True)),
    Column("weight", Float),
    Column("placed", DateTime),
    Column("due", Date),
    Column("paid", Boolean),
    Column("lines", JSON),
    Column("key", Uuid),
    Column("kind", Enum("web", "shop", name="kind")),
    Column("seal", LargeBinary),
    Column("lasts", Interval),
    Column("order", Reversed),
    Column("source", String(10), server_default="feed"),
    Column("doubled", Integer, Computed("id * 2")),
)
small = Table(
    "small",
    MetaData(),
    Column("n", Integer, primary_key=True),
    Column("text", String(200)),
    Column("document", JSON(none_as_null=True)),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
flat = Table(
    "flat",
    MetaData(),
    Column("n", Integer, primary_key=True),
    Column("text", String(200)),
    Column("amount", Double),
    Column("price", Numeric(20, 6)),
    Column("paid", Boolean),
    Column("due", Date),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
stamped = Table(
    "stamped",
    MetaData(),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("name", Lowered, default="Nobody"),
    Column("document", JSON),
)


def inserted(
    engine: Engine, table: Table, events: Sequence[Event], row: Callable[..., Any] | None = None
) -> list[dict[str, Any]]:
    """Insert events in a transaction, and read all rows."""
    with engine.begin() as connection:
        insert_events(connection, table, events, row)
    return stored(engine, table)


def stored(engine: Engine, table: Table) -> list[dict[str, Any]]:
    """Read all rows of a table in the order of its key."""
    with engine.connect() as connection:
        key = next(iter(table.primary_key))
        return [one._asdict() for one in connection.execute(select(table).order_by(key))]
