"""A shop whose orders commands read."""

from datetime import UTC, datetime, timedelta

import pytest
from harness.command_line import invoke
from harness.readers import mounted
from harness.shop import fill, orders
from harness.stores import NAME, load, new_store
from sqlalchemy import update

from zeroeventhub import TableFeed

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def shop(sqlite):
    """The engine of a publisher with 100 orders in 2 partitions, one a second from noon on.

    Every tenth is of type paid, the others are of type placed.
    """
    with fill(sqlite, 100, partitions=2).begin() as connection:
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
    with mounted(published, shop) as url:
        yield url


@pytest.fixture
def expect_refusal(sqlite, sqlite_url, empty_folder):
    """A function that runs a command which must fail, with two orders and a consumer around."""
    load(new_store(fill(sqlite, 2, partitions=2)), 0)
    (empty_folder / "empty.db").touch()
    places = {
        "{shop}": sqlite_url,
        "{empty}": "sqlite:///empty.db",
        "{missing}": "sqlite:///missing.db",
    }

    def expect_refusal(arguments, code, words):
        before = set(empty_folder.iterdir())
        shown = invoke(*(places.get(part, part) for part in arguments))
        assert (shown.exit_code, shown.stdout) == (code, "")
        assert words in shown.stderr
        assert "Traceback" not in shown.stderr
        assert set(empty_folder.iterdir()) == before

    return expect_refusal


@pytest.fixture
def of_billing(any_database_url):
    """The options that name a store and a consumer."""
    return ("--store", any_database_url, "--consumer", NAME)
