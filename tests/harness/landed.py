"""Tables of every type of column, and what lands in them."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from zeroeventhub import Event, Page
from zeroeventhub.consumer.event_insert import insert_events
from zeroeventhub.wire.ndjson import PageDecoder, encode_page


class Reversed(sa.TypeDecorator):
    """Text that is kept backwards, and read forwards."""

    impl = sa.String(40)
    cache_ok = True

    def process_bind_param(self, value, dialect):
        return None if value is None else value[::-1]

    process_result_value = process_bind_param


class Lowered(sa.TypeDecorator):
    """Text that the database makes small."""

    impl = sa.String(40)
    cache_ok = True

    def bind_expression(self, bindvalue):
        return sa.func.lower(bindvalue)


orders = sa.Table(
    "orders of all kinds",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("amount", sa.Numeric(20, 6, asdecimal=True)),
    sa.Column("weight", sa.Float),
    sa.Column("placed", sa.DateTime),
    sa.Column("due", sa.Date),
    sa.Column("paid", sa.Boolean),
    sa.Column("lines", sa.JSON),
    sa.Column("key", sa.Uuid),
    sa.Column("kind", sa.Enum("web", "shop", name="kind")),
    sa.Column("seal", sa.LargeBinary),
    sa.Column("lasts", sa.Interval),
    sa.Column("order", Reversed),
    sa.Column("source", sa.String(10), server_default="feed"),
    sa.Column("opens", sa.Time),
    sa.Column("doubled", sa.Integer, sa.Computed("id * 2")),
)
small = sa.Table(
    "small",
    sa.MetaData(),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("text", sa.String(200)),
    sa.Column("document", sa.JSON(none_as_null=True)),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
flat = sa.Table(
    "flat",
    sa.MetaData(),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("text", sa.String(200)),
    sa.Column("amount", sa.Double),
    sa.Column("price", sa.Numeric(20, 6)),
    sa.Column("paid", sa.Boolean),
    sa.Column("due", sa.Date),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
stamped = sa.Table(
    "stamped",
    sa.MetaData(),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", Lowered, default="Nobody"),
    sa.Column("document", sa.JSON),
)


def inserted(
    engine: sa.Engine, table: sa.Table, events: Sequence[Event], row: Callable | None = None
) -> list[dict[str, Any]]:
    """Insert events in a transaction, as those of a page that has come, and read all rows."""
    page = PageDecoder(0)
    page.feed(encode_page(Page(events, "1")))
    with engine.begin() as connection:
        insert_events(connection, table, page.page().events, row)
    return stored(engine, table)


def stored(engine: sa.Engine, table: sa.Table) -> list[dict[str, Any]]:
    """Read all rows of a table in the order of its key."""
    with engine.connect() as connection:
        rows = connection.execute(sa.select(table).order_by(*table.primary_key))
        return [row._asdict() for row in rows]
