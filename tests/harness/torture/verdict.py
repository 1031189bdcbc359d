"""What a round has shown: how much was written and read, and everything that was wrong."""

from collections import Counter
from dataclasses import dataclass, field

from harness.torture.crew import Report
from harness.torture.reader import Reader
from harness.torture.watched import WatchedFeed


@dataclass
class Verdict:
    """Judge a round.

    Attributes:
        events: how many were committed.
        transactions: how many transactions the writers committed.
        kinds: how many transactions of each kind came to their end.
        frozen: how often a process was stopped.
        counts: how many events were lost, twice, inverted, invented or hidden, how often a
            horizon went back, a feed fell silent or refused a cursor that it had given, each over
            all readers.
        complaints: the same in words.
    """

    events: int = 0
    transactions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    frozen: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def hear_writers(self, report: Report) -> None:
        """Take in what the writers tell."""
        self.transactions += report.transactions
        self.kinds += report.kinds
        self.complaints += report.failures

    def hear_feed(self, feed: WatchedFeed) -> None:
        """Take in what was seen of a feed object."""
        self._count(f"a feed of {feed.table}", "horizon back", len(feed.went_back), feed.went_back)
        self._count(f"a feed of {feed.table}", "silent", len(feed.fell_silent), feed.fell_silent)

    def hear_reader(self, reader: Reader, truth: dict[int, int]) -> None:
        """Take in what a reader has seen."""
        tally = reader.tally
        self._count(reader.name, "lost", tally.lost(), tally.examples)
        self._count(reader.name, "twice", tally.twice, tally.examples)
        self._count(reader.name, "inverted", tally.inverted, tally.examples)
        self._count(reader.name, "invented", tally.invented(truth))
        self._count(reader.name, "stuck", reader.stuck)
        self._count(reader.name, "diverged", reader.diverged)
        if reader.failure:
            self.complaints.append(f"{reader.name} failed with {reader.failure}")

    def _count(self, who: str, what: str, count: int, examples: list[str] = ()) -> None:
        if count:
            self.counts[what] += count
            self.complaints.append(f"{who}: {count} {what}" + "".join(f"; {e}" for e in examples))
