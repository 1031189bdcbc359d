"""The endpoints of the cursors of a moment and of a count, and of pieces, over real HTTP."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import httpx
import pytest
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLACE = {"token": "2", "partition": 0}


@pytest.fixture
def shop(any_engine):
    """An engine of a database with an order every second from noon, in two partitions."""
    metadata.create_all(any_engine)
    write(any_engine, 20)
    return any_engine


@pytest.fixture
def feed_url(shop):
    """The URL of a feed that knows the times of its events."""
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    with serving(Starlette(routes=feed_routes("/orders", feed, shop))) as url:
        yield f"{url}/orders"


@pytest.fixture
def sqlite_feed_url(sqlite):
    """The same on SQLite alone, for what does not reach the database."""
    metadata.create_all(sqlite)
    write(sqlite, 20)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    with serving(Starlette(routes=feed_routes("/orders", feed, sqlite))) as url:
        yield f"{url}/orders"


def write(engine, count, *, first=0):
    """Append orders, each a second after the one before."""
    with engine.begin() as connection:
        connection.execute(
            insert(orders),
            [
                {"part": n % 2, "placed": NOON + timedelta(seconds=n), "data": {"n": n}}
                for n in range(first, first + count)
            ],
        )


def numbers(url, cursor, *, partition=0, **parameters):
    """Return the numbers of the events behind a cursor."""
    parameters = {**PLACE, "partition": partition, "cursor": cursor, **parameters}
    answer = httpx.get(f"{url}/events", params=parameters)
    assert answer.status_code == 200, answer.text
    return [json.loads(line)["data"]["n"] for line in answer.text.splitlines()[:-1]]


def problem(answer):
    """Return the status and the kind of a problem that is not to be kept."""
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


def moment(url, time, **parameters):
    """Ask for the cursor of a moment."""
    return httpx.get(f"{url}/cursor", params={**PLACE, "time": time, **parameters})


def test_cursor_stands_before_a_moment(feed_url, shop):
    """All events of a moment or later lie behind its cursor, which then stays the same."""
    assert {"cursor-of-time", "splits"} <= set(httpx.get(feed_url).json()["extensions"])
    for second in (-1, 0, 1, 7, 19):
        time = (NOON + timedelta(seconds=second)).isoformat()
        for partition in (0, 1):
            answer = moment(feed_url, time, partition=partition)
            assert answer.status_code == 200, answer.text
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"] == "application/json"
            (cursor,) = answer.json().values()
            expected = [n for n in range(20) if n % 2 == partition and n >= second]
            assert numbers(feed_url, cursor, partition=partition) == expected
    settled = moment(feed_url, "2026-03-01T12:00:07Z").json()
    future = moment(feed_url, "2026-03-01T12:00:25Z").json()["cursor"]
    assert numbers(feed_url, future) == []
    write(shop, 10, first=20)
    assert moment(feed_url, "2026-03-01T12:00:07Z").json() == settled
    assert numbers(feed_url, future) == [20, 22, 24, 26, 28]
    later = moment(feed_url, "2026-03-01T12:00:25Z").json()
    assert numbers(feed_url, later["cursor"]) == [26, 28]


def test_moment_is_written_in_many_ways(feed_url):
    """The same moment in another zone or another writing has the same cursor."""
    noon = moment(feed_url, "2026-03-01T12:00:05Z").json()
    for time in [
        "2026-03-01t12:00:05z",
        "2026-03-01T12:00:05.000Z",
        "2026-03-01T12:00:05.000000000Z",
        "2026-03-01T12:00:04.999999999Z",
        "2026-03-01T13:00:05+01:00",
        "2026-02-28T13:00:05-23:00",
        "2026-03-01T12:00:05-00:00",
    ]:
        assert moment(feed_url, time).json() == noon, time
    before = moment(feed_url, "2026-02-28T23:59:59Z").json()["cursor"]
    assert len(numbers(feed_url, before)) == 10
    for time, count in [
        ("0001-01-01T00:00:00Z", 10),
        ("9999-12-31T23:59:59.999999Z", 0),
        ("1969-12-31T23:59:59Z", 10),
    ]:
        cursor = moment(feed_url, time).json()["cursor"]
        assert len(numbers(feed_url, cursor)) == count, time


def test_moment_that_is_none_is_refused(sqlite_feed_url):
    """What is not of RFC 3339, or has no zone, is a bad request."""
    for time in ("", "now", "2026-03-01T12:00:00", "2026-02-30T12:00:00Z", "2026-03-01T24:00:00Z"):
        assert problem(moment(sqlite_feed_url, time)) == (400, "bad-request"), time


def splits(url, **parameters):
    """Ask for the pieces of a partition."""
    return httpx.get(f"{url}/splits", params={**PLACE, "count": 3, **parameters})


def test_pieces_make_the_whole(feed_url):
    """Read each from its cursor to the next, the pieces hold every event once."""
    answer = splits(feed_url)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    (bounds,) = answer.json().values()
    assert 2 <= len(bounds) <= 4
    assert not {"_first", "_last"} & set(bounds)
    pieces = [numbers(feed_url, start, stop=stop) for start, stop in pairwise(bounds)]
    assert [n for piece in pieces for n in piece] == list(range(0, 20, 2))
    inner = splits(feed_url, cursor=bounds[1], stop=bounds[2], count=1).json()["cursors"]
    assert inner == bounds[1:3]
    here = splits(feed_url, cursor=bounds[-1]).json()["cursors"]
    assert here == [bounds[-1]] * 2


def counted(url, **parameters):
    """Ask for the cursor of a count."""
    parameters = {**PLACE, "cursor": FIRST, "events": 4, **parameters}
    return httpx.get(f"{url}/cursor-of-count", params=parameters)


def test_portions_make_the_whole(feed_url):
    """Read each from one cursor of a count to the next, portions hold every event once."""
    assert "cursor-of-count" in httpx.get(feed_url).json()["extensions"]
    cursor, portions = FIRST, []
    for events in (4, 4, 2, 0):
        answer = counted(feed_url, cursor=cursor)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        found = answer.json()
        assert (found.keys(), found["events"]) == ({"cursor", "events"}, events)
        portions.append(numbers(feed_url, cursor, stop=found["cursor"]))
        cursor = found["cursor"]
    assert portions == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18], []]
    middle = counted(feed_url).json()
    for events in (4, 5, 1_000_000):
        assert counted(feed_url, events=events, stop=middle["cursor"]).json() == middle
    behind = counted(feed_url, cursor=cursor, stop=middle["cursor"]).json()
    assert behind == {"cursor": cursor, "events": 0}


@pytest.mark.parametrize("endpoint", ["cursor", "splits", "cursor-of-count"])
def test_requests_that_cannot_be_served_are_refused(sqlite_feed_url, endpoint):
    """What is missing, there twice or not of its form is a problem document."""
    whole = {**PLACE, "cursor": FIRST, "time": "2026-03-01T12:00:00Z", "count": 3, "events": 3}
    needs = {"cursor": ["time"], "splits": ["count"], "cursor-of-count": ["cursor", "events"]}
    needed = ["token", "partition", *needs[endpoint]]
    wrong = [({**whole, name: [whole[name]] * 2}, 400, "bad-request") for name in needed]
    wrong += [
        ({key: whole[key] for key in whole if key != name}, 400, "bad-request") for name in needed
    ]
    wrong += [
        ({**whole, "partition": "2"}, 400, "bad-request"),
        ({**whole, "partition": "-1"}, 400, "bad-request"),
        ({**whole, "token": "3"}, 409, "token-changed"),
        ({**whole, "token": ""}, 409, "token-changed"),
    ]
    number, most = {"splits": ("count", 1_000)}.get(endpoint, ("events", 1_000_000))
    if endpoint != "cursor":
        wrong += [
            ({**whole, number: n}, 400, "bad-request") for n in (0, most + 1, "-1", "x", "", "1.0")
        ]
        wrong += [
            ({**whole, "cursor": ""}, 400, "bad-cursor"),
            ({**whole, "cursor": "_last"}, 400, "bad-cursor"),
            ({**whole, "cursor": "nonsense"}, 400, "bad-cursor"),
            ({**whole, "stop": FIRST}, 400, "bad-cursor"),
            ({**whole, "cursor": "1-99"}, 410, "diverged"),
            ({**whole, "stop": "1-99"}, 410, "diverged"),
        ]
    for parameters, status, kind in wrong:
        answer = httpx.get(f"{sqlite_feed_url}/{endpoint}", params=parameters)
        assert problem(answer) == (status, kind), parameters
    assert httpx.post(f"{sqlite_feed_url}/{endpoint}", params=whole).status_code == 405


def test_feed_without_times_does_not_answer(sqlite):
    """Where there is no extension there is no endpoint, whatever is asked."""
    metadata.create_all(sqlite)
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url:
        assert "cursor-of-time" not in httpx.get(f"{url}/orders").json()["extensions"]
        answer = moment(f"{url}/orders", "2026-03-01T12:00:00Z", token="1")
        assert problem(answer) == (404, "not-found")
        answer = moment(f"{url}/orders", "nonsense", token="7")
        assert problem(answer) == (404, "not-found")


def test_sequenced_feed_knows_when_positions_were_given(shop):
    """Without a column of times, a feed with positions of its own knows when it gave them."""
    feed = TableFeed(orders, data="data", ordering="sequenced", partition="part", partitions=2)
    with shop.begin() as connection:
        feed.install(connection)
    with serving(Starlette(routes=feed_routes("/orders", feed, shop))) as url:
        url = f"{url}/orders"  # noqa: PLW2901 - the feed's
        assert len(numbers(url, FIRST)) == 10
        assert numbers(url, moment(url, "2999-01-01T00:00:00Z").json()["cursor"]) == []
        assert len(numbers(url, moment(url, "1969-01-01T00:00:00Z").json()["cursor"])) == 10
