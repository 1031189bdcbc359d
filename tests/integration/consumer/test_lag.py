"""How far a consumer is behind: counted by feeds that can, read from those that cannot."""

from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import httpx
import pytest
from harness.shop import metadata, orders
from harness.web import answering, serving
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    AsyncClient,
    Client,
    CursorStore,
    Event,
    FeedInfo,
    Lag,
    Page,
    Partition,
    TableFeed,
    async_lag,
    feed_routes,
    lag,
)
from zeroeventhub.errors import ConfigurationError, StoreUnavailable, TokenChanged
from zeroeventhub.protocol import CAUGHT_UP, LAG

NAME = "billing"


@pytest.fixture
def store(any_engine):
    """A store of a consumer's cursors."""
    store = CursorStore(any_engine)
    with any_engine.begin() as connection:
        store.create_tables(connection)
    return store


@pytest.fixture(params=["sync", "async"])
def ask(request, store):
    """A function that asks for the lag of a consumer of a feed."""

    async def ask_async(url, **options):
        url_of_store = store.engine.url.render_as_string(hide_password=False)
        url_of_store = url_of_store.replace("sqlite://", "sqlite+aiosqlite://")
        engine = create_async_engine(url_of_store.replace("+pymysql", "+aiomysql"))
        try:
            async with httpx.AsyncClient() as http:
                return await async_lag(AsyncClient(url, http), CursorStore(engine), NAME, **options)
        finally:
            await engine.dispose()

    def ask(url, **options):
        if request.param == "async":
            return anyio.run(partial(ask_async, url, **options))
        return lag_of(store, url, **options)

    return ask


def lag_of(store, url, **options):
    """Ask for the lag of a consumer."""
    with httpx.Client() as http:
        return lag(Client(url, http), store, NAME, **options)


def stand(store, cursors):
    """Let the consumer stand at cursors of partitions."""
    with store.engine.begin() as connection:
        for partition, cursor in cursors.items():
            store.load(connection, NAME, partition, start=cursor)


@contextmanager
def served(feed, *more):
    """Serve a feed; yield its URL."""
    with serving(Starlette(routes=feed_routes("/feed", feed, *more))) as url:
        yield f"{url}/feed"


class OwnFeed:
    """A feed in memory of CloudEvents, one for each age in seconds of each partition."""

    def __init__(self, *ages, extensions=frozenset(), timed=True):
        self.extensions = extensions
        self.token = "1"
        self.limits = []
        self.events = [[_event(age, timed=timed) for age in part] for part in ages]

    def info(self):
        return replace(FeedInfo.of(len(self.events)), token=self.token, extensions=self.extensions)

    def read(self, partition, cursor, limit):
        self.limits.append(limit)
        events = self.events[partition]
        start = {FIRST: 0, LAST: len(events)}.get(cursor)
        start = int(cursor) if start is None else start
        end = min(start + min(limit, 3), len(events))
        return Page(
            events[start:end],
            str(end),
            caught_up=end == len(events) and CAUGHT_UP in self.extensions,
        )


def _event(age, *, timed):
    data = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
    if timed:
        data["time"] = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return Event.of(data)


AGES = range(10_000, 0, -1000)
BOTH = pytest.mark.parametrize("extensions", [frozenset(), frozenset({CAUGHT_UP})], ids=repr)


@BOTH
def test_feed_that_does_not_count_is_read(ask, store, extensions):
    """Events are counted from the consumer's cursors on; the first one's time tells its age."""
    feed = OwnFeed(AGES, [], AGES, extensions=extensions)
    stand(store, {0: "4", 2: "10"})
    with served(feed) as url:
        found = ask(url)
    assert [(each.events, each.exact) for each in found.values()] == [(6, True), *[(0, True)] * 2]
    assert 0 <= found[0].seconds - 6000 < 120
    assert found[1].seconds == found[2].seconds == 0
    assert len(feed.limits) == (2 + 1 + 1 if extensions else 3 + 2 + 1)


@BOTH
def test_reading_ends_when_there_are_more(store, extensions):
    """No more is read than tells that there are more, and that in pages of an ordinary size."""
    feed = OwnFeed(AGES, extensions=extensions)
    with served(feed) as url:
        for most in (1, 5, 9, 10, 11):
            feed.limits.clear()
            found = lag_of(store, url, most=most)[0]
            assert (found.events, found.exact) == (min(10, most), most >= 10)
            assert 0 <= found.seconds - 10_000 < 120
            assert feed.limits[0] == most + 1
        feed.limits.clear()
        lag_of(store, url)
    assert set(feed.limits) == {1000}


