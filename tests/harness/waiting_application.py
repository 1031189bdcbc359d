"""A host with a feed over a table, for a server in a process of its own."""

import os

from sqlalchemy import create_engine
from starlette.applications import Starlette

from harness.shop import metadata, orders
from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.protocol import Event, FeedInfo, Page, Partition

engine = create_engine(os.environ["DATABASE"])
metadata.create_all(engine)


class Large:
    """A feed whose pages are larger than what a system takes for a reader that does not read."""

    async def info(self) -> FeedInfo:
        """Describe it."""
        return FeedInfo((Partition(0),), "1")

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Return the only page."""
        return Page([Event(b'"%b"' % (b"x" * 16_000_000))], "1")


application = Starlette(
    routes=[
        *feed_routes(
            "/orders",
            TableFeed(orders, data="data"),
            engine,
            capacity=Capacity(patience=60),
            server_sent_events=True,
        ),
        *feed_routes("/large", Large(), name="large"),
    ]
)
