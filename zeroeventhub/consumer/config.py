"""What a consumer was asked to be."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from zeroeventhub._follow.failures import Failures
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.cursors import CursorStore
from zeroeventhub.cursors.store import check_consumer_name
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event, TypeFilter

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Hold what a consumer reads, and how it applies that; see `Consumer` for each of these."""

    name: str
    store: CursorStore
    start: str
    partitions: Collection[int] | None
    follow: bool
    limit: int | None
    types: TypeFilter | None
    poll_interval: float
    attempts: int | None
    concurrency: int
    lanes: int
    lease: float
    failures: Failures
    key: Callable[[Event], str | None]
    identity: Callable[[Event], str | None]
    inbox: bool | None
    inbox_days: float
    observer: Observer
    register_progress: bool
    synchronous_commit: bool

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: an option is out of its range, or needs another.
        """
        check_consumer_name(self.name)
        if not isinstance(self.types, TypeFilter | None):
            raise ConfigurationError(
                "types is a TypeFilter, such as TypeFilter(frozenset({'order.placed'}))."
            )
        if self.attempts is not None and self.attempts < 1:
            raise ConfigurationError("A consumer tries at least once: attempts is 1 or more.")
        if self.concurrency < 1:
            raise ConfigurationError(
                "A consumer reads at least one partition: concurrency is 1 or more."
            )
        if self.lanes < 1:
            raise ConfigurationError("A partition has at least one lane: lanes is 1 or more.")
        if not 0 < self.lease < math.inf:
            raise ConfigurationError("A lease is a number of seconds above 0.")
        if not 0 < self.inbox_days < math.inf:
            raise ConfigurationError("An inbox keeps events for a number of days above 0.")
        if not self.synchronous_commit and self.store.engine.dialect.name != "postgresql":
            raise ConfigurationError("synchronous_commit=False is for a store in PostgreSQL.")
        if not callable(self.key):
            raise ConfigurationError(
                "key is a function that returns the key of an event, or None: lanes, and what is "
                "held back behind a dead letter, go by it."
            )
        if not callable(self.identity):
            raise ConfigurationError(
                "identity is a function that returns the id of an event, or None: the inbox goes "
                "by it."
            )
