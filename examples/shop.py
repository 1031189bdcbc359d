"""The orders of a shop and their feed, which the publishers with readers of their own serve."""

import os

from sqlalchemy import JSON, Column, Integer, MetaData, String, Table, create_engine

from zeroeventhub import TableFeed

engine = create_engine("sqlite:///shop.db")
columns = [
    Column("id", Integer, primary_key=True),
    Column("type", String(40)),
    Column("data", JSON),
]
orders = Table("orders", MetaData(), *columns, sqlite_autoincrement=True)
orders.metadata.create_all(engine)

feed = TableFeed(orders, data="data", type="type", cursor_secret=os.environ["ORDERS_SECRET"])
