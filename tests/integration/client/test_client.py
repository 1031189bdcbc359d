"""The clients against real feeds, over a table and of one's own."""

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, TypeFilter, feed_routes
from zeroeventhub.protocol import (
    CAUGHT_UP,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    LAG,
    SPLITS,
    STOP,
    WAIT,
    Lag,
)

EVERYTHING = {CAUGHT_UP, CURSOR_OF_COUNT, CURSOR_OF_TIME, EVENT_TYPES, LAG, SPLITS, STOP, WAIT}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def shop(sqlite):
    """The engine of a shop of 100 orders, one a minute from noon on, of two kinds in turn."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(
            insert(orders),
            [
                {
                    "part": number % 2,
                    "kind": ("placed", "Paid")[number // 2 % 2],
                    "placed": NOON + timedelta(minutes=number),
                    "data": {"n": number},
                }
                for number in range(100)
            ],
        )
    return sqlite


@pytest.fixture
def url(shop):
    """The URL of the shop's orders, in 2 partitions."""
    feed = TableFeed(
        orders, partition="part", partitions=2, data="data", type="kind", time="placed"
    )
    with serving(Starlette(routes=feed_routes("/orders", feed, shop))) as root:
        yield f"{root}/orders"


def numbers(page):
    """The numbers of a page's orders."""
    return [event.data["n"] for event in page.events]


def test_feed_over_a_table_does_all_that_it_announces(call, url):
    """Either client and a feed over a table understand each other in every extension."""
    assert call(url, "discover").extensions == EVERYTHING
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


def test_pieces_are_the_whole(call, url):
    """Between the cursors of splits lies every event once, and a read that stops says so."""
    cursors = call(url, "splits", 0, 4)
    assert len(cursors) == 5
    pages = [call(url, "fetch", 0, start, stop=stop) for start, stop in pairwise(cursors)]
    assert [number for page in pages for number in numbers(page)] == list(range(0, 100, 2))
    assert all(page.stop_reached for page in pages)
    assert not call(url, "fetch", 0, FIRST, limit=2, stop=cursors[1]).stop_reached
    inner = call(url, "splits", 0, 3, start=cursors[1], stop=cursors[3])
    assert (inner[0], inner[-1]) == (cursors[1], cursors[3])
    ten = call(url, "cursor_of_count", 0, FIRST, 10)
    page = call(url, "fetch", 0, FIRST, stop=ten.cursor)
    assert (ten.events, numbers(page), page.stop_reached) == (10, list(range(0, 20, 2)), True)
    assert call(url, "cursor_of_count", 0, FIRST, 30, stop=ten.cursor) == ten


def test_feed_waits_at_its_head_until_there_is_news(call, url, shop):
    """An answer at the head is held back until its time is over or an event is committed, and
    elsewhere it comes at once.
    """
    head = call(url, "fetch", 0, LAST).cursor
    assert numbers(call(url, "fetch", 0, FIRST, wait=25)) == list(range(0, 100, 2))
    started = time.monotonic()
    page = call(url, "fetch", 0, head, wait=0.3)
    assert (page.events, page.cursor, page.caught_up) == ([], head, True)
    assert time.monotonic() - started >= 0.3
    appending = threading.Timer(0.2, append, [shop])
    appending.start()
    assert numbers(call(url, "fetch", 0, head, wait=25)) == [100]
    appending.join(10)


def append(engine):
    """Append an order to partition 0."""
    with engine.begin() as connection:
        place(connection, 1, first=100)
