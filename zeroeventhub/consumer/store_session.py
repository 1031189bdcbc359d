"""What a consumer does in its store outside of pages, each step in a transaction of its own."""

import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import Advance, Claim, End, Inherit, Load, Place, Release, Step
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.databases.error_codes import reaching_store
from zeroeventhub.protocol import FIRST

__all__ = ["StoreSteps", "in_store"]

_Result = TypeVar("_Result")

PRUNING_INTERVAL = 3600.0
"""Seconds between two looks for rows of the inbox that are too old."""


async def in_store(store: CursorStore, write: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function with a connection to a store, in a transaction of its own.

    Args:
        store: made with a sync or an async engine.
        write: the function.
        arguments: what it is called with, after the connection.

    Raises:
        StoreUnavailable: the store did not answer, or asked to try again.
        ConfigurationError: its tables are not there.
    """
    try:
        return await _transact(store, write, *arguments)
    except DatabaseError:
        await _transact(store, store.check_tables)
        raise


async def _transact(store: CursorStore, write: Callable[..., _Result], *arguments: Any) -> _Result:
    engine = store.engine
    with reaching_store():
        if isinstance(engine, Engine):
            with engine.begin() as connection:
                return write(connection, *arguments)
        async with engine.begin() as connection:
            return await connection.run_sync(write, *arguments)


class StoreSteps:
    """Carry out the steps that read or write cursors and leases.

    Args:
        config: the consumer's.
        owner: the name that leases are taken in; None for a consumer that reads without.
    """

    def __init__(self, config: Config, owner: str | None = None) -> None:
        self._config = config
        self._store = config.store
        self._name = config.name
        self._owner = owner
        self._pruned = -math.inf

    def carry_out(self, connection: Connection, step: Step) -> Any:
        """Carry a step out in an open transaction; return its result."""
        match step:
            case Inherit():
                self._store.inherit(connection, self._name, step.heirs, step.remaining)
            case Load():
                return self._load(connection, step)
            case Advance():
                self._store.advance(connection, self._name, step.partition, step.place, step.new)
            case End():
                self._store.end(connection, self._name, step.partition, step.place)
            case Claim() if self._owner is not None:
                return self._store.leases.claim(
                    connection,
                    self._name,
                    self._owner,
                    step.wanted,
                    seconds=self._config.lease,
                    share=self._config.partitions is None,
                )
            case Release() if self._owner is not None:
                self._store.leases.release(connection, self._name, self._owner, step.partitions)
        return None

    def is_pruning_due(self) -> bool:
        """Return whether the inbox was not pruned for long; it counts as pruned from then on."""
        due = time.monotonic() - self._pruned >= PRUNING_INTERVAL
        if due:
            self._pruned = time.monotonic()
        return due

    def prune(self, connection: Connection) -> None:
        """Forget events that came too long ago to come again."""
        self._store.inbox.prune(connection, self._name, days=self._config.inbox_days)

    def leave(self, connection: Connection) -> None:
        """Give all leases back."""
        if self._owner is not None:
            self._store.leases.leave(connection, self._name, self._owner)

    def _load(self, connection: Connection, step: Load) -> Place:
        if self._config.start != FIRST:
            self._store.begin(connection, self._name, step.among, self._config.start)
        if self._owner is None:
            return self._store.load(connection, self._name, step.partition)
        return self._store.enter(
            connection, self._name, step.partition, self._owner, after=step.after
        )
