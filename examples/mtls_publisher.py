"""A shop whose readers have certificates, which nginx verifies by nginx-mtls.conf in this folder.

Only nginx may reach it: `uvicorn --host 127.0.0.1 mtls_publisher:app`.
"""

import os

from sqlalchemy import JSON, Column, Integer, MetaData, String, Table, create_engine
from starlette.applications import Starlette
from starlette.requests import Request

from zeroeventhub import Principal, TableFeed, feed_routes
from zeroeventhub.errors import Forbidden

READERS = {
    "CN=billing,O=Shop": Principal(name="billing", types={"paid", "refunded"}),
    "CN=archive,O=Shop": Principal(name="archive"),
}


async def reader(request: Request) -> Principal:
    """Return the reader; nginx verifies its certificate and sets both headers on every request."""
    verified = request.headers.getlist("X-Client-Verify")
    subject = request.headers.getlist("X-Client-Subject")
    if verified != ["SUCCESS"] or len(subject) != 1 or subject[0] not in READERS:
        raise Forbidden("Show the certificate of a reader of this feed.")
    return READERS[subject[0]]


engine = create_engine("sqlite:///shop.db")
columns = [
    Column("id", Integer, primary_key=True),
    Column("type", String(40)),
    Column("data", JSON),
]
orders = Table("orders", MetaData(), *columns, sqlite_autoincrement=True)
orders.metadata.create_all(engine)

feed = TableFeed(orders, data="data", type="type", cursor_secret=os.environ["ORDERS_SECRET"])
app = Starlette(routes=feed_routes("/orders", feed, engine, authorize=reader))
