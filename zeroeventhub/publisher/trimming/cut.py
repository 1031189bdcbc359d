"""Up to where somebody wants a feed trimmed."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, Place
from zeroeventhub.publisher.progress.registry import CLOCKS

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Manifest

__all__ = ["SILENCE", "Cut"]


SILENCE = timedelta(days=7)
"""For how long a consumer is waited for that is not heard of."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Say which events are to go: those for which all that is given holds.

    Attributes:
        older_than: they happened so long ago, and all before them did.
        below: they lie below this position, or before this cursor.
        sealed: they lie at this position or below, which is what has been kept elsewhere; or what
            tells it.
        silence: for how long a consumer that registers its progress may not have been heard of,
            and is waited for all the same.
        kept: what the feed's archive has; None where it has none.

    Raises:
        ConfigurationError: nothing is given, or it cannot be.
    """

    older_than: timedelta | None = None
    below: int | str | None = None
    sealed: int | Callable[[], int] | None = None
    silence: timedelta = SILENCE
    kept: "Manifest | None" = None

    def __post_init__(self) -> None:
        """Refuse what says nothing."""
        if self.older_than is None and self.below is None and self.sealed is None:
            raise ConfigurationError("Say what to trim: older_than, below or sealed.")
        if self.older_than is not None and self.older_than < timedelta(0):
            raise ConfigurationError("No event is older than something that is still to come.")
        if self.silence.total_seconds() < CLOCKS:
            raise ConfigurationError(
                f"Clocks may be {CLOCKS:.0f} seconds apart, so a silence is no shorter than that: "
                "forget the consumers that are not to be waited for."
            )

    @property
    def until(self) -> int:
        """Return the highest position at which an event may go, whatever its time."""
        until = HIGHEST_POSITION
        if isinstance(self.below, str):
            until = Place.of(self.below).position
        elif self.below is not None:
            until = self.below - 1
        if self.sealed is not None:
            until = min(until, self.sealed() if callable(self.sealed) else self.sealed)
        if self.kept is not None:
            until = min(until, self.kept.sealed)
        return max(until, 0)
