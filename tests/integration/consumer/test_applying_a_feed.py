"""What `run` does with a feed's events, all in one: models, lanes, dead letters, an inbox."""

import asyncio

import httpx
import pytest
from harness.deliveries import NAME, Poison, effects
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    CursorStore,
    Failures,
    TableFeed,
    feed_routes,
)
from zeroeventhub.errors import ConfigurationError

EVENTS = 60
KEYS = 5


class Order(dict):
    """Is nothing that an event can be decoded as."""


@pytest.fixture
def address(sqlite):
    """The address of a feed of orders."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, EVENTS, partitions=2)
    feed = TableFeed(orders, partition="part", partitions=2, data="data")
    with serving(Starlette(routes=feed_routes("/orders", feed, sqlite))) as url:
        yield f"{url}/orders"


def key(event):
    """Put a few events under each key."""
    return str(event.data["n"] % KEYS)


def identity(event):
    """Take the number for an id."""
    return str(event.data["n"])


def run(shop, address, apply):
    """Run a consumer to the head of the feed, with everything."""
    options = {
        "follow": False,
        "limit": 13,
        "lanes": 3,
        "key": key,
        "identity": identity,
        "inbox": True,
        "failures": Failures(tries=1, then="set-aside", hold_back=True),
        "observer": shop.observer,
    }
    if not shop.is_async:
        with httpx.Client() as session:
            Consumer(Client(address, session), shop.store, NAME, **options).run(apply)
        return

    async def run_async():
        store = CursorStore(shop.async_engine)
        async with httpx.AsyncClient() as session:
            await AsyncConsumer(AsyncClient(address, session), store, NAME, **options).run(apply)

    asyncio.run(run_async())


def test_everything_takes_effect_once_at_last(shop, address):
    """What is set aside waits with its key, and follows in order when it is marked."""
    poison = {7}

    def apply(connection: Connection, event: dict[str, int]) -> None:
        """Write the event, but not all of them."""
        connection.execute(effects.insert().values(n=event["n"]))
        if event["n"] in poison:
            raise Poison

    async def apply_async(session: AsyncSession, event: dict[str, int]) -> None:
        """Do the same."""
        await session.run_sync(lambda inner: apply(inner.connection(), event))

    chosen = apply_async if shop.is_async else apply
    run(shop, address, chosen)
    held = [n for n in range(EVENTS) if n % KEYS == 7 % KEYS and n != 7]
    landed = set(shop.landed())
    # Of those in the other partition, any number may have been applied before it failed.
    odd = {n for n in held if n % 2}
    assert not landed & odd
    assert landed | {7} | set(held) == set(range(EVENTS))
    assert {7} | odd <= {n for n, *_ in shop.letters()}
    poison.clear()
    shop.retry()
    run(shop, address, chosen)
    assert sorted(shop.landed()) == list(range(EVENTS))
    assert shop.letters() == []
    for number in range(2 * KEYS):
        mine = [n for n in shop.landed() if n % (2 * KEYS) == number]
        assert mine == sorted(mine)


def test_what_cannot_be_given_is_refused_before_anything_is_read(sync_shop):
    """An annotation that cannot be met is told at once, without a feed."""

    def apply(session: Session, order: Order) -> None:
        """Ask for what is no model."""

    with pytest.raises(Exception, match="asks to be given Order"):
        run(sync_shop, "http://127.0.0.1:1/nowhere", apply)


@pytest.mark.parametrize("is_read_first", [False, True])
def test_page_that_lanes_have_begun_is_not_read_one_by_one(sync_shop, address, is_read_first):
    """Whoever iterates knows nothing of lanes, and would apply again what they have applied."""
    store = sync_shop.store

    def begin():
        with store.engine.begin() as connection:
            place = store.load(connection, NAME, 0)
            progress = {"lane": 1, "lanes": 2, "before": 0, "after": 3}
            store.lanes.advance(connection, NAME, 0, place, **progress)

    with httpx.Client() as session:
        consumer = Consumer(Client(address, session), store, NAME, follow=False)
        if not is_read_first:
            begin()
        with pytest.raises(ConfigurationError, match="run"):
            page = next(iter(consumer))
            if is_read_first:
                begin()
            with store.engine.begin() as connection:
                page.commit(connection)
    with store.engine.connect() as connection:
        assert store.cursors(connection, NAME)[0] == FIRST
