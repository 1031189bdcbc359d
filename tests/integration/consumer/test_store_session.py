"""What a consumer does in its store outside of pages: its start, its inbox and its leases."""

import time
from itertools import count

import pytest
from harness.deliveries import event, filled, halting, opened, write, write_page, write_page_async
from harness.engines import connected
from harness.statements import execute, scalars
from harness.stores import NAME, load
from harness.waiting import until
from sqlalchemy import NullPool, make_url, text
from sqlalchemy import event as listening
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from zeroeventhub import LAST, CursorStore
from zeroeventhub.errors import ConfigurationError

DAY = 86400.0


def test_inbox_forgets_what_is_too_old(shop):
    """A run forgets ids that are older than `inbox_days`, and keeps the others."""
    shop.feed.publish(*map(event, range(10)))
    shop.run(write_page, inbox=True)
    with shop.engine.begin() as connection:
        old = text("UPDATE zeroeventhub_inbox SET seen_at = :then WHERE digest < '8'")
        aged = connection.execute(old, {"then": time.time() - 3 * DAY}).rowcount
    assert 0 < aged < 10
    shop.run(write_page, inbox=True, inbox_days=2)
    assert scalars(shop.engine, "SELECT count(*) FROM zeroeventhub_inbox") == [10 - aged]


def test_start_is_first_last_or_a_cursor(shop):
    """A consumer without a cursor starts at its option `start`; one that has a cursor goes on."""
    filled(shop, 4, 1)
    shop.run(write_page, start=LAST)
    assert shop.landed() == []
    shop.feed.publish(event(4))
    shop.run(write_page, start=LAST)
    assert shop.landed() == [4]
    execute(shop.engine, shop.store.tables.cursors.delete())
    shop.run(write_page, start="3")
    assert shop.landed() == [4, 3, 4]


def test_cursor_is_of_the_partitions_of_its_process(shop):
    """A process that starts at a cursor sets none in partitions that another process reads."""
    filled(shop, 4, 2)
    shop.run(write_page, start="1", partitions=[0])
    shop.run(write_page, partitions=[1])
    assert shop.landed() == [2, 1, 3]


def test_last_holds_in_the_partitions_of_every_process(shop):
    """Each process with partitions of its own starts at LAST where the first one has set it."""
    filled(shop, 4, 2)
    for one in (0, 1):
        shop.run(write_page, start=LAST, partitions=[one])
    shop.feed.publish(event(4))
    shop.feed.publish(event(5), partition=1)
    for one in (0, 1):
        shop.run(write_page, start=LAST, partitions=[one])
    assert shop.landed() == [4, 5]


def test_store_without_tables_says_how_to_create_them(shop, caplog):
    """A consumer whose tables are not there names the function that creates them, and no more."""
    execute(shop.engine, "DROP TABLE zeroeventhub_leases")
    with pytest.raises(ConfigurationError, match="create_tables"):
        shop.run(write_page)
    assert [one.message for one in caplog.records if one.name == "zeroeventhub.consumer"] == []


PATIENCE = {
    "postgresql": {"options": "-c statement_timeout=200"},
    "mariadb": {"init_command": "SET max_statement_time = 0.2"},
}


@pytest.mark.parametrize("database", PATIENCE)
def test_consumer_outlives_the_deadline_of_its_statements(request, database):
    """A process waits for the page of one that stands still, however short a statement may take."""
    url = request.getfixturevalue(f"{database}_url")
    with opened(url) as shop, connected(url, **PATIENCE[database]) as engine:
        filled(shop, 4, 1)
        place = load(shop.store, 0)
        with shop.engine.connect() as frozen:
            shop.store.advance(frozen, NAME, 0, place, "1")
            shop.store = CursorStore(engine)
            running = shop.start()
            until(lambda: shop.observer["waited"] or running.error, "the consumer waits")
        shop.until_landed(4)
        running.stop()
        assert shop.landed() == [0, 1, 2, 3]


def test_consumer_works_through_asyncpg(postgresql_url):
    """A driver that does not count the rows of many claims partitions, and keeps an inbox."""
    with opened(postgresql_url, is_async=True) as shop:
        filled(shop)
        url = make_url(postgresql_url).set(drivername="postgresql+asyncpg")
        shop.async_engine = create_async_engine(url, poolclass=NullPool)
        shop.run(write_page_async, inbox=True, lanes=2, attempts=3)
        assert sorted(shop.landed()) == [*range(20)]


async def write_in_session(session: AsyncSession, page) -> None:
    """Write the effects of a page through an async session."""
    await session.run_sync(write, page.events)


@pytest.mark.parametrize("apply", [write_page_async, write_in_session])
def test_consumer_outlives_a_restart_that_asyncpg_notices(postgresql_url, apply):
    """Whatever step finds no server there is taken again, and no handler is blamed for it."""
    with opened(postgresql_url, is_async=True) as shop:
        filled(shop, 4, 1)
        url = make_url(postgresql_url).set(drivername="postgresql+asyncpg")
        shop.async_engine = create_async_engine(url, poolclass=NullPool)
        tries = count()

        @listening.listens_for(shop.async_engine.sync_engine, "do_connect")
        def refuse(_dialect, _record, _arguments, parameters):
            if next(tries) % 5 == 0:  # one goes on after three steps
                parameters.update(host="127.0.0.1", port=1)

        shop.run(apply, limit=1)
        assert shop.landed() == [0, 1, 2, 3]
        assert {*shop.observer["waited"]} == {(0, "StoreUnavailable"), (None, "StoreUnavailable")}
        assert shop.observer["failed"] == []


@pytest.mark.parametrize("transaction", [AsyncConnection, AsyncSession])
def test_connection_of_a_handler_is_not_the_store(sqlite_url, transaction):
    """A handler that cannot connect to something else has failed, and halts its partition."""

    async def apply(_: transaction, __) -> None:
        raise ConnectionRefusedError

    with opened(sqlite_url, is_async=True) as shop, halting(ConnectionRefusedError):
        filled(shop, 4, 1)
        shop.run(apply)
