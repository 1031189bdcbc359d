"""Runs, how they take turns, and what is made of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROCESSES = ("publisher", "client", "JVM", "workers", "database")
"""Whose time is told, in the order of the columns."""

Figure = list[float]
"""A median, and the smallest and the largest value."""


@dataclass(frozen=True)
class Run:
    """Hold what one run of something took.

    Attributes:
        events: how many there were.
        seconds: how long it took.
        cpu: seconds of processors, user and system, by process.
        more: what else was noted.
    """

    events: int
    seconds: float
    cpu: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Return the events of a second."""
        return self.events / self.seconds

    def cpu_per_million(self, process: str) -> float:
        """Return the seconds of processors that a million events cost a process."""
        return self.cpu[process] / self.events * 1_000_000


Way = Callable[[], Run]


def rounds(ways: Mapping[str, Way], count: int, tell: Callable[[str], object]) -> dict[str, Any]:
    """Run ways in turn, so that all have the machine in the same moods.

    Args:
        ways: what to run, by its name.
        count: how often.
        tell: is told of each run.

    Returns:
        The runs of each way, in their order.
    """
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    next(iter(ways.values()))()  # what has just been written is read for the first time
    for number in range(1, count + 1):
        for name, way in ways.items():
            run = way()
            runs[name].append(run)
            tell(f"{number}/{count} {name}: {run.rate:,.0f} events/s")
    return runs


def spread(values: Sequence[float]) -> Figure:
    """Return the median of values, with the smallest and the largest."""
    return [statistics.median(values), min(values), max(values)]


def quantile(values: Sequence[float], share: float) -> float:
    """Return what so large a share of values is not above."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def figures(runs: Sequence[Run], of: Mapping[str, Sequence[Run]]) -> dict[str, Figure]:
    """Return a rate, its ratios to others of the same round, and the cost of each process.

    Args:
        runs: of one way.
        of: the runs to compare with, by the name of the ratio.
    """
    found = {"events/s": spread([run.rate for run in runs])}
    for name, others in of.items():
        pairs = zip(runs, others, strict=True)
        found[name] = spread([run.rate / other.rate for run, other in pairs])
    for process in sorted(runs[0].cpu, key=PROCESSES.index):
        found[f"CPU {process}"] = spread([run.cpu_per_million(process) for run in runs])
    return found
