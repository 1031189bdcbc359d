"""What a feed says of the events that it keeps of a key."""

from dataclasses import dataclass
from datetime import timedelta

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.mapping import Expression

__all__ = ["Compaction"]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Keep the last event of each key, and let those before it go.

    Attributes:
        tombstone: a column or an expression that is true for an event which says that its key is
            no more; None where no event does.
        keep_tombstones: how long such an event stays, by the feed's `time`: whoever has been away
            for longer does not hear that the key is no more.

    Raises:
        ConfigurationError: the time is below zero.
    """

    tombstone: Expression | None = None
    keep_tombstones: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.keep_tombstones < timedelta(0):
            raise ConfigurationError("Tombstones are kept for some time, and not for less than 0.")
