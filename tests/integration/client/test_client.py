"""The clients against real feeds, over a table and of one's own."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import add

from zeroeventhub import FIRST, LAST, Lag, TableFeed, TypeFilter

EVERYTHING = {
    *["caught-up", "cursor-of-count", "cursor-of-time", "event-types", "lag", "splits", "stop"],
    "wait",
}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def url(sqlite):
    """The URL of 100 orders in 2 partitions, one a minute from noon on, of two kinds in turn."""
    metadata.create_all(sqlite)
    rows = [
        {
            "part": number % 2,
            "kind": ("placed", "Paid")[number // 2 % 2],
            "placed": NOON + timedelta(minutes=number),
            "data": {"n": number},
        }
        for number in range(100)
    ]
    add(sqlite, orders, rows)
    feed = TableFeed(
        orders, partition="part", partitions=2, data="data", type="kind", time="placed"
    )
    with mounted(feed, sqlite) as root:
        yield root


def numbers(page):
    """The numbers of a page's orders."""
    return [event.data["n"] for event in page.events]


def test_feed_over_a_table_does_all_that_it_announces(call, url):
    """Either client and a feed over a table understand each other in every extension."""
    assert call(url, "discover").extensions == EVERYTHING
    assert call(url, "fetch", 0, LAST, wait=0.01).caught_up
    paid = call(url, "fetch", 0, FIRST, types=TypeFilter({"PAID"}))
    assert (numbers(paid), paid.caught_up) == (list(range(2, 100, 4)), True)
    moment = NOON + timedelta(minutes=50)
    for partition in range(2):
        cursor = call(url, "cursor_at", moment, partition)
        assert numbers(call(url, "fetch", partition, cursor))[0] == 50 + partition
    assert call(url, "cursor_at", moment) == call(url, "cursor_at", moment, 0)
    lag = call(url, "lag", 1, cursor)
    age = datetime.now(UTC) - (NOON + timedelta(minutes=51))
    assert (lag.events, lag.exact) == (25, True)
    assert abs(age.total_seconds() - lag.seconds) < 10
    assert call(url, "lag", 1, LAST) == Lag(0, 0.0)
    cursors = call(url, "splits", 0, 4)
    pages = [call(url, "fetch", 0, start, stop=stop) for start, stop in pairwise(cursors)]
    assert [number for page in pages for number in numbers(page)] == list(range(0, 100, 2))
    assert all(page.stop_reached for page in pages)
    ten = call(url, "cursor_of_count", 0, FIRST, 10, stop=cursors[-1])
    page = call(url, "fetch", 0, FIRST, stop=ten.cursor)
    assert (ten.events, numbers(page), page.stop_reached) == (10, list(range(0, 20, 2)), True)
