"""How a consumer reports its work: the hooks that telemetry implements, and its log."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from zeroeventhub.consumer.steps import Pause
from zeroeventhub.errors import Halted, LeaseLost, TokenChanged, ZeroEventHubError
from zeroeventhub.protocol import Event

__all__ = ["Observer", "RunLog"]

_log = logging.getLogger("zeroeventhub.consumer")


class Observer:
    """Hooks of a consumer's work; every method does nothing unless a subclass overrides it.

    The methods are called in the thread or task that does the work. They must not raise, and must
    not take long.

    Example:
        class Counting(Observer):
            def committed(self, consumer, partition, events):
                print(f"{consumer} applied {events} events of partition {partition}")

        Consumer(client, store, "billing", observer=Counting()).run(apply)
    """

    def fetched(self, consumer: str, partition: int, events: int, seconds: float) -> None:
        """See a page that was fetched.

        Args:
            consumer: the consumer's name.
            partition: the partition that was read.
            events: how many events the page has.
            seconds: how long the feed took to answer with it.
        """

    def applying(
        self,
        consumer: str,  # noqa: ARG002 - subclasses want it
        partition: int,  # noqa: ARG002 - subclasses want it
        events: Sequence[Event],  # noqa: ARG002 - subclasses want it
    ) -> AbstractContextManager[None]:
        """Give what to enter around the transaction that applies a page.

        Args:
            consumer: the consumer's name.
            partition: the partition the page is of.
            events: the events of the page.
        """
        return nullcontext()

    def committed(self, consumer: str, partition: int, events: int) -> None:
        """See a page that was committed.

        Args:
            consumer: the consumer's name.
            partition: the partition the page is of.
            events: how many events were committed.
        """

    def failed(self, consumer: str, partition: int, error: Exception, attempt: int) -> None:
        """See the application of a page raise.

        Args:
            consumer: the consumer's name.
            partition: the partition the page is of.
            error: what was raised.
            attempt: which try it was, from 1.
        """

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:
        """See dead letters that were committed.

        Args:
            consumer: the consumer's name.
            partition: the partition the events are of.
            events: how many events were set aside because their handler raised.
            held: how many events were held back after an earlier dead letter of their key.
        """

    def waited(
        self, consumer: str, partition: int | None, error: Exception, seconds: float
    ) -> None:
        """See the consumer back off before it tries again.

        Args:
            consumer: the consumer's name.
            partition: the partition it waits with; None when it is no single partition's wait.
            error: the error that it waits after.
            seconds: how long it waits.
        """

    def fenced(self, consumer: str, partition: int) -> None:
        """See a commit refused because another process has taken over the partition.

        Args:
            consumer: the consumer's name.
            partition: the partition.
        """

    def halted(self, consumer: str, partition: int, error: Exception) -> None:
        """See a partition halted.

        Args:
            consumer: the consumer's name.
            partition: the partition that stays where it is.
            error: why it halted.
        """

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        """See which partitions this process holds by lease now.

        Args:
            consumer: the consumer's name.
            partitions: the partitions held, all of them.
        """

    def duplicate(self, consumer: str, partition: int, events: int) -> None:
        """See events that the inbox dropped because they were applied before.

        Args:
            consumer: the consumer's name.
            partition: the partition the events are of.
            events: how many were dropped.
        """


class RunLog:
    """Log what happens, without data of events and without texts that may hold them.

    Args:
        name: the consumer's.
        observer: sees the same.
    """

    def __init__(self, name: str, observer: Observer) -> None:
        self._name = name
        self._observer = observer

    def waits(self, pause: Pause, partition: int | None = None) -> None:
        """Log a pause, if it is for an error; what a handler raised is named by its kind."""
        error = pause.reason
        if error is None:
            return
        _log.warning(
            "%s Trying again in %.1f s.",
            _sentence(error),
            pause.seconds,
            extra=self._where(partition),
        )
        self._observer.waited(self._name, partition, error, pause.seconds)

    def fenced(self, partition: int, error: Exception) -> None:
        """Log a commit that was refused."""
        _log.info("%s", error, extra=self._where(partition))
        self._observer.fenced(self._name, partition)

    def ended(self, partition: int, error: Exception) -> None:
        """Log an error that ended the reading of a partition."""
        if isinstance(error, TokenChanged | LeaseLost):
            _log.info("%s", error, extra=self._where(partition))
            return
        _log.error("%s", _sentence(error), extra=self._where(partition))
        if isinstance(error, Halted):
            self._observer.halted(self._name, partition, error)

    def holds(self, partitions: frozenset[int]) -> None:
        """Log which leases are held now."""
        _log.debug("Leases are held now: %s", sorted(partitions), extra=self._where(None))
        self._observer.held(self._name, partitions)

    def could_not_report(self, error: Exception) -> None:
        """Log that progress could not be reported to the publisher."""
        _log.warning(
            "The consumer's progress was not reported to the publisher: %s",
            _sentence(error),
            extra=self._where(None),
        )

    def keeps_leases(self, error: Exception) -> None:
        """Log that leases could not be given back, and so have to run out."""
        _log.warning(
            "The leases could not be given back, and run out by themselves: %s",
            _sentence(error),
            extra=self._where(None),
        )

    def _where(self, partition: int | None) -> dict[str, Any]:
        return {"consumer": self._name, "partition": partition}


def _sentence(error: Exception) -> str:
    """Describe an error; for one of a handler or a driver, only by its class: it may hold data."""
    if isinstance(error, ZeroEventHubError):
        text = str(error)
        return text if text.endswith((".", "!", "?")) else f"{text}."
    return f"{type(error).__name__} was raised."
