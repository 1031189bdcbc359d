"""A table's feed over real HTTP, on every database and both kinds of engine."""

import json
from contextlib import asynccontextmanager

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.errors import Unavailable

PARTITIONS = 3


@pytest.fixture(params=["sync", "async"])
def feed_url(request, engine, async_url):
    """The URL of a feed of 3 partitions over an empty table of orders."""
    metadata.create_all(engine)
    feed = TableFeed(
        orders,
        partition=orders.c.part,
        partitions=PARTITIONS,
        data="data",
        headers={"customer": orders.c.customer, "kind": "kind"},
    )
    if request.param == "sync":
        application = Starlette(routes=feed_routes("/orders", feed, engine))
    else:
        reading = create_async_engine(async_url)

        @asynccontextmanager
        async def lifespan(_):
            yield
            await reading.dispose()

        application = Starlette(routes=feed_routes("/orders", feed, reading), lifespan=lifespan)
    with serving(application) as url:
        yield f"{url}/orders"


def get(url, **parameters):
    """Get a page of FeedAPI v2."""
    parameters = {"token": "3", "partition": 0, "cursor": "_first", **parameters}
    return httpx.get(f"{url}/events", params=parameters)


def page(answer):
    """Return the numbers of a page's events and its checkpoint."""
    *events, checkpoint = map(json.loads, answer.text.splitlines())
    return [event["data"]["n"] for event in events], checkpoint


def test_discovery_names_the_partitions(feed_url):
    """A request without parameters is answered with the feed's partitions."""
    answer = httpx.get(feed_url)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "token": "3",
        "partitions": [{"id": "0"}, {"id": "1"}, {"id": "2"}],
        "exactlyOnce": True,
        "extensions": ["caught-up", "cursor-of-count", "lag", "splits", "stop", "wait"],
    }


def test_page_holds_events_and_a_checkpoint(feed_url, engine):
    """A page holds a partition's events in order, a line each, and ends with a checkpoint."""
    with engine.begin() as connection:
        place(connection, 6, partitions=PARTITIONS)
    answer = get(feed_url, partition=1)
    assert answer.headers["content-type"] == "application/x-ndjson"
    cursor = json.loads(answer.text.splitlines()[-1])["cursor"]
    assert answer.text == (
        f'{{"data":{{"n": 1}}}}\n{{"data":{{"n": 4}}}}\n{{"cursor":"{cursor}","caughtUp":true}}\n'
    )


def test_cursor_continues_behind_its_page(feed_url, engine):
    """The next page starts behind the checkpoint, and an event comes once."""
    with engine.begin() as connection:
        place(connection, 5)
    numbers, checkpoint = page(get(feed_url, pagesizehint=3))
    assert (numbers, "caughtUp" in checkpoint) == ([0, 1, 2], False)
    numbers, checkpoint = page(get(feed_url, cursor=checkpoint["cursor"]))
    assert (numbers, checkpoint["caughtUp"]) == ([3, 4], True)


def test_head_repeats_its_cursor(feed_url, engine):
    """At the head a page is empty and its checkpoint is the cursor that was asked for."""
    with engine.begin() as connection:
        place(connection, 2)
    _, checkpoint = page(get(feed_url))
    assert page(get(feed_url, cursor=checkpoint["cursor"])) == ([], checkpoint)


def test_empty_feed_has_a_cursor(feed_url):
    """An empty feed gives a cursor from which nothing is missed."""
    assert get(feed_url).text == '{"cursor":"1-0","caughtUp":true}\n'


def test_last_stands_behind_what_is_there(feed_url, engine):
    """`_last` gives the cursor behind everything settled, and skips nothing that comes later."""
    with engine.begin() as connection:
        place(connection, 4)
    numbers, checkpoint = page(get(feed_url, cursor="_last"))
    assert (numbers, checkpoint["caughtUp"]) == ([], True)
    assert checkpoint["cursor"].startswith("2-4-")
    with engine.begin() as connection:
        place(connection, 1, first=4)
    assert page(get(feed_url, cursor=checkpoint["cursor"]))[0] == [4]


def test_page_size_is_clamped(feed_url, engine):
    """The page size hint is brought into the range that the feed serves."""
    with engine.begin() as connection:
        place(connection, 20)
    for hint, events in {"0": 1, "1": 1, "7": 7, "9" * 5000: 20}.items():
        assert get(feed_url, pagesizehint=hint).text.count('{"data":') == events


