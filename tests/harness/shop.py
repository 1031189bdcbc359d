"""A shop's events, as a publisher would have them in its own table."""

import sqlalchemy as sa

metadata = sa.MetaData()

orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("part", sa.Integer, nullable=False, server_default="0"),
    sa.Column("kind", sa.String(40)),
    sa.Column("customer", sa.String(40)),
    sa.Column("placed", sa.DateTime(timezone=True)),
    sa.Column("data", sa.JSON),
    sa.Index("orders_by_part", "part", "id"),
    sqlite_autoincrement=True,
)


def place(connection, count: int, *, first: int = 0, partitions: int = 1) -> None:
    """Append events numbered from first on, spread over partitions."""
    connection.execute(
        sa.insert(orders),
        [
            {
                "part": number % partitions,
                "kind": "placed",
                "customer": f"c{number % 7}",
                "data": {"n": number},
            }
            for number in range(first, first + count)
        ],
    )


def write(engine, count=1, **options):
    """Append events in a transaction of their own."""
    with engine.begin() as connection:
        place(connection, count, **options)


def fill(engine, count=10, **options):
    """Make the table and append events, if any; return the engine."""
    metadata.create_all(engine)
    if count:
        write(engine, count, **options)
    return engine
