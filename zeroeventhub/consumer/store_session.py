"""What a consumer does in its store outside of pages, each step in a transaction of its own."""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import (
    Advance,
    Claim,
    End,
    Inherit,
    Load,
    RecordFailure,
    Release,
    Step,
)
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.databases.error_codes import call_in_store, is_late, translate_store_errors
from zeroeventhub.databases.transactions import COMMITS_EACH, driver_commits_each
from zeroeventhub.errors import ConfigurationError, StoreUnavailable
from zeroeventhub.protocol import FIRST

_Result = TypeVar("_Result")


async def in_store(store: CursorStore, write: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function with a connection to a store and arguments, in a transaction of its own.

    Raises:
        StoreUnavailable: the store did not answer, or reported a transient error.
        ConfigurationError: its tables do not exist.
    """
    try:
        return await _transact(store, write, *arguments)
    except DatabaseError as error:
        if is_late(error):
            # Each statement is quick, unless it waits for a lock that some transaction keeps.
            raise StoreUnavailable(
                "A statement took longer than the consumer's database allows it to."
            ) from error
        await _transact(store, store.check_tables)
        raise


async def expect_transactions(store: CursorStore) -> None:
    """Raise ConfigurationError if the driver of a store's engine commits each statement by itself.

    Raises:
        StoreUnavailable: as `in_store`.
    """
    if await in_store(store, driver_commits_each):
        raise ConfigurationError(COMMITS_EACH)


async def _transact(store: CursorStore, write: Callable[..., _Result], *arguments: Any) -> _Result:
    engine = store.engine
    with translate_store_errors():
        if isinstance(engine, Engine):
            with engine.begin() as connection:
                return write(connection, *arguments)
        return await call_in_store(engine.begin(), write, *arguments)


def carry_out(connection: Connection, config: Config, owner: str, step: Step) -> Any:
    """Carry out a step that reads or writes cursors and leases; return its result.

    The `owner` in leases is this process; it is empty for a consumer that reads without leases.
    """
    store, name = config.store, config.name
    match step:
        case Inherit():
            store.inherit(connection, name, step.heirs, step.remaining)
        case Load():
            if config.start != FIRST:
                store.begin(connection, name, step.among, config.start)
            if not owner:
                return store.load(connection, name, step.partition)
            return store.enter(connection, name, step.partition, owner, after=step.after)
        case Advance():
            store.advance(connection, name, step.partition, step.place, step.new)
            store.lanes.expect_none(connection, name, step.partition, step.place)
        case End():
            store.end(connection, name, step.partition, step.place)
        case RecordFailure():
            store.record_failure(
                connection,
                name,
                step.partition,
                step.place,
                error=step.error,
                tries=step.tries,
                pause=step.pause,
            )
        case Claim():
            share, seconds = config.partitions is None, config.lease
            return store.leases.claim(
                connection, name, owner, step.wanted, seconds=seconds, share=share
            )
        case Release():
            store.leases.release(connection, name, owner, step.partitions)
    return None