def test_what_cannot_be_served_is_a_problem_document(feed_url):
    """A request that cannot be served is answered with a problem document that echoes nothing."""
    for parameters, status, problem in [
        ({"token": "2"}, 409, "token-changed"),
        ({"partition": "3"}, 400, "bad-request"),
        ({"partition": "\u0660"}, 400, "bad-request"),
        ({"pagesizehint": "-1"}, 400, "bad-request"),
        ({"cursor": "1-01"}, 400, "bad-cursor"),
        ({"cursor": "x' OR '1'='1"}, 400, "bad-cursor"),
        ({"cursor": "1-99"}, 410, "diverged"),
        ({"cursor": ["_first", "_last"]}, 400, "bad-request"),
        ({"cursor": ""}, 400, "bad-cursor"),
    ]:
        answer = get(feed_url, **parameters)
        assert answer.status_code == status, parameters
        assert answer.headers["content-type"] == "application/problem+json"
        document = answer.json()
        assert document["type"] == f"urn:zeroeventhub:problem/{problem}"
        assert document["status"] == status
        assert "OR" not in answer.text


def test_v1_serves_several_cursors_and_headers(feed_url, engine):
    """A v1 request reads several partitions at once, with the headers it names."""
    with engine.begin() as connection:
        place(connection, 6, partitions=PARTITIONS)
    parameters = {"n": 3, "cursor0": "_first", "cursor2": "1-3", "headers": "customer,nothing"}
    answer = httpx.get(feed_url, params=parameters)
    lines = answer.text.splitlines()
    assert lines[:2] == [
        '{"partition":0,"headers":{"customer":"c0"},"data":{"n": 0}}',
        '{"partition":0,"headers":{"customer":"c3"},"data":{"n": 3}}',
    ]
    assert lines[2].startswith('{"partition":0,"cursor":"2-4-')
    assert lines[3] == '{"partition":2,"headers":{"customer":"c5"},"data":{"n": 5}}'
    assert lines[4].startswith('{"partition":2,"cursor":"2-6-')


def test_v1_sends_all_headers_or_none(feed_url, engine):
    """`_all` asks for every header; without a header parameter there are none."""
    with engine.begin() as connection:
        place(connection, 1)
    request = {"n": 3, "cursor0": "_first"}
    everything = httpx.get(feed_url, params={**request, "headers": "_all"}).text
    assert '"headers":{"customer":"c0","kind":"placed"}' in everything
    assert "headers" not in httpx.get(feed_url, params=request).text


def test_v1_divides_the_hint(feed_url, engine):
    """The v1 page size hint is the number of events in the whole answer."""
    with engine.begin() as connection:
        place(connection, 30, partitions=PARTITIONS)
    cursors = {f"cursor{partition}": "_first" for partition in range(PARTITIONS)}
    answer = httpx.get(feed_url, params={"n": 3, "pagesizehint": 6, **cursors})
    assert answer.text.count('"data":') == 6


def test_v1_refuses_what_does_not_fit(feed_url):
    """A v1 request with another number of partitions, or without a cursor, is a 400."""
    for parameters in [{"n": 4, "cursor0": "_first"}, {"n": 3}, {"n": "x"}]:
        assert httpx.get(feed_url, params=parameters).status_code == 400


def test_event_outside_of_the_partitions_is_loud(engine):
    """A row whose partition no consumer would see makes the feed fail, not fall silent."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(orders), {"part": 5, "data": {}})
    feed = TableFeed(orders, partition="part", partitions=3, data="data")
    with serving(Starlette(routes=feed_routes("/", feed, engine))) as url:
        answer = httpx.get(url)
    assert answer.status_code == 500
    assert "part" not in answer.json()["detail"]


def test_database_that_is_away_is_a_503(tmp_path):
    """A database that cannot be reached is a 503 that says when to come back."""
    away = create_engine(f"sqlite:///{tmp_path / 'missing' / 'test.db'}")
    with serving(Starlette(routes=feed_routes("/", TableFeed(orders, data="data"), away))) as url:
        answer = httpx.get(url)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_page_ends_early_where_events_are_large(engine):
    """A page of large events ends at a checkpoint before it outgrows its bounds."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        for _ in range(4):
            connection.execute(insert(orders), {"data": {"blob": "x" * 3_000_000}})
    feed = TableFeed(orders, data="data").bind(engine)
    first = feed.read(0, "_first", 10)
    second = feed.read(0, first.cursor, 10)
    assert (len(first.events), len(second.events)) == (2, 2)


def test_numbers_that_start_again_under_a_page_are_noticed(postgresql):
    """A table emptied between horizon and page, with numbers that start again, gives no page."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        place(connection, 50)
    reading = create_engine(postgresql.url)
    feed = TableFeed(orders, data="data").bind(reading)
    assert len(feed.read(0, "_first", 100).events) == 50

    @event.listens_for(reading, "before_cursor_execute")
    def empty(connection, cursor, statement, *_):
        if "ORDER BY orders.id" in statement:
            with postgresql.begin() as writer:
                writer.execute(text("TRUNCATE orders RESTART IDENTITY"))
                place(writer, 2)

    with pytest.raises(Unavailable):
        feed.read(0, "_first", 100)
    reading.dispose()
