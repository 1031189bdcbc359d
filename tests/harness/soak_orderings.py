"""Torture all orderings on all databases until so many events have been verified."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from harness.ordering_table import ALL
from harness.torture import MIXES, torture, two_crews

__all__ = ["Line", "verified"]

Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it behind its user."""

SECONDS = 6


@dataclass
class Line:
    """Add up the rounds of an ordering on a database."""

    ordering: str
    database: str
    rounds: int = 0
    events: int = 0
    complaints: list[str] = field(default_factory=list)


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
    lines = [Line(case.ordering, case.database) for case in ALL if case.database in databases]
    with two_crews() as crews:
        while lines and sum(line.events for line in lines) < events:
            for line in lines:
                total = sum(each.events for each in lines)
                tell(f"{line.ordering} on {line.database}: {total:,} of {events:,} events")
                number = seed + line.rounds
                mix = MIXES[line.database]._replace(bulk=3, rest=0.02)
                with databases[line.database]() as url:
                    verdict = torture(
                        url, line.ordering, crews, seed=number, seconds=SECONDS, mix=mix
                    )
                line.rounds += 1
                line.events += verdict.events
                line.complaints += [f"seed {number}: {found}" for found in verdict.complaints]
    return lines
