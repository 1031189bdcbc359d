"""The clients against real feeds, over a table and of one's own."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from harness.appended import batch, ids
from harness.calling import pool_call
from harness.readers import mounted
from harness.shop import fill, metadata, orders
from harness.statements import add
from harness.written import writable

from zeroeventhub import FIRST, LAST, Lag, NewEvent, TableFeed, TypeFilter
from zeroeventhub.errors import ConfigurationError, Conflict, IdReused, TooLarge, Unavailable

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
    """Both clients can use every extension of a feed over a table."""
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


def test_batch_is_appended_once(call, sqlite):
    """Either client appends a batch, learns where its events are, and may do so again."""
    events = batch(20)
    with writable(sqlite) as (log, url, requests):
        requests.refused = 2
        appended = call(url, "append", events)
        assert [one.id for one in appended] == [event.id for event in events]
        assert call(url, "append", events) == appended
        assert call(url, "append", []) == []
        assert (ids(sqlite, log), requests.count) == ([event.id for event in events], 4)
        requests.refused = 2
        with pytest.raises(Unavailable):
            call(url, "append", batch(1, first=20), attempts=2)


def test_versions_that_events_expect_are_told(call, sqlite):
    """An append at the version of a key returns the next ones, and a conflict says the version."""
    with writable(sqlite) as (_, url, _):
        first = NewEvent("placed", {}, key="ada", expected_version=0)
        appended = call(url, "append", [first, NewEvent("paid", {}, key="ada"), *batch(1)])
        assert [one.version for one in appended] == [1, 2, None]
        with pytest.raises(Conflict) as refused:
            call(url, "append", [NewEvent("paid", {}, key="ada", expected_version=1)])
        assert (refused.value.key, refused.value.version) == ("ada", 2)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([NewEvent("other", {}, id="e0")], IdReused),
        ([NewEvent("large", "x" * 2**20)], TooLarge),
        (batch(10_000, first=2), TooLarge),
        ([NewEvent("large", "x" * 900_000)] * 5, TooLarge),
        (["placed"], ConfigurationError),
        ([NewEvent("number", 5)], ConfigurationError),
    ],
    ids=["id", "event", "events", "bytes", "text", "number"],
)
def test_batch_that_cannot_be_appended_is_refused(sqlite, events, error):
    """A batch that the log refuses, or would, raises an error of its kind, and appends nothing."""
    with writable(sqlite) as (log, url, _):
        pool_call(url, "append", batch(1))
        with pytest.raises(error):
            pool_call(url, "append", [*batch(2), *events])
        assert ids(sqlite, log) == ["e0"]


def test_feed_without_a_log_takes_no_events(sqlite):
    """Appending to a feed that only publishes a table fails, and the error says what it lacks."""
    with (
        mounted(TableFeed(orders, data="data"), fill(sqlite, 0)) as url,
        pytest.raises(ConfigurationError, match="does not have the extension append"),
    ):
        pool_call(url, "append", batch(1))
