"""How far a consumer is behind: counted by feeds that can, read from those that cannot."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import httpx
import pytest
from harness.shop import metadata, orders, place
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
from zeroeventhub.errors import ConfigurationError, Diverged, StoreUnavailable, TokenChanged
from zeroeventhub.protocol import CAUGHT_UP, LAG

NAME = "billing"


def lag_sync(feed_url, store_url, **options):
    """Ask for the lag of a consumer; the feed's client has asked before."""
    engine = create_engine(store_url)
    try:
        with httpx.Client() as http:
            return lag(Client(feed_url, http), CursorStore(engine), NAME, **options)
    finally:
        engine.dispose()


def lag_async(feed_url, store_url, **options):
    """Ask for the lag of a consumer, asynchronously."""

    async def ask():
        engine = create_async_engine(re.sub("^sqlite:", "sqlite+aiosqlite:", store_url))
        try:
            async with httpx.AsyncClient() as http:
                client = AsyncClient(feed_url, http)
                return await async_lag(client, CursorStore(engine), NAME, **options)
        finally:
            await engine.dispose()

    return anyio.run(ask)


@pytest.fixture(params=[lag_sync, lag_async], ids=["sync", "async"])
def ask(request):
    """A function that asks for the lag of a consumer."""
    return request.param


@pytest.fixture
def store_url(tmp_path):
    """The URL of a database with a consumer's tables."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        CursorStore(engine).create_tables(connection)
    engine.dispose()
    return url


def stand(store_url, **cursors):
    """Let the consumer stand at a cursor in partitions named p0 and so on."""
    engine = create_engine(store_url)
    store = CursorStore(engine)
    with engine.begin() as connection:
        for name, cursor in cursors.items():
            store.load(connection, NAME, int(name[1:]), start=cursor)
    engine.dispose()


class OwnFeed:
    """A feed in memory of CloudEvents, one for each age in seconds of each partition."""

    def __init__(self, *ages, extensions=frozenset(), timed=True):
        self.extensions = extensions
        self.token = "1"
        self.requests = 0
        self.limits = []
        self.events = [[_event(age, timed=timed) for age in part] for part in ages]

    def info(self):
        return replace(FeedInfo.of(len(self.events)), token=self.token, extensions=self.extensions)

    def read(self, partition, cursor, limit):
        self.requests += 1
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
def test_feed_that_does_not_count_is_read(ask, store_url, extensions):
    """Events are counted from the consumer's cursors on; the first one's time tells its age."""
    feed = OwnFeed(AGES, [], AGES, extensions=extensions)
    stand(store_url, p0="4", p2="10")
    with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
        found = ask(f"{url}/feed", store_url)
    assert {number: (each.events, each.exact) for number, each in found.items()} == {
        0: (6, True),
        1: (0, True),
        2: (0, True),
    }
    assert 0 <= found[0].seconds - 6000 < 120
    assert found[1].seconds == found[2].seconds == 0
    pages = 2 + 1 + 1 if extensions else 3 + 2 + 1
    assert feed.requests == pages


@BOTH
def test_reading_ends_when_there_are_more(ask, store_url, extensions):
    """No more is read than tells that there are more than were to be counted, and that in pages
    of an ordinary size.
    """
    feed = OwnFeed(AGES, extensions=extensions)
    with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
        for most in (1, 5, 9, 10, 11):
            feed.limits.clear()
            found = ask(f"{url}/feed", store_url, most=most)[0]
            assert (found.events, found.exact) == (min(10, most), most >= 10)
            assert 0 <= found.seconds - 10_000 < 120
            assert feed.limits[0] == most + 1
        feed.limits.clear()
        ask(f"{url}/feed", store_url)
    assert set(feed.limits) == {1000}


@pytest.mark.parametrize(("timed", "seconds"), [(True, 0), (False, None)])
def test_event_may_be_of_the_future_or_of_no_time(store_url, timed, seconds):
    """What has not happened yet is 0 seconds old; without a time nobody knows."""
    with serving(Starlette(routes=feed_routes("/feed", OwnFeed([-9999], timed=timed)))) as url:
        assert lag_sync(f"{url}/feed", store_url) == {0: Lag(1, seconds)}


class CountingFeed(OwnFeed):
    """A feed that counts, and is not to be read unless it knows no times."""

    seconds = 5.0

    def read(self, partition, cursor, limit):
        assert self.seconds is None
        return super().read(partition, cursor, limit)

    def lag(self, partition, cursor):
        self.limits.append((partition, cursor))
        return Lag(7, self.seconds, exact=False)


def test_feed_that_counts_is_asked(ask, store_url):
    """Where the feed counts, no event is sent, and what it says is what comes back."""
    feed = CountingFeed([], [], extensions=frozenset({LAG}))
    stand(store_url, p1="c")
    with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
        found = ask(f"{url}/feed", store_url, most=1)
    assert found == dict.fromkeys(range(2), Lag(7, 5.0, exact=False))
    assert feed.limits == [(0, FIRST), (1, "c")]


def test_feed_that_counts_and_has_no_times_is_asked_for_an_event(ask, store_url):
    """Where the feed does not know the age of the first event, the event itself may tell it."""
    feed = CountingFeed(AGES, [], extensions=frozenset({LAG}))
    feed.seconds = None
    stand(store_url, p0="4")
    with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
        found = ask(f"{url}/feed", store_url)
    assert 0 <= found[0].seconds - 6000 < 120
    assert found[1] == Lag(7, None, exact=False)
    assert feed.limits == [(0, "4"), 1, (1, FIRST), 1]


def test_heir_counts_from_where_it_will_start(ask, store_url):
    """A partition without a cursor counts from that of the nearest ancestor that has one."""
    feed = CountingFeed([], extensions=frozenset({LAG}))
    layout = (
        Partition(5, cursor_from=(9, 1, 0)),
        Partition(6, cursor_from=(0, 1)),
        Partition(7, cursor_from=(9,)),
        Partition(1, cursor_from=(0,)),
    )
    feed.info = lambda: FeedInfo(layout, "t", extensions=frozenset({LAG}))
    stand(store_url, p0="a", p1="b")
    with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
        ask(f"{url}/feed", store_url)
    assert feed.limits == [(5, "b"), (6, "a"), (7, FIRST), (1, "b")]


def test_table_feed_and_store_on_every_database(engine, database_url):
    """The lag of a consumer is the same over each database, as feed and as store."""
    metadata.create_all(engine)
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        placed = datetime.now(UTC) - timedelta(hours=1)
        rows = [{"part": n % 2, "placed": placed, "data": {}} for n in range(9)]
        connection.execute(insert(orders), rows)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=3)
    cursor = feed.bind(engine).read(0, FIRST, 3).cursor
    with engine.begin() as connection:
        store.load(connection, NAME, 0, start=cursor)
        store.load(connection, "another", 1, start=LAST)
    with serving(Starlette(routes=feed_routes("/feed", feed, engine))) as url:
        found = lag_sync(f"{url}/feed", database_url)
    assert {number: each.events for number, each in found.items()} == {0: 2, 1: 4, 2: 0}
    assert all(3600 <= found[number].seconds < 3720 for number in (0, 1))
    assert found[2] == Lag(0, 0.0)


def test_first_version_is_read(store_url):
    """A feed of ZeroEventHub v1 is read as well, though it tells nothing of itself."""

    def reply(target):
        lines = '{"partition":0,"data":{"n":1}}\n' if "_first" in target else ""
        body = f'{lines}{{"partition":0,"cursor":"1"}}\n'
        status, body = ("200 OK", body) if "n=" in target else ("400 Bad Request", "")
        kind = "Content-Type: application/x-ndjson"
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\n{kind}"
        return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    engine = create_engine(store_url)
    with answering(reply) as url, httpx.Client() as http:
        found = lag(Client(url, http, partitions=1), CursorStore(engine), NAME)
    engine.dispose()
    assert found == {0: Lag(1, None)}


def test_errors_come_through(ask, store_url, sqlite):
    """What the feed refuses is raised, and there is no use in counting up to 0."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 3)
    stand(store_url, p0="1-99")
    routes = feed_routes("/feed", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url:
        with pytest.raises(Diverged):
            ask(f"{url}/feed", store_url)
        with pytest.raises(ConfigurationError, match="most"):
            ask(f"{url}/feed", store_url, most=0)


def test_store_that_is_not_there_is_a_transient_error():
    """A store that cannot be reached may be there again: the caller tries later."""
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with (
        serving(Starlette(routes=feed_routes("/feed", OwnFeed([])))) as url,
        httpx.Client() as http,
        pytest.raises(StoreUnavailable),
    ):
        lag(Client(f"{url}/feed", http), CursorStore(engine), NAME)
    engine.dispose()


def test_engines_are_of_the_right_kind(store_url):
    """A sync client goes with a sync store, an async one with an async store."""
    sync, asynchronous = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
    with httpx.Client() as http, pytest.raises(ConfigurationError, match="async_lag"):
        lag(Client("http://localhost", http), CursorStore(asynchronous), NAME)

    async def ask():
        async with httpx.AsyncClient() as http:
            await async_lag(AsyncClient("http://localhost", http), CursorStore(sync), NAME)

    with pytest.raises(ConfigurationError, match="or use lag"):
        anyio.run(ask)


def test_client_of_a_running_consumer_learns_nothing(store_url):
    """A client that a consumer reads with keeps the token that the consumer knows of."""
    feed = OwnFeed([])
    engine = create_engine(store_url)
    with (
        serving(Starlette(routes=feed_routes("/feed", feed))) as url,
        httpx.Client() as http,
    ):
        client = Client(f"{url}/feed", http)
        client.discover()
        feed.token = "another"
        assert lag(client, CursorStore(engine), NAME) == {0: Lag(0, 0.0)}
        with pytest.raises(TokenChanged):
            client.fetch(0, FIRST)
    engine.dispose()
