"""What the targets of a relay have in common: what failed, and what needs no second delivery."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import iscoroutine
from typing import NoReturn, Self, TypeAlias

from sqlalchemy import Connection

from zeroeventhub.consumer.page import PendingPage
from zeroeventhub.errors import ConfigurationError, StoreUnavailable, ZeroEventHubError
from zeroeventhub.protocol import Event

Choose: TypeAlias = Callable[[Event], str | None]
"""Return the key or the id of an event; None if it has none."""


class TargetUnavailable(StoreUnavailable):
    """Say that the target did not answer, or asked for a retry.

    A consumer takes it for an outage of what it writes to, which is no fault of the event: it rolls
    back, waits, and delivers the page again.
    """


class EventRefused(ZeroEventHubError):
    """Say that the target answers, and does not take this event."""


class Target(ABC):
    """Deliver the events of pages, at least once, and those of one key in order.

    Example:
        with WebhookTarget("https://billing.example/hook", secrets=[secret]) as target:
            Consumer(client, store, "hook").run(target.apply)

    The page's cursor is committed after its delivery. So a process that is killed in between
    delivers the page again when it is started. As long as the process lives, a page that comes
    again is delivered without what the target has taken.
    """

    def __init__(self) -> None:
        self._delivered: dict[int, tuple[str, dict[int, Event]]] = {}
        self._delivered_lock = threading.Lock()  # lanes of a page are delivered at a time

    def __enter__(self) -> Self:
        """Return the target."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - not every target has something to close
        """Close what the target has opened."""

    def apply(self, connection: Connection, page: PendingPage) -> None:  # noqa: ARG002 - of `run`
        """Deliver a page; for `Consumer.run`.

        Raises:
            TargetUnavailable: the target did not answer, or asked for a retry.
            EventRefused: the target does not take an event of the page.
        """
        where, cursor = page.partition, page.previous_cursor
        with self._delivered_lock:
            before, known = self._delivered.get(where, ("", {}))
            if before != cursor:
                known = {}
                self._delivered[where] = cursor, known
        fresh: list[Event] = []
        try:
            # A page that failed, or was not committed, comes again with the same objects.
            events = [event for event in page.events if id(event) not in known]
            if events:
                deliver: Callable[..., object] = self.deliver
                result = deliver(page.partition, events, fresh.append)
                if result is not None:
                    _refuse(result)
        finally:
            with self._delivered_lock:
                known.update((id(event), event) for event in fresh)

    @abstractmethod
    def deliver(
        self, partition: int, events: Sequence[Event], delivered: Callable[[Event], object]
    ) -> None:
        """Deliver events of a partition, those of one key in order.

        Args:
            partition: the partition of the feed.
            events: its events, in order.
            delivered: is called with each event that the target has taken, in any thread.

        Raises:
            TargetUnavailable: the target did not answer, or asked for a retry.
            EventRefused: the target does not take one of the events.
        """


def _refuse(result: object) -> NoReturn:
    """Refuse what `deliver` has returned: work that would never run, or a failure that is lost."""
    if iscoroutine(result):
        result.close()
    raise ConfigurationError(
        f"The target's `deliver` has returned {type(result).__name__}, so that nothing says what "
        "it has delivered: let it return nothing, and raise an error for what it has not. It "
        "cannot be `async def` or a generator."
    )
