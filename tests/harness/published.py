"""Feeds over a shop's orders, in each ordering of each database."""

import pytest

from harness.shop import metadata, orders
from zeroeventhub import TableFeed

EVERY_ORDERING = [
    pytest.param((database, ordering), id=f"{database} {ordering}", marks=marks)
    for database, ordering, marks in [
        ("sqlite", "single-writer", ()),
        ("sqlite", "sequenced", ()),
        ("postgresql", "observed", ()),
        # What is asked of its positions is asked as observed does.
        ("postgresql", "gated", pytest.mark.test_all),
        ("postgresql", "sequenced", ()),
        ("mariadb", "observed", ()),
        ("mariadb", "sequenced", ()),
    ]
]
"""Each ordering on each database, for what is asked of positions."""

TWO = {"partition": "part", "partitions": 2}
"""What a feed of two partitions is given."""


def published(engine, capacity=None, **options):
    """Install and bind a feed over the orders, whose table is created unless it is there."""
    metadata.create_all(engine)
    publisher = TableFeed(orders, **{"data": "data", **options})
    with engine.begin() as connection:
        publisher.install(connection)
    return publisher.bind(engine, capacity)
