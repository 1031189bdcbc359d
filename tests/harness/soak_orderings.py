"""Torture all orderings on all databases until so many events have been verified."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from harness.torture import STRATEGIES, Crew, Mix, Verdict, torture

__all__ = ["Line", "verified"]

Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it behind its user."""

SECONDS = 6
MIXES = {
    "postgresql": Mix(hurting=10, fast=16, bulk=3, rest=0.02),
    "mariadb": Mix(hurting=10, fast=16, bulk=3, rest=0.02),
    "sqlite": Mix(hurting=6, fast=4, bulk=3, rest=0.02),
}


@dataclass
class Line:
    """Add up the rounds of an ordering on a database."""

    ordering: str
    database: str
    rounds: int = 0
    events: int = 0
    transactions: int = 0
    frozen: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def add(self, seed: int, verdict: Verdict) -> None:
        """Add a round."""
        self.rounds += 1
        self.events += verdict.events
        self.transactions += verdict.transactions
        self.frozen += verdict.frozen
        self.counts += verdict.counts
        self.complaints += [f"seed {seed}: {complaint}" for complaint in verdict.complaints]


def verified(
    databases: Mapping[str, Database],
    *,
    events: int,
    seed: int,
    tell: Callable[[str], None],
) -> list[Line]:
    """Torture every ordering in turn until readers have verified so many events.

    Args:
        databases: by name, what can be had here.
        events: how many are enough.
        seed: of the first round.
        tell: hears before each round how far it is.
    """
    lines = [Line(name, database) for database, name in STRATEGIES if database in databases]
    with ExitStack() as stack:
        crews = [stack.enter_context(_crew()) for _ in range(2)]
        while lines and sum(line.events for line in lines) < events:
            for line in lines:
                total = sum(each.events for each in lines)
                tell(f"{line.ordering} on {line.database}: {total:,} of {events:,} events")
                number = seed + line.rounds
                with databases[line.database]() as url:
                    mix = MIXES[line.database]
                    verdict = torture(
                        url, line.ordering, crews, seed=number, seconds=SECONDS, mix=mix
                    )
                line.add(number, verdict)
    return lines


@contextmanager
def _crew() -> Iterator[Crew]:
    crew = Crew()
    try:
        yield crew
    finally:
        crew.close()
