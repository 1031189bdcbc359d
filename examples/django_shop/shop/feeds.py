"""The feed over the orders."""

from django.conf import settings
from sqlalchemy import JSON, Column, Integer, MetaData, Table
from starlette.applications import Starlette

from zeroeventhub import Capacity, TableFeed, feed_routes

key = Column("id", Integer, primary_key=True)
orders = Table("shop_order", MetaData(), key, Column("data", JSON), sqlite_autoincrement=True)
feed = TableFeed(orders, data="data")


def feeds(path: str = "", **bounds: float) -> Starlette:
    """Make an application of the feed, below a path."""
    capacity = Capacity(**bounds)  # type: ignore[arg-type]
    return Starlette(routes=feed_routes(f"{path}/orders", feed, settings.ENGINE, capacity=capacity))
