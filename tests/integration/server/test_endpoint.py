"""The endpoints of the cursors of a moment and of a count, and of pieces, over real HTTP."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import httpx
import pytest
from harness.readers import get, kind, mounted, numbers
from harness.shop import metadata, orders
from sqlalchemy import insert

from zeroeventhub import FIRST, TableFeed

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
FEED = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
NEEDED = {
    "cursor": {"time": "2026-03-01T12:00:00Z"},
    "splits": {"count": 3},
    "cursor-of-count": {"cursor": FIRST, "events": 4},
}
"""What an endpoint needs to be told beside a token and a partition."""


@pytest.fixture
def feed_url(any_engine):
    """The URL of a feed with an order every second from noon, in two partitions."""
    metadata.create_all(any_engine)
    write(any_engine, range(20))
    with mounted(FEED, any_engine) as url:
        yield url


def write(engine, written):
    """Append orders, each a second after the one before."""
    with engine.begin() as connection:
        rows = [
            {"part": n % 2, "placed": NOON + timedelta(seconds=n), "data": {"n": n}}
            for n in written
        ]
        connection.execute(insert(orders), rows)


def behind(url, cursor, partition=0, **parameters):
    """Return the numbers of the events behind a cursor."""
    return numbers(get(url, token="2", partition=partition, cursor=cursor, **parameters))


def ask(url, endpoint, **parameters):
    """Ask an endpoint something about a partition."""
    asked = {"token": "2", "partition": 0, **NEEDED[endpoint], **parameters}
    answer = httpx.get(f"{url}/{endpoint}", params=asked)
    assert answer.headers["cache-control"] == "no-store"
    return answer


def told(url, endpoint, **parameters):
    """Return what an endpoint tells of a partition."""
    answer = ask(url, endpoint, **parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def moment(url, time, partition=0):
    """Return the cursor of a moment."""
    return told(url, "cursor", time=time, partition=partition)["cursor"]


def test_cursor_stands_before_a_moment(feed_url, any_engine):
    """All events of a moment or later lie behind its cursor, which then stays the same."""
    names = {"cursor-of-time", "splits", "cursor-of-count"}
    assert names <= {*httpx.get(feed_url).json()["extensions"]}
    for second in (-1, 0, 1, 7, 19):
        time = (NOON + timedelta(seconds=second)).isoformat()
        for partition in (0, 1):
            expected = [n for n in range(20) if n % 2 == partition and n >= second]
            assert behind(feed_url, moment(feed_url, time, partition), partition) == expected
    settled = moment(feed_url, "2026-03-01T12:00:07Z")
    future = moment(feed_url, "2026-03-01T12:00:25Z")
    assert behind(feed_url, future) == []
    write(any_engine, range(20, 30))
    assert moment(feed_url, "2026-03-01T12:00:07Z") == settled
    assert behind(feed_url, future) == [20, 22, 24, 26, 28]
    assert behind(feed_url, moment(feed_url, "2026-03-01T12:00:25Z")) == [26, 28]


def test_any_moment_has_its_cursor(feed_url):
    """The same moment has the same cursor in any zone, and those far away stand at the ends."""
    noon = moment(feed_url, "2026-03-01T12:00:05Z")
    for time in ("12:00:05.000000000Z", "12:00:04.999999999Z", "13:00:05+01:00"):
        assert moment(feed_url, f"2026-03-01T{time}") == noon, time
    for time, count in [
        ("0001-01-01T00:00:00Z", 10),
        ("1969-12-31T23:59:59Z", 10),
        ("9999-12-31T23:59:59.999999Z", 0),
    ]:
        assert len(behind(feed_url, moment(feed_url, time))) == count, time


def test_pieces_and_portions_make_the_whole(feed_url):
    """Read each from its cursor to the next, pieces and portions hold every event once."""
    bounds = told(feed_url, "splits")["cursors"]
    assert 2 <= len(bounds) <= 4
    pieces = [behind(feed_url, start, stop=stop) for start, stop in pairwise(bounds)]
    assert [n for piece in pieces for n in piece] == [*range(0, 20, 2)]
    inner = told(feed_url, "splits", cursor=bounds[1], stop=bounds[2], count=1)
    assert inner["cursors"] == bounds[1:3]
    cursor, portions = FIRST, []
    for events in (4, 4, 2, 0):
        found = told(feed_url, "cursor-of-count", cursor=cursor)
        assert found == {"cursor": found["cursor"], "events": events}
        portions.append(behind(feed_url, cursor, stop=found["cursor"]))
        cursor = found["cursor"]
    assert portions == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18], []]
    stop = told(feed_url, "cursor-of-count")["cursor"]
    bounded = told(feed_url, "cursor-of-count", events=5, stop=stop)
    assert bounded == {"cursor": stop, "events": 4}


WRONG = [
    ({"partition": "2"}, 400, "bad-request"),
    ({"partition": ["0", "0"]}, 400, "bad-request"),
    ({"token": "3"}, 409, "token-changed"),
    ({"token": ""}, 409, "token-changed"),
]
WRONG_CURSORS = [
    ({"cursor": "nonsense"}, 400, "bad-cursor"),
    ({"cursor": "1-99"}, 410, "diverged"),
    ({"stop": "1-99"}, 410, "diverged"),
]


@pytest.mark.parametrize("endpoint", NEEDED)
def test_requests_that_cannot_be_served_are_refused(sqlite, endpoint):
    """What is there twice, not of its form, or of another history is a problem document."""
    metadata.create_all(sqlite)
    wrong = [({name: "x"}, 400, "bad-request") for name in NEEDED[endpoint] if name != "cursor"]
    with mounted(FEED, sqlite) as url:
        for parameters, *expected in WRONG + wrong + WRONG_CURSORS * (endpoint != "cursor"):
            answer = ask(url, endpoint, **parameters)
            assert [answer.status_code, kind(answer)] == expected, parameters
        assert httpx.post(f"{url}/{endpoint}").status_code == 405


def test_feed_without_times_does_not_answer(shop):
    """Where there is no extension there is no endpoint, whatever is asked."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        assert "cursor-of-time" not in httpx.get(url).json()["extensions"]
        for asked in ({"token": "1"}, {"token": "7", "time": "nonsense"}):
            answer = ask(url, "cursor", **asked)
            assert (answer.status_code, kind(answer)) == (404, "not-found")


def test_sequenced_feed_knows_when_positions_were_given(any_engine):
    """Without a column of times, a feed with positions of its own knows when it gave them."""
    metadata.create_all(any_engine)
    feed = TableFeed(orders, data="data", ordering="sequenced", partition="part", partitions=2)
    with any_engine.begin() as connection:
        feed.install(connection)
    write(any_engine, range(20))
    with mounted(feed, any_engine) as url:
        assert behind(url, moment(url, "2999-01-01T00:00:00Z")) == []
        assert len(behind(url, moment(url, "1969-01-01T00:00:00Z"))) == 10
