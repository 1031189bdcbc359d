"""A shop whose orders commands read."""

from datetime import UTC, datetime, timedelta

import pytest
from harness.shop import metadata, orders, place
from harness.trimmed import ten_days
from harness.web import serving
from sqlalchemy import update
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def shop(sqlite):
    """The engine of a publisher with 100 orders in 2 partitions, one a second from noon on.

    Every tenth is of type paid, the others are of type placed.
    """
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 100, partitions=2)
        connection.execute(update(orders).where(orders.c.id % 10 == 0).values(kind="paid"))
        for number in range(100):
            moment = NOON + timedelta(seconds=number)
            connection.execute(update(orders).where(orders.c.id == number + 1), {"placed": moment})
    return sqlite


@pytest.fixture
def feed(shop):
    """The URL of the orders as CloudEvents."""
    columns = {"data": "data", "partition": "part", "type": "kind", "key": "customer", "id": "id"}
    published = TableFeed(orders, partitions=2, time="placed", cloudevents=True, **columns)
    with serving(Starlette(routes=feed_routes("/orders", published, shop))) as url:
        yield f"{url}/orders"


@pytest.fixture
def trimmed(sqlite):
    """The engine of a publisher of ten orders, one a day, that knows its mark and who reads on."""
    ten_days(sqlite)
    with sqlite.begin() as connection:
        TableFeed(orders, retention=Retention(), progress=Progress()).install(connection)
    return sqlite
