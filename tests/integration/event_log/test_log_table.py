"""The table of a log: appends that may be repeated, and what it refuses."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import sqlalchemy as sa
from harness.appended import append, batch, ids, made, published, rows
from harness.statements import execute
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import Client, EventLog, NewEvent
from zeroeventhub.errors import ConfigurationError, StoreUnavailable


@pytest.mark.parametrize("size", [1, 5])
def test_repeated_append_changes_nothing(engine, log, size):
    """A batch that is appended again, whole or in part, is stored once."""
    append(engine, log, batch(size))
    before = rows(engine, log)
    append(engine, log, batch(size))
    assert rows(engine, log) == before
    append(engine, log, batch(size + 3)[::-1])
    assert sorted(ids(engine, log)) == [f"e{n}" for n in range(size + 3)]
    assert rows(engine, log)[:size] == before
    with engine.begin() as connection:
        log.append(connection, batch(size, first=100))
        log.append(connection, batch(size, first=100))
        log.append(connection, batch(size))
        log.append(connection, [*batch(2, first=200), *batch(2, first=200)])
    assert len(rows(engine, log)) == size + 3 + size + 2


def test_long_batch_that_comes_again_in_part_is_there_once(any_engine):
    """Known events are recognized in batches longer than one lookup."""
    log = made(any_engine)
    append(any_engine, log, batch(700))
    append(any_engine, log, batch(1_300)[::-1])
    append(any_engine, log, batch(1_301))
    assert sorted(ids(any_engine, log)) == sorted(f"e{n}" for n in range(1_301))


def test_refusal_of_the_database_stays_what_it_is(engine):
    """A violated constraint is the database's error; only a duplicate id may be ignored."""
    only_one = sa.UniqueConstraint("type", name="one_of_a_kind")
    log = made(engine, sa.CheckConstraint("type <> 'bad'"), only_one)
    append(engine, log, [NewEvent("a", {}, id="e0")])
    to_a_key = partial(log.append_to, key="ada", expected_version=0)
    for kinds, error, ways in (
        (["bad"], DBAPIError, (log.append, to_a_key)),
        (["bad", "good"], DBAPIError, (log.append, to_a_key)),
        (["good", "bad"], DBAPIError, (log.append, to_a_key)),
        (["a"], StoreUnavailable, (log.append,)),
        (["b", "a"], StoreUnavailable, (log.append,)),
        (["b", "b"], StoreUnavailable, (log.append,)),
    ):
        for way in ways:
            with pytest.raises(error), engine.begin() as connection:
                way(connection, events=[NewEvent(kind, {}) for kind in kinds])
            assert ids(engine, log) == ["e0"]


def test_append_is_part_of_the_callers_transaction(engine, log):
    """If the caller rolls back, nothing is appended."""
    for open_one in (engine.connect, partial(Session, engine)):
        with open_one() as transaction:
            log.append(transaction, batch(3))
            log.append(transaction, batch(1, first=5))
            transaction.rollback()
            assert rows(engine, log) == []
    with Session(engine) as session:
        log.append(session, batch(1))
        session.commit()
    assert ids(engine, log) == ["e0"]


@pytest.mark.anyio
async def test_append_by_an_async_driver_without_copy(postgresql):
    """A driver without psycopg's COPY appends a batch once."""
    log = made(postgresql)
    own = create_async_engine(postgresql.url.set(drivername="postgresql+asyncpg"))
    for size in (1, 5, 7):
        async with own.begin() as connection:
            await connection.run_sync(log.append, batch(size))
    await own.dispose()
    assert ids(postgresql, log) == [f"e{number}" for number in range(7)]


@pytest.mark.parametrize("size", [1, 20])
def test_one_batch_appended_by_many_at_once_is_there_once(engine, log, size):
    """Producers that append the same batch at once store it once."""

    def produce(order):
        for _ in range(50):
            with suppress(StoreUnavailable):
                append(engine, log, batch(size)[::order])
                return
        pytest.fail("a producer gave up")

    with ThreadPoolExecutor(4) as producers:
        for producer in [producers.submit(produce, order) for order in (1, -1, 1, -1)]:
            producer.result(60)
    assert sorted(ids(engine, log)) == sorted(f"e{n}" for n in range(size))
    assert sum(map(len, published(log.feed().bind(engine)).values())) == size


def test_database_that_is_locked_asks_to_try_again(sqlite):
    """A producer gets a transient error while another writer has locked SQLite."""
    log = made(sqlite)
    impatient = sa.create_engine(sqlite.url, connect_args={"timeout": 0.01})
    with sqlite.begin() as connection:
        log.append(connection, batch(1))
        with pytest.raises(StoreUnavailable, match="database of the log"):
            append(impatient, log, batch(1, first=1))
    append(impatient, log, batch(1, first=1))
    impatient.dispose()
    assert len(rows(sqlite, log)) == 2


def test_log_in_a_schema(postgresql):
    """A log works in a schema and under any name; a gated one refuses explicit positions."""
    execute(postgresql, 'CREATE SCHEMA "My shop"')
    metadata = sa.MetaData()
    log = EventLog(metadata, "Order's log", partitions=2, schema="My shop", ordering="gated")
    metadata.create_all(postgresql)
    for size in (1, 5, 5):
        append(postgresql, log, batch(size))
    found = published(log.feed().bind(postgresql), 2)
    assert sum(map(len, found.values())) == 5
    with pytest.raises(DBAPIError, match="GENERATED ALWAYS"), postgresql.begin() as connection:
        values = {"position": 1, "partition": 0, "id": "x", "type": "t", "data": {}}
        connection.execute(sa.insert(log.table), values)


def test_what_is_no_event_or_no_transaction_is_refused(sqlite):
    """A log refuses other objects than events and transactions, and a bad number of partitions."""
    for partitions in (0, 32769):
        with pytest.raises(ConfigurationError):
            EventLog(sa.MetaData(), "orders", partitions=partitions)
    with pytest.raises(ConfigurationError, match="joins your MetaData"):
        EventLog(sqlite, "orders")
    log = made(sqlite)
    with pytest.raises(ConfigurationError, match="NewEvent"):
        append(sqlite, log, [{"type": "placed"}])
    with pytest.raises(ConfigurationError, match="in a list"):
        append(sqlite, log, NewEvent("x", {}))
    with pytest.raises(ConfigurationError, match="in a list"):
        Client("https://shop.example/orders").append(NewEvent("x", {}))
    with pytest.raises(ConfigurationError, match="Engine is not a Connection"):
        log.append(sqlite, batch(1))
    with pytest.raises(ConfigurationError, match="Engine is not a Connection"):
        log.append_to(sqlite, "ada", [NewEvent("x", {})], expected_version=0)
    for engine in (
        sqlite.execution_options(isolation_level="AUTOCOMMIT"),
        sa.create_engine(sqlite.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool),
        sa.create_engine(sqlite.url, connect_args={"isolation_level": None}, poolclass=sa.NullPool),
    ):
        refused = pytest.raises(ConfigurationError, match="AUTOCOMMIT")
        with engine.connect() as connection, refused:
            log.append(connection, batch(2))
