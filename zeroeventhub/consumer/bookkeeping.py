"""What a consumer's steps do in its database, without applying anything."""

import math
import time
from typing import Any

from sqlalchemy import Connection

from zeroeventhub._follow import (
    Advance,
    Claim,
    End,
    Inherit,
    Load,
    Place,
    Release,
    Step,
)
from zeroeventhub.consumer.options import Options
from zeroeventhub.consumer.reading import Reading
from zeroeventhub.protocol import FIRST

__all__ = ["Bookkeeping"]

PRUNING_INTERVAL = 3600.0
"""Seconds between two looks for rows of the inbox that are too old."""


class Bookkeeping:
    """Carry out the steps that read or write cursors and leases, each in an open transaction.

    Args:
        options: how the consumer applies.
        reading: what it reads.
        owner: the name that leases are taken in; None for a consumer that reads without.
    """

    def __init__(self, options: Options, reading: Reading, owner: str | None = None) -> None:
        self._options = options
        self._store = options.store
        self._name = options.name
        self._reading = reading
        self._owner = owner
        self._pruned = -math.inf

    def carry_out(self, connection: Connection, step: Step) -> Any:
        """Carry a step out; return its result."""
        match step:
            case Inherit():
                self._store.inherit(connection, self._name, step.heirs, step.remaining)
            case Load():
                return self._load(connection, step)
            case Advance():
                self._store.advance(connection, self._name, step.partition, step.place, step.new)
            case End():
                end = self._store.end(self._name, step.partition, step.place)
                self._store.confirm(connection.execute(end), self._name, step.partition)
            case Claim() if self._owner is not None:
                return self._store.leases.claim(
                    connection,
                    self._name,
                    self._owner,
                    step.wanted,
                    seconds=self._options.lease,
                    share=self._reading.partitions is None,
                )
            case Release() if self._owner is not None:
                self._store.leases.release(connection, self._name, self._owner, step.partitions)
        return None

    def is_pruning_due(self) -> bool:
        """Tell whether the inbox was not pruned for long; it counts as pruned from then on."""
        due = time.monotonic() - self._pruned >= PRUNING_INTERVAL
        if due:
            self._pruned = time.monotonic()
        return due

    def prune(self, connection: Connection) -> None:
        """Forget events that came too long ago to come again."""
        self._store.inbox.prune(connection, self._name, days=self._options.inbox_days)

    def leave(self, connection: Connection) -> None:
        """Give all leases back."""
        if self._owner is not None:
            self._store.leases.leave(connection, self._name, self._owner)

    def _load(self, connection: Connection, step: Load) -> Place:
        if self._reading.start != FIRST:
            self._store.begin(connection, self._name, step.among, self._reading.start)
        if self._owner is None:
            return self._store.load(connection, self._name, step.partition)
        return self._store.enter(
            connection, self._name, step.partition, self._owner, after=step.after
        )
