"""A shop's events, as a publisher would have them in its own table."""

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
    insert,
)

metadata = MetaData()

orders = Table(
    "orders",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("part", Integer, nullable=False, server_default="0"),
    Column("kind", String(40)),
    Column("customer", String(40)),
    Column("placed", DateTime(timezone=True)),
    Column("data", JSON),
    Index("orders_by_part", "part", "id"),
    sqlite_autoincrement=True,
)


def place(connection, count: int, *, first: int = 0, partitions: int = 1) -> None:
    """Append events numbered from first on, spread over partitions."""
    connection.execute(
        insert(orders),
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
