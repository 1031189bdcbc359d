"""The routes of a feed: where they lie, what a feed needs for them, and what they answer."""

import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import httpx
import pytest
from harness import readers
from harness.published import install
from harness.readers import Numbers, client_of, kind, mounted
from harness.shop import fill, orders, write
from harness.statements import execute
from sqlalchemy import create_engine, delete
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import (
    FIRST,
    Capacity,
    Client,
    Event,
    FeedInfo,
    Page,
    Principal,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EXTENSIONS, PARTITION, Extension, Parameter
from zeroeventhub.publisher.deletion import Compaction
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import Retention

FEED = TableFeed(orders, data="data")


class Plain:
    """A feed of one's own with nothing but pages."""

    info, read = Numbers.info, Numbers.read


def test_paths_and_names_of_routes():
    """Routes lie below their path, are found by their names, and are only those asked for."""
    for path, below in (("/a/b", "/a/b"), ("a/b/", "/a/b"), ("/", "")):
        routes = feed_routes(path, Numbers(), name="shop", server_sent_events=True)
        found = {route.name: route.path for route in routes}
        assert (found["shop"], found["shop:events"]) == (below or "/", f"{below}/events")
        assert found["shop:server-sent-events"] == f"{below}/server-sent-events"
    paths = {route.path for route in feed_routes("/", Plain())}
    assert paths.isdisjoint({"/http-feed", "/server-sent-events"})
    assert {"/", "/events", "/progress"} <= paths


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((FEED,), {}, "give its engine"),
        ((Plain(), create_engine("sqlite://")), {}, "give no engine"),
        ((object(),), {}, "is not a feed"),
        ((Plain(),), {"http_feed": True}, "cursor_of"),
        ((Plain(),), {"server_sent_events": True}, "head"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, options, match):
    """A feed that cannot do what its routes need is refused when it is mounted."""
    with pytest.raises(ConfigurationError, match=match):
        feed_routes("/", *arguments, **options)


BATCH = "application/cloudevents-batch+json"


def get(url, **parameters):
    """Ask for a batch."""
    return httpx.get(f"{url}/http-feed", params=parameters, timeout=20)


def batch(answer):
    """Return the events of a batch."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == BATCH
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def read_all(url, **parameters):
    """Read to the end, as the documentation of HTTP Feeds has it; return all events."""
    events = []
    while more := batch(get(url, **parameters)):
        events += more
        parameters["lastEventId"] = more[-1]["id"]
    return events


source = partial(TableFeed, orders, data="data", type="kind", cloudevents=True)
as_http_feed = partial(mounted, http_feed=True)


def test_client_reads_everything_once(any_engine):
    """A client that gives back the last id it has reads every event once, and then goes on."""
    with as_http_feed(source(), fill(any_engine, 0)) as url:
        assert batch(get(url)) == batch(get(url, lastEventId="")) == []
        write(any_engine, 2300)
        events = read_all(url)
        assert [event["data"]["n"] for event in events] == list(range(2300))
        assert [event["id"] for event in events] == [str(n) for n in range(1, 2301)]
        assert {event["specversion"] for event in events} == {"1.0"}
        last = events[-1]["id"]
        assert batch(get(url, lastEventId=last)) == []
        write(any_engine, first=2300)
        assert [event["data"]["n"] for event in batch(get(url, lastEventId=last))] == [2300]


def test_timeout_is_waited_for(empty_shop, watcher, pool):
    """A timeout in milliseconds holds an empty batch back until there is an event."""
    with as_http_feed(source(), empty_shop, observer=watcher) as url:
        began = time.monotonic()
        assert batch(get(url, timeout=300)) == []
        assert 0.3 <= time.monotonic() - began < 10
        waiting = pool.submit(get, url, timeout=10_000)
        watcher.until_waiting(1)
        write(empty_shop)
        assert len(batch(waiting.result())) == 1
        for timeout in ("-1", "1.5", "", "x"):
            assert get(url, timeout=timeout).status_code == 400
        address = f"{url}/http-feed?timeout=20000&lastEventId=1"
        assert httpx.head(address, timeout=10).status_code == 200


def test_partitions_are_named(empty_shop):
    """Of several partitions a request names one."""
    write(empty_shop, 6, partitions=2)
    with as_http_feed(source(partition="part", partitions=2), empty_shop) as url:
        for partition in (0, 1):
            numbers = [event["data"]["n"] for event in read_all(url, partition=partition)]
            assert numbers == list(range(partition, 6, 2))
        for parameters in ({}, {"partition": 2}, {"partition": 0, "lastEventId": "9999"}):
            answer = get(url, **parameters)
            assert (answer.status_code, answer.headers["cache-control"]) == (400, "no-store")


def test_deleted_events_are_moved_over(any_engine):
    """A client goes on over a page of deleted events, although it has no cursor for them."""
    shop, feed = fill(any_engine, 0), source(ordering="sequenced")
    install(feed, shop)
    write(shop, 2500)
    with as_http_feed(feed, shop) as url:
        assert len(batch(get(url))) == 1000
        execute(shop, delete(orders).where(orders.c.id.between(1, 2400)))
        events = read_all(url)
        assert [event["data"]["n"] for event in events] == list(range(2400, 2500))
        execute(shop, delete(orders))
        assert batch(get(url)) == []


def test_place_of_a_deleted_event_is_respected(any_engine):
    """An id whose event is gone leads to what follows it, or to 410 where that is gone."""
    shop = fill(any_engine, 0)
    feed = source(mutable=True, retention=Retention())
    install(feed, shop)
    write(shop, 20)
    with as_http_feed(feed, shop) as url:
        execute(shop, delete(orders).where(orders.c.id == 5))
        assert [one["id"] for one in batch(get(url, lastEventId="5"))][:2] == ["6", "7"]
        assert len(batch(get(url, lastEventId="null"))) == 19
        bound = feed.bind(shop)
        bound.trim(bound.plan_trim(below=11))
        assert batch(get(url, lastEventId="10"))[0]["id"] == "11"
        assert get(url, lastEventId="5").status_code == 410
        assert get(url, lastEventId="21").status_code == 400


@pytest.mark.parametrize("way", ["mutable", "trimmed", "compacted"])
def test_id_of_a_deleted_event_is_gone(engine, way):
    """Where events have ids of their own, an id that no event has is 410 once some were deleted."""
    shop, options = fill(engine, 0), {"retention": Retention()}
    if way == "mutable":
        options = {"mutable": True}
    elif way == "compacted":
        options |= {"key": "kind", "compaction": Compaction()}
    feed = source(id="customer", **options)
    install(feed, shop)
    write(shop, 5)
    with as_http_feed(feed, shop) as url:
        assert [one["id"] for one in batch(get(url))] == [f"c{n}" for n in range(5)]
        assert get(url, lastEventId="c9").status_code == (410 if way == "mutable" else 400)
        bound = feed.bind(shop)
        if way == "mutable":
            execute(shop, delete(orders).where(orders.c.customer == "c1"))
        elif way == "trimmed":
            bound.trim(bound.plan_trim(below=3))
        else:
            bound.compact()
        answer = get(url, lastEventId="c1")
        assert (answer.status_code, readers.kind(answer)) == (410, "trimmed")
        assert [one["id"] for one in batch(get(url))][-1] == "c4"
        assert batch(get(url, lastEventId="c4")) == []


@dataclass(frozen=True)
class Distance:
    """An answer of the new extension."""

    cursor: str
    weight: Annotated[int, "by a factor"]


ROW = Extension(
    name="weighing",
    path="weight",
    parameters=(
        PARTITION,
        Parameter("cursor", "cursor"),
        Parameter("factor", "number", 2, least=1, most=9, argument="factor"),
    ),
    method="weigh",
    answer=Distance,
    needs="types",
)


class WeighingClient(Client):
    """A client with a method for the new extension."""

    def weigh(self, partition, cursor, factor):
        return blocking(self._answer("weighing", partition, cursor, factor))


@pytest.fixture
def weighing(monkeypatch):
    """A row for a new extension, and the query that answers it."""

    def weigh(self, connection, partition, cursor, *, factor):
        return Distance(cursor, factor * self.lag(connection, partition, cursor).events)

    monkeypatch.setitem(EXTENSIONS, "weighing", ROW)
    monkeypatch.setattr(Reader, "weigh", weigh, raising=False)


@pytest.mark.parametrize("driver", ["pysqlite", "aiosqlite"])
def test_new_extension_is_a_row_and_a_query(weighing, sqlite, driver):
    """Route, checks, rights, discovery and the client follow from an extension's row."""
    fill(sqlite)
    engine = sqlite
    if driver == "aiosqlite":
        engine = create_async_engine(sqlite.url.set(drivername="sqlite+aiosqlite"))
    place = {"token": "1", "partition": 0, "cursor": FIRST}
    feed = TableFeed(orders, data="data", type="kind")
    with mounted(feed, engine) as url, httpx.Client() as session:
        client = WeighingClient(url, session)
        assert "weighing" in client.discover().extensions
        assert session.get(f"{url}/weight", params=place).json() == {"cursor": FIRST, "weight": 20}
        assert client.weigh(0, FIRST, 3) == Distance(FIRST, 30)
        for wrong in ({"factor": 0}, {"factor": "x"}, {"partition": 7}):
            assert kind(session.get(f"{url}/weight", params=place | wrong)) == "bad-request"
        assert session.get(f"{url}/weight", params=place | {"token": "2"}).status_code == 409
    some = Principal(name="reader", types=TypeFilter(frozenset({"placed"})))
    with mounted(feed, sqlite, authorize=lambda _: some) as url, client_of(url) as client:
        assert "weighing" not in client.discover().extensions
        assert httpx.get(f"{url}/weight", params=place).status_code == 404


class Heavy:
    """A feed of eight partitions, each with a page of a mebibyte whatever is asked."""

    def info(self):
        return FeedInfo.of(8)

    def read(self, partition, cursor, limit):
        number = 0 if cursor == FIRST else int(cursor)
        return Page([Event.of("x" * 2**20)], str(number + 1))


def test_answer_of_version_1_is_bounded_as_a_whole():
    """An answer of many partitions is bounded; partitions take turns, so that each is read."""
    cursors = {f"cursor{number}": FIRST for number in range(8)}
    with mounted(Heavy(), capacity=Capacity(page_bytes=2**20)) as url:
        for _ in range(200):
            answer = httpx.get(url, params={"n": 8, **cursors})
            assert len(answer.content) < 3 * 2**20
            lines = [json.loads(line) for line in answer.text.splitlines()]
            cursors |= {f"cursor{x['partition']}": x["cursor"] for x in lines if "cursor" in x}
            if FIRST not in cursors.values():
                return
        pytest.fail(f"Some partitions were never read: {cursors}")
