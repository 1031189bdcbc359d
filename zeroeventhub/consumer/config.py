"""The options of a consumer, and what it does with events that cannot be applied."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.cursor_store import CursorStore, check_consumer_name
from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event, TypeFilter

__all__ = ["Config", "Failures"]


@dataclass(frozen=True)
class Failures:
    """What to do with a page whose handler raises.

    Example:
        failures = Failures(tries=5, then="set-aside", hold_back=True)
        Consumer(client, store, "billing", failures=failures).run(apply)

    Attributes:
        tries: how often to try a page before it counts as failed; 1 or more.
        then: "halt" stops the partition; "set-aside" writes the failing events to the dead
            letters, in the transaction that moves the cursor, and continues. Each event is then
            applied separately; a handler of pages gets pages of one event.
        hold_back: whether to set aside later events of the same key after one that failed, so
            that the key's order is kept.
        at_most: how many dead letters a partition may have, failed and held back; the next one
            halts it. 1 or more.

    Raises:
        ConfigurationError: a value is out of its range, or two contradict each other.
    """

    tries: int = 3
    then: Literal["halt", "set-aside"] = "halt"
    hold_back: bool = False
    at_most: int = 1000

    def __post_init__(self) -> None:
        """Check the values."""
        if self.tries < 1:
            raise ConfigurationError("A page is tried at least once: tries is 1 or more.")
        if self.then not in {"halt", "set-aside"}:
            raise ConfigurationError(
                f'What fails can "halt" its partition or be "set-aside", not {self.then!r}.'
            )
        if self.at_most < 1:
            raise ConfigurationError(
                'Where events are "set-aside" there is room for one: at_most is 1 or more.'
            )
        if self.hold_back and self.then == "halt":
            raise ConfigurationError(
                "Nothing can be held back where a partition halts: hold_back goes with "
                'then="set-aside".'
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a consumer; `Consumer` documents each of them."""

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
        """Check the options; raise ConfigurationError if one is out of its range."""
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
        if not self.synchronous_commit and not database_of(self.store.engine).commits_without_disk:
            raise ConfigurationError("synchronous_commit=False is for a store in PostgreSQL.")
        if not callable(self.key):
            raise ConfigurationError(
                "key is a function that returns the key of an event, or None: lanes, and what is "
                "held back after a dead letter, go by it."
            )
        if not callable(self.identity):
            raise ConfigurationError(
                "identity is a function that returns the id of an event, or None: the inbox goes "
                "by it."
            )