@pytest.mark.parametrize(("timed", "seconds"), [(True, 0), (False, None)])
def test_event_may_be_of_the_future_or_of_no_time(store, timed, seconds):
    """What has not happened yet is 0 seconds old; without a time its age is unknown."""
    with served(OwnFeed([-9999], timed=timed)) as url:
        assert lag_of(store, url) == {0: Lag(1, seconds)}


class CountingFeed(OwnFeed):
    """A feed that counts, and is not to be read unless it knows no times."""

    seconds = 5.0

    def __init__(self, *ages):
        super().__init__(*ages, extensions=frozenset({LAG}))

    def read(self, partition, cursor, limit):
        assert self.seconds is None
        return super().read(partition, cursor, limit)

    def lag(self, partition, cursor):
        self.limits.append((partition, cursor))
        return Lag(7, self.seconds, exact=False)


def test_feed_that_counts_is_asked(ask, store):
    """Where the feed counts it is asked; the event is read where only that may tell an age."""
    feed = CountingFeed(AGES, [])
    stand(store, {0: "4"})
    with served(feed) as url:
        assert ask(url, most=1) == dict.fromkeys(range(2), Lag(7, 5.0, exact=False))
        assert feed.limits == [(0, "4"), (1, FIRST)]
        feed.limits.clear()
        feed.seconds = None
        found = ask(url)
    assert 0 <= found[0].seconds - 6000 < 120
    assert found[1] == Lag(7, None, exact=False)
    assert feed.limits == [(0, "4"), 1, (1, FIRST), 1]


def test_heir_counts_from_where_it_will_start(store):
    """A partition without a cursor counts from that of the nearest ancestor that has one."""
    feed = CountingFeed([])
    layout = {5: (9, 1, 0), 6: (0, 1), 7: (9,), 1: (0,)}
    partitions = tuple(Partition(heir, cursor_from=line) for heir, line in layout.items())
    feed.info = lambda: FeedInfo(partitions, "t", extensions=frozenset({LAG}))
    stand(store, {0: "a", 1: "b"})
    with served(feed) as url:
        lag_of(store, url)
    assert feed.limits == [(5, "b"), (6, "a"), (7, FIRST), (1, "b")]


def test_table_feed_and_store_on_every_database(engine):
    """The lag of a consumer is the same over each database, as feed and as store."""
    metadata.create_all(engine)
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        placed = datetime.now(UTC) - timedelta(hours=1)
        rows = [{"part": n % 2, "placed": placed, "data": {}} for n in range(9)]
        connection.execute(insert(orders), rows)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=3)
    stand(store, {0: feed.bind(engine).read(0, FIRST, 3).cursor})
    with engine.begin() as connection:
        store.load(connection, "another", 1, start=LAST)
    with served(feed, engine) as url:
        found = lag_of(store, url)
        with pytest.raises(ConfigurationError, match="most"):
            lag_of(store, url, most=0)
    assert {number: each.events for number, each in found.items()} == {0: 2, 1: 4, 2: 0}
    assert all(3600 <= found[number].seconds < 3720 for number in (0, 1))
    assert found[2] == Lag(0, 0.0)


def test_first_version_is_read(store):
    """A feed of ZeroEventHub v1 is read as well, though it tells nothing of itself."""

    def reply(target):
        lines = '{"partition":0,"data":{"n":1}}\n' if "_first" in target else ""
        body = f'{lines}{{"partition":0,"cursor":"1"}}\n'
        status, body = ("200 OK", body) if "n=" in target else ("400 Bad Request", "")
        kind = "Content-Type: application/x-ndjson"
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\n{kind}"
        return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    with answering(reply) as url, httpx.Client() as http:
        assert lag(Client(url, http, partitions=1), store, NAME) == {0: Lag(1, None)}


def test_store_that_is_not_there_is_a_transient_error():
    """A store that cannot be reached may be there again: the caller tries later."""
    store = CursorStore(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    with served(OwnFeed([])) as url, pytest.raises(StoreUnavailable):
        lag_of(store, url)


def test_engines_are_of_the_right_kind(store):
    """A sync client goes with a sync store, an async one with an async store."""
    asynchronous = CursorStore(create_async_engine("sqlite+aiosqlite://"))
    with pytest.raises(ConfigurationError, match="async_lag"):
        lag_of(asynchronous, "http://localhost")
    with pytest.raises(ConfigurationError, match="or use lag"):
        anyio.run(async_lag, None, store, NAME)


def test_client_of_a_running_consumer_learns_nothing(store):
    """A client that a consumer reads with keeps the token that the consumer knows of."""
    feed = OwnFeed([])
    with served(feed) as url, httpx.Client() as http:
        client = Client(url, http)
        client.discover()
        feed.token = "another"
        assert lag(client, store, NAME) == {0: Lag(0, 0.0)}
        with pytest.raises(TokenChanged):
            client.fetch(0, FIRST)
