"""The feed over the orders."""

from django.conf import settings
from sqlalchemy import JSON, Column, Integer, MetaData, Table
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

key = Column("id", Integer, primary_key=True)
orders = Table("shop_order", MetaData(), key, Column("data", JSON), sqlite_autoincrement=True)
feed = TableFeed(orders, data="data")
feeds = Starlette(routes=feed_routes("/orders", feed, settings.ENGINE))
