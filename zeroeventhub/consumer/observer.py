"""What a consumer tells about its work: the hooks that telemetry implements."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from zeroeventhub.protocol import Event

__all__ = ["Observer"]


class Observer:
    """Watch a consumer work; every method does nothing until a subclass says otherwise.

    The methods are called in the thread or task that does the work. They must not raise, and must
    not take long.
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
            held: how many events were held back behind an earlier dead letter of their key.
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
        """See a commit refused because another process has gone on with the partition.

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
