"""`zeroeventhub lag`."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from harness.command_line import invoke
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.stores import NAME, load, new_store
from sqlalchemy import insert

from zeroeventhub import FIRST, TableFeed


@pytest.fixture
def billing(any_engine):
    """A feed of two partitions, of which billing has read some of the first; its URL."""
    metadata.create_all(any_engine)
    ago = datetime.now(UTC) - timedelta(minutes=90)
    with any_engine.begin() as connection:
        rows = [{"part": n % 2, "placed": ago, "data": {"n": n}} for n in range(2500)]
        connection.execute(insert(orders), rows)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    load(new_store(any_engine), 0, start=feed.bind(any_engine).read(0, FIRST, 1248).cursor)
    with mounted(feed, any_engine) as url:
        yield url


def test_lag_is_shown_for_people_and_for_machines(billing, any_database_url):
    """A table for people has a line for each partition; JSON has the same in numbers."""
    options = ("--store", any_database_url, "--consumer", NAME)
    shown = invoke("lag", billing, *options)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == (
        "partition  events  behind\n        0       2   1.5 h\n        1   1,250   1.5 h\n"
    )
    document = json.loads(invoke("lag", billing, *options, "--json").stdout)
    assert document["consumer"] == NAME
    assert all(5400 <= lag.pop("seconds") < 5520 for lag in document["partitions"])
    assert document["partitions"] == [
        {"partition": 0, "events": 2, "exact": True},
        {"partition": 1, "events": 1250, "exact": True},
    ]
