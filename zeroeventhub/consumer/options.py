"""What a consumer was asked to be."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from zeroeventhub._follow.failures import Failures
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.cursors import CursorStore
from zeroeventhub.cursors.store import check_consumer_name
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Hold how a consumer applies what it reads.

    Attributes:
        name: the consumer's name: its key in the store.
        store: keeps its cursors, in the database that holds the effects.
        concurrency: how many partitions are read beside each other at most.
        lanes: how many events of one partition are applied beside each other at most, with
            different keys.
        lease: seconds for which a partition is taken; renewed while it is read.
        failures: what happens with events that cannot be applied.
        key: the key of an event, whose events stay in order; None where it has none.
        identity: the id of an event, which is the same if it is published twice; None where it has
            none.
        inbox: whether events are remembered, to drop those that come twice; None: where the feed
            does not promise exactly once.
        inbox_days: how long they are remembered.
        observer: is told what happens.
        register_progress: whether the publisher is told what has been committed.
    """

    name: str
    store: CursorStore
    concurrency: int
    lanes: int
    lease: float
    failures: Failures
    key: Callable[[Event], str | None]
    identity: Callable[[Event], str | None]
    inbox: bool | None
    inbox_days: float
    observer: Observer
    register_progress: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: an option is out of its range, or needs another.
        """
        check_consumer_name(self.name)
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
