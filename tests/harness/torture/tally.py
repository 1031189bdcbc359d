"""What a reader has seen, key by key: the next number of a key is always its last plus one."""

from collections import defaultdict
from collections.abc import Mapping

EXAMPLES = 3


class Tally:
    """Count the events of a reader, in memory for its keys and not for its events."""

    def __init__(self) -> None:
        self.events = 0
        self.twice = 0
        self.inverted = 0
        self.examples: list[str] = []
        self._last: dict[int, int] = {}
        self._missing: defaultdict[int, set[int]] = defaultdict(set)

    @property
    def is_wrong(self) -> bool:
        """Whether any event has not been the next of its key."""
        return bool(self.examples)

    def see(self, key: int, n: int) -> None:
        """Take an event into account."""
        self.events += 1
        last = self._last.get(key, 0)
        if n == last + 1:
            self._last[key] = n
            return
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"event {n} of key {key} came behind event {last}")
        if n > last:
            self._missing[key].update(range(last + 1, n))
            self._last[key] = n
        elif n in self._missing[key]:
            self._missing[key].remove(n)
            self.inverted += 1
        else:
            self.twice += 1

    def lost(self) -> int:
        """Count the events that were passed over and have not come since."""
        return sum(map(len, self._missing.values()))

    def ahead(self, truth: Mapping[int, int]) -> int:
        """Count the events that are committed and lie behind the last one seen of their key."""
        return sum(max(0, n - self._last.get(key, 0)) for key, n in truth.items())

    def invented(self, truth: Mapping[int, int]) -> int:
        """Count the events that were shown and have never been committed."""
        return sum(max(0, last - truth.get(key, 0)) for key, last in self._last.items())
