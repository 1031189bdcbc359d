"""A shop that describes its events by the classes that it writes them with.

`python publisher.py` writes three events, `uvicorn publisher:app` serves the feed.
"""

from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
from sqlalchemy import JSON, Column, Connection, Integer, MetaData, String, Table, create_engine
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes


@dataclass
class PlacedInEuros:
    """A customer placed an order, when all prices were in euros."""

    order: int
    customer: str
    amount: float


@dataclass
class Placed:
    """A customer placed an order."""

    order: int
    customer: str
    amount: float
    currency: str


@dataclass
class Sent:
    """An order was sent to its customer."""

    order: int
    expected: date | None = None


MODELS = {"order.placed": PlacedInEuros, "order.placed.v2": Placed, "order.sent": Sent}
TYPES = {model: name for name, model in MODELS.items()}

engine = create_engine("sqlite:///shop.db")
columns = [
    Column("id", Integer, primary_key=True),
    Column("type", String(40), nullable=False),
    Column("data", JSON, nullable=False),
]
orders = Table("orders", MetaData(), *columns, sqlite_autoincrement=True)
orders.metadata.create_all(engine)

feed = TableFeed(
    orders,
    data="data",
    type="type",
    cloudevents=True,
    attributes={"dataschema": "http://127.0.0.1:8000/orders/schema?type=" + orders.c.type},
    schemas=MODELS,
)
app = Starlette(routes=feed_routes("/orders", feed, engine))


def write(connection: Connection, event: Any) -> None:
    """Append an event, in the transaction of what it tells of."""
    row = {"type": TYPES[type(event)], "data": msgspec.to_builtins(event)}
    connection.execute(orders.insert(), row)


if __name__ == "__main__":
    with engine.begin() as connection:
        write(connection, PlacedInEuros(1, "ada", 12))
        write(connection, Placed(2, "bob", 7.5, "NOK"))
        write(connection, Sent(1, date(2026, 3, 1)))
