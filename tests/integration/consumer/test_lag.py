"""How far a consumer is behind, and what it repeats or leaves out when its cursors are set."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.deliveries import NAME, opened, write_page
from harness.readers import client_of, mounted
from harness.shop import fill, metadata, orders
from harness.web import serving
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    AsyncClient,
    AsyncConsumer,
    Client,
    ConnectionPool,
    Consumer,
    CursorStore,
    Event,
    Lag,
    Page,
    Partition,
    TableFeed,
    async_lag,
    feed_routes,
    lag,
)
from zeroeventhub.consumer.lag import consequence, find_moves
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import ConfigurationError, ProtocolError, StoreUnavailable, TokenChanged
from zeroeventhub.extensions import CAUGHT_UP, LAG


def lag_of(shop, **options):
    """Ask for the lag of a consumer."""

    async def ask():
        async with httpx.AsyncClient() as http:
            store = CursorStore(shop.async_engine)
            return await async_lag(AsyncClient(shop.url, http), store, NAME, **options)

    if shop.is_async:
        return asyncio.run(ask())
    with client_of(shop.url) as client:
        return lag(client, shop.store, NAME, **options)


def aged(shop, *ages, extensions=frozenset(), timed=True):
    """Publish an event for each age in seconds of each partition; return the limits asked for."""
    limits, read = [], shop.feed.read
    shop.feed.layout[:] = map(Partition, range(len(ages)))
    shop.feed.extensions = extensions
    for partition, seconds in enumerate(ages):
        data = {"specversion": "1.0", "id": "1", "source": "/", "type": "t"}
        for age in seconds:
            time = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
            shop.feed.publish(
                Event.of({**data, "time": time} if timed else data), partition=partition
            )
        shop.feed.publish(partition=partition)

    def note(partition, cursor, limit):
        limits.append(limit)
        return read(partition, cursor, min(limit, 3))

    shop.feed.read = note
    return limits


AGES = range(10_000, 0, -1000)
BOTH = pytest.mark.parametrize("extensions", [frozenset(), frozenset({CAUGHT_UP})], ids=repr)


@BOTH
def test_feed_that_does_not_count_is_read(shop, extensions):
    """Events are counted from the consumer's cursors on; the first one's time tells its age."""
    limits = aged(shop, AGES, [], AGES, extensions=extensions)
    shop.put("4")
    shop.put("10", 2)
    found = lag_of(shop)
    assert [(each.events, each.exact) for each in found.values()] == [(6, True), *[(0, True)] * 2]
    assert 0 <= found[0].seconds - 6000 < 120
    assert found[1].seconds == found[2].seconds == 0
    assert limits == [1000] * (2 + 1 + 1 if extensions else 3 + 2 + 1)


@BOTH
def test_reading_ends_when_there_are_more(sync_shop, extensions):
    """No more is read than tells that there are more."""
    limits = aged(sync_shop, AGES, extensions=extensions)
    for most in (1, 5, 9, 10, 11):
        limits.clear()
        found = lag_of(sync_shop, most=most)[0]
        assert (found.events, found.exact) == (min(10, most), most >= 10)
        assert 0 <= found.seconds - 10_000 < 120
        assert limits[0] == most + 1


def counting(shop, *ages, seconds=5.0):
    """Let a feed count; return the partitions and cursors that it was asked for, and limits."""
    asked = aged(shop, *ages, extensions=frozenset({LAG}))

    def count(partition, cursor):
        asked.append((partition, cursor))
        return Lag(7, seconds, exact=False)

    shop.feed.lag = count
    return asked


def test_feed_that_leads_in_a_circle_is_not_read_for_ever(sync_shop):
    """Empty pages whose cursors come again are the feed's fault, which the error says."""
    sync_shop.feed.extensions = frozenset()
    sync_shop.feed.read = lambda _, cursor, __: Page([], "b" if cursor == "a" else "a")
    with pytest.raises(ProtocolError, match="circle"):
        lag_of(sync_shop)


@pytest.mark.parametrize("seconds", [5.0, None])
def test_feed_that_counts_is_asked(shop, seconds):
    """Where the feed counts, only a first event is read, if no other than that may tell an age."""
    asked = counting(shop, AGES, [], seconds=seconds)
    shop.put("4")
    found = lag_of(shop, most=1)
    assert found[0].seconds == 5.0 if seconds else 0 <= found[0].seconds - 6000 < 120
    assert found == {0: Lag(7, found[0].seconds, exact=False), 1: Lag(7, seconds, exact=False)}
    reads = [] if seconds else [1]
    assert asked == [(0, "4"), *reads, (1, FIRST), *reads]


