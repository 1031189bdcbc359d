"""A shop that publishes its orders: run it with `uvicorn publisher:app`."""

from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

engine = create_engine("sqlite:///shop.db")
key = Column("id", Integer, primary_key=True)
orders = Table("orders", MetaData(), key, Column("data", JSON), sqlite_autoincrement=True)
orders.metadata.create_all(engine)

app = Starlette(routes=feed_routes("/orders", TableFeed(orders, data="data"), engine))
