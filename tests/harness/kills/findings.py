"""What was done to consumers and their databases, and what was found."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Findings:
    """Say how it went.

    Attributes:
        deeds: what was done, and how often.
        events: how many events took effect or were set aside.
        complaints: whatever was wrong.
    """

    deeds: Counter[str] = field(default_factory=Counter)
    events: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Count what has been found elsewhere as well."""
        self.deeds += other.deeds
        self.events += other.events
        self.complaints += other.complaints
