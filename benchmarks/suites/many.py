"""Consumers side by side, at one publisher."""

from collections.abc import Sequence
from functools import partial

import httpx

from benchmarks.measuring import Figure, Run, Way, figures, quantile, rounds, spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage, address
from zeroeventhub import Client

NUMBERS = (1, 8, 64)

WHY = "one reader already uses both cores, for the publisher reads ahead for it"
LATE = "a page that was not read ahead waits for a connection behind batches of other readers"

TEXT = """\
Readers as those of `drain`, each a process with a connection of its own. Each reads a piece of
the feed that no other reads, so that none has its pages from what another has asked for;
together they read all of it. A page's share is the time that it would take if the publisher's
pages were dealt out evenly: the number of readers times the time that the publisher has for one
page."""


def many(stage: Stage) -> Result:
    """Drain a feed by several readers at once."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    ways: dict[str, Way] = {
        _name(number): partial(drained, stage, table, number) for number in NUMBERS
    }
    runs = rounds(ways, stage.count, stage.tell)
    alone = runs[_name(1)]
    rows = []
    for number in NUMBERS:
        found = runs[_name(number)]
        rates = figures(found, {"of one": alone})
        rows.append(Row(_name(number), rates | _pages(found, number), ours=True))
    goals = []
    for number in NUMBERS[1:]:
        name = _name(number)
        wanted = 1.2 if number < max(NUMBERS) else 1.0
        goals.append(Goal(f"{name}, throughput in all", name, "of one", wanted, why=WHY))
        column = "p99 of a page / its share"
        goals.append(Goal(name, name, column, 3, at_most=True, why=LATE))
    return Result("many", "Consumers side by side", TEXT, "events/s", rows, goals)


def _name(number: int) -> str:
    return "1 consumer" if number == 1 else f"{number} consumers"


def _pages(runs: Sequence[Run], number: int) -> dict[str, Figure]:
    half, most = (
        [1000 * quantile(run.more["pages"], share) for run in runs] for share in (0.5, 0.99)
    )
    shares = [1000 * number * PAGE / run.rate for run in runs]
    ratios = [one / share for one, share in zip(most, shares, strict=True)]
    return {
        "page p50, ms": spread(half),
        "page p99, ms": spread(most),
        "p99 of a page / its share": spread(ratios),
    }


def drained(stage: Stage, table: str, number: int) -> Run:
    """Drain a feed in so many pieces."""
    with stage.draining(table) as (publisher, readers, meters):
        with httpx.Client() as http:
            cursors = Client(address(publisher, table), http).splits(0, number)
        share = stage.events // (len(cursors) - 1)
        return readers.run(meters, [{"cursor": each, "events": share} for each in cursors[:-1]])
