"""What trimming would take, before it does."""

import time
from dataclasses import dataclass, field
from datetime import datetime

__all__ = ["TrimPlan"]


@dataclass(frozen=True, kw_only=True)
class TrimPlan:
    """Say which events would be trimmed.

    Attributes:
        events: how many; at least so many if not `exact`.
        exact: whether they were all counted.
        first: the position of the first one; None if nothing would go.
        until: the position of the last one; that of the mark if nothing would go.
        oldest: when the first one happened; None where the feed does not know.
        newest: when the last one did.
        wanted: up to where more would go, were it not held back.
        held_back: by what, a sentence each.
        made_at: when it was made, in seconds since 1970.
    """

    events: int
    exact: bool
    first: int | None
    until: int
    oldest: datetime | None
    newest: datetime | None
    wanted: int
    held_back: tuple[str, ...] = ()
    made_at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        """Describe it to people."""
        if self.first is None:
            lines = [f"Nothing to trim: the mark is at position {self.until}."]
        else:
            count = f"{self.events:,}{'' if self.exact else ' or more'}"
            lines = [f"{count} events would go, positions {self.first} to {self.until}"]
            if self.oldest is not None and self.newest is not None:
                lines[0] += f", of {_moment(self.oldest)} to {_moment(self.newest)}"
            lines[0] += "."
        return "\n".join([*lines, *self.held_back])


def _moment(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")
