"""Feeds over a shop's orders."""

from harness.shop import metadata, orders
from zeroeventhub import TableFeed

TWO = {"partition": "part", "partitions": 2}  # what a feed of two partitions is given


def published(engine, capacity=None, **options):
    """Install and bind a feed over the orders, whose table is created unless it is there."""
    metadata.create_all(engine)
    publisher = TableFeed(orders, **{"data": "data", **options})
    install(publisher, engine)
    return publisher.bind(engine, capacity)


def install(source, engine):
    """Install what a feed needs, in a transaction of its own."""
    with engine.begin() as connection:
        source.install(connection)
