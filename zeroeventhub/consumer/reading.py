"""What a consumer was asked to read."""

from collections.abc import Collection
from dataclasses import dataclass

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import TypeFilter

__all__ = ["Reading"]


@dataclass(frozen=True)
class Reading:
    """Hold what a consumer reads of a feed.

    Attributes:
        start: where a consumer that is new starts.
        partitions: the partitions to read; None for all.
        follow: whether to wait for more events at the head.
        limit: how many events to ask for in a page.
        types: the types of events to ask for; None for all.
        poll_interval: seconds between two looks at the head.
        attempts: how often a step is tried; None for no limit.
    """

    start: str
    partitions: Collection[int] | None
    follow: bool
    limit: int | None
    types: TypeFilter | None
    poll_interval: float
    attempts: int | None

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: an option is out of its range.
        """
        if not isinstance(self.types, TypeFilter | None):
            raise ConfigurationError(
                "types is a TypeFilter, such as TypeFilter(frozenset({'order.placed'}))."
            )
        if self.attempts is not None and self.attempts < 1:
            raise ConfigurationError("A consumer tries at least once: attempts is 1 or more.")
