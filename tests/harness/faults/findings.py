"""What was found: counts, and complaints that say what does it again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Findings", "naming"]


@dataclass
class Findings:
    """Add up what was found."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def compare(
        self,
        name: str,
        truth: Mapping[int, Sequence[int]],
        seen: Mapping[int, Sequence[int]],
        *beside: object,
    ) -> None:
        """Compare numbers of events with those that took effect, in their order."""
        wrong: Counter[str] = Counter()
        for each in truth.keys() | seen.keys():
            expected, found = truth.get(each, ()), seen.get(each, ())
            once = list(dict.fromkeys(found))
            wrong["lost"] += len(set(expected) - set(found))
            wrong["twice"] += len(found) - len(once)
            wrong["inverted"] += sum(one > other for one, other in pairwise(once))
            wrong["invented"] += len(set(found) - set(expected))
        self.counts["events"] += sum(map(len, truth.values()))
        self.counts += wrong
        if wrong.total():
            self.complaints.append(f"{name}: {dict(+wrong)} {beside or ''}")

    def add(self, other: "Findings") -> None:
        """Add what somebody else has found."""
        self.counts += other.counts
        self.complaints += other.complaints


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let every exception say what does it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"To do it again: {name}")
        raise