def test_heir_counts_from_where_it_will_start(sync_shop):
    """A partition without a cursor counts from that of the nearest ancestor that has one."""
    asked = counting(sync_shop)
    layout = {5: (9, 1, 0), 6: (0, 1), 7: (9,), 1: (0,)}
    sync_shop.feed.layout[:] = [Partition(heir, cursor_from=line) for heir, line in layout.items()]
    sync_shop.put("a")
    sync_shop.put("b", 1)
    lag_of(sync_shop)
    assert asked == [(5, "b"), (6, "a"), (7, FIRST), (1, "b")]


def test_table_feed_and_store_on_every_database(engine, database_url):
    """The lag of a consumer is the same over each database, as feed and as store."""
    metadata.create_all(engine)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=3)
    with engine.begin() as connection:
        placed = datetime.now(UTC) - timedelta(hours=1)
        rows = [{"part": n % 2, "placed": placed, "data": {}} for n in range(9)]
        connection.execute(insert(orders), rows)
    application = Starlette(routes=feed_routes("/feed", feed, engine))
    with opened(database_url) as shop, serving(application) as url:
        shop.url = f"{url}/feed"
        shop.put(feed.bind(engine).read(0, FIRST, 3).cursor)
        with engine.begin() as connection:
            shop.store.load(connection, "another", 1, start=LAST)
        found = lag_of(shop)
        with pytest.raises(ConfigurationError, match="most"):
            lag_of(shop, most=0)
    assert {number: each.events for number, each in found.items()} == {0: 2, 1: 4, 2: 0}
    assert all(3600 <= found[number].seconds < 3720 for number in (0, 1))
    assert found[2] == Lag(0, 0.0)


def test_store_that_is_not_there_is_a_transient_error(sync_shop):
    """A store that cannot be reached may be there again: the caller tries later."""
    away = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with client_of(sync_shop.url) as client, pytest.raises(StoreUnavailable):
        lag(client, CursorStore(away), NAME)


def test_kind_of_engine_must_fit():
    """A store of the other kind is refused with what goes with it, and so is one in memory."""
    ours = CursorStore(create_engine("sqlite://"))
    theirs = CursorStore(create_async_engine("sqlite+aiosqlite://"))
    for sentence, ask in {
        "async_lag": lambda: lag(None, theirs, NAME),
        "or use lag": lambda: asyncio.run(async_lag(None, ours, NAME)),
        "AsyncConsumer": lambda: Consumer(None, theirs, NAME).run(write_page),
        "in memory": lambda: Consumer(None, ours, NAME).run(write_page),
        "or use Consumer": lambda: asyncio.run(AsyncConsumer(None, ours, NAME).run(write_page)),
    }.items():
        with pytest.raises(ConfigurationError, match=sentence):
            ask()


def test_client_of_a_running_consumer_learns_nothing(sync_shop):
    """A client that a consumer reads with keeps the token that the consumer knows of."""
    with client_of(sync_shop.url) as client:
        client.discover()
        sync_shop.feed.token = "another"
        assert lag(client, sync_shop.store, NAME) == {0: Lag(0, 0.0)}
        with pytest.raises(TokenChanged):
            client.fetch(0, FIRST)


@pytest.mark.parametrize(
    ("before", "after", "numbers", "text"),
    [
        (7, 2, (5, 0), "About 5 events are read again: twice."),
        (2, 7, (0, 5), "About 5 events are left out, and never take effect."),
        (4, 4, (0, 0), "No event is read again or left out."),
        (None, 3, (0, 3), "About 3 events are left out, and never take effect."),
    ],
)
def test_events_between_cursors_are_counted(sqlite, before, after, numbers, text):
    """A move says how many events it repeats or leaves out."""
    with mounted(TableFeed(orders, data="data"), fill(sqlite)) as url, ConnectionPool() as pool:
        client = Client(url, pool)
        at = {None: None, 0: FIRST, 10: LAST}
        for count in {before, after} - {None}:
            at[count] = client.fetch(0, FIRST, limit=count).cursor
        known = {} if before is None else {0: at[before]}
        (move,) = moves = blocking(find_moves(client, known, {0: at[after]}))
        assert (move.again, move.left_out, move.exact) == (*numbers, True)
        assert consequence(moves, "twice.", "") == text


def test_nobody_counts_without_a_feed():
    """Without a feed the numbers are unknown, and the text says so."""
    moves = blocking(find_moves(None, {0: "1-3"}, {0: FIRST}))
    assert [(move.again, move.left_out) for move in moves] == [(None, None)]
    assert consequence(moves, "twice.", ", alas").startswith(
        "It is unknown how many events are read again or left out, alas. Where"
    )
    assert str(moves[0]) == "partition 0: 1-3 -> _first"
