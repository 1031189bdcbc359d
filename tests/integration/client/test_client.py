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

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, TableFeed, TypeFilter, feed_routes
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import (
    CAUGHT_UP,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    LAG,
    SPLITS,
    STOP,
    WAIT,
    CountedCursor,
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


def test_feed_over_a_table_announces_everything(call, url):
    """Discovery names what the feed can do."""
    assert call(url, "discover").extensions == EVERYTHING


def test_types_are_chosen_or_skipped(call, url):
    """Events of the types that were asked for come, whatever the case of their letters, and the
    checkpoint moves over those that were left out.
    """
    paid, other = range(2, 100, 4), range(0, 100, 4)
    assert numbers(call(url, "fetch", 0, FIRST, types=TypeFilter({"PAID"}))) == list(paid)
    skipped = TypeFilter(frozenset({"paid", "nothing"}), skip=True)
    assert numbers(call(url, "fetch", 0, FIRST, types=skipped)) == list(other)
    both = TypeFilter(frozenset({"paid", "placed"}))
    assert len(numbers(call(url, "fetch", 0, FIRST, types=both))) == 50
    nothing = call(url, "fetch", 0, FIRST, types=TypeFilter({"nothing"}))
    assert (numbers(nothing), nothing.caught_up) == ([], True)
    assert nothing.cursor == call(url, "fetch", 0, LAST).cursor


def test_page_says_that_it_was_the_last(call, url):
    """Only a page that held everything is caught up."""
    first = call(url, "fetch", 1, FIRST, limit=49)
    assert not first.caught_up
    second = call(url, "fetch", 1, first.cursor)
    assert (numbers(second), second.caught_up) == ([99], True)
    assert call(url, "fetch", 1, LAST).caught_up


def test_read_stops_where_it_is_told(call, url):
    """A read ends at a cursor, in as many pages as it takes, and says so."""
    stop = call(url, "fetch", 0, FIRST, limit=10).cursor
    one = call(url, "fetch", 0, FIRST, limit=7, stop=stop)
    two = call(url, "fetch", 0, one.cursor, limit=7, stop=stop)
    assert (numbers(one), one.stop_reached) == (list(range(0, 14, 2)), False)
    assert (numbers(two), two.cursor, two.stop_reached) == ([14, 16, 18], stop, True)
    nothing = call(url, "fetch", 0, stop, stop=stop)
    assert (numbers(nothing), nothing.cursor, nothing.stop_reached) == ([], stop, True)


def test_pieces_are_the_whole(call, url):
    """Between the cursors of splits lies every event once."""
    cursors = call(url, "splits", 0, 4)
    assert len(cursors) == 5
    pieces = [numbers(call(url, "fetch", 0, start, stop=stop)) for start, stop in pairwise(cursors)]
    assert [number for piece in pieces for number in piece] == list(range(0, 100, 2))
    inner = call(url, "splits", 0, 3, start=cursors[1], stop=cursors[3])
    assert (inner[0], inner[-1]) == (cursors[1], cursors[3])


def test_cursor_of_a_moment_stands_before_it(call, url):
    """The cursor of a moment is followed by what happened from then on, in each partition."""
    moment = NOON + timedelta(minutes=50)
    for partition in range(2):
        cursor = call(url, "cursor_at", moment, partition)
        assert numbers(call(url, "fetch", partition, cursor))[0] == 50 + partition
    assert call(url, "cursor_at", moment) == call(url, "cursor_at", moment, 0)


def test_lag_is_what_lies_behind_a_cursor(call, url):
    """The lag of a cursor is the number of events that follow it, and the age of the first."""
    cursor = call(url, "fetch", 1, FIRST, limit=20).cursor
    for where, events, first in [(FIRST, 50, 1), (cursor, 30, 41)]:
        lag = call(url, "lag", 1, where)
        age = datetime.now(UTC) - (NOON + timedelta(minutes=first))
        assert (lag.events, lag.exact) == (events, True)
        assert abs(age.total_seconds() - lag.seconds) < 10
    assert call(url, "lag", 1, LAST) == Lag(0, 0.0)


def test_cursor_of_a_count_ends_a_read(call, url):
    """A read up to the cursor of a count brings so many events, or what there is before a stop."""
    ten = call(url, "cursor_of_count", 1, FIRST, 10)
    assert ten.events == 10
    page = call(url, "fetch", 1, FIRST, stop=ten.cursor)
    assert (numbers(page), page.stop_reached) == (list(range(1, 20, 2)), True)
    assert call(url, "cursor_of_count", 1, FIRST, 30, stop=ten.cursor) == ten
    rest = call(url, "cursor_of_count", 1, ten.cursor, 1_000_000)
    assert rest == CountedCursor(call(url, "fetch", 1, LAST).cursor, 40)


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


class Countdown:
    """A feed of one's own, without a database."""

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        place = 0 if cursor == FIRST else int(cursor)
        events = [Event.of({"n": number}) for number in range(place, min(place + limit, 10))]
        return Page(events, str(place + len(events)))


class AsyncCountdown(Countdown):
    """The same, asynchronous."""

    async def info(self):
        return super().info()

    async def read(self, partition, cursor, limit):
        return super().read(partition, cursor, limit)


@pytest.mark.parametrize("feed", [Countdown(), AsyncCountdown()], ids=["sync", "async"])
def test_feed_of_ones_own_making_is_read(call, feed):
    """Any class with info() and read(), sync or async, can be mounted and read."""
    with serving(Starlette(routes=feed_routes("/", feed))) as url:
        assert numbers(call(url)) == list(range(10))


def test_mounting_checks_what_is_mounted(sqlite):
    """What is not a feed, or has no use for an engine, is refused when the routes are made."""
    with pytest.raises(ConfigurationError, match="not a feed"):
        feed_routes("/", object())
    with pytest.raises(ConfigurationError, match="no engine"):
        feed_routes("/", Countdown(), sqlite)
