"""A publisher to be tested: the orders of a shop."""

from typing import Any

from sqlalchemy import JSON, Column, Engine, Integer, MetaData, Table
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

tables = MetaData()
orders = Table(
    "orders",
    tables,
    Column("id", Integer, primary_key=True),
    Column("data", JSON),
    sqlite_autoincrement=True,
)


def make_app(engine: Engine) -> Starlette:
    """Return the shop's service."""
    return Starlette(routes=feed_routes("/orders", TableFeed(orders, data="data"), engine))


def place(engine: Engine, **order: Any) -> None:
    """Place an order."""
    with engine.begin() as connection:
        connection.execute(orders.insert().values(data=order))
