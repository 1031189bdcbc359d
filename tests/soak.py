"""Torture all orderings on all databases until ten million events have been verified."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count

import pytest
from harness.databases import mariadb_server, new_database, postgresql_server
from harness.torture import STRATEGIES, Crew, Mix, Verdict, published, torture
from rich.console import Console

SECONDS = 6
MIXES = {
    "postgresql": Mix(hurting=10, fast=16, bulk=3, rest=0.02),
    "mariadb": Mix(hurting=10, fast=16, bulk=3, rest=0.02),
    "sqlite": Mix(hurting=6, fast=4, bulk=3, rest=0.02),
}
WRONG = ("lost", "twice", "inverted", "invented", "horizon back", "silent", "stuck")


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


def main() -> int:
    """Run the soak; return 1 if anything was wrong."""
    options = _options()
    console = Console(stderr=True)
    lines = [Line(ordering, database) for database, ordering in STRATEGIES]
    lines = [line for line in lines if f"{line.database}/{line.ordering}".startswith(options.only)]
    with ExitStack() as stack:
        databases = _databases({line.database for line in lines}, stack, console)
        lines = [line for line in lines if line.database in databases]
        crews = [stack.enter_context(_crew()) for _ in range(2)]
        status = stack.enter_context(console.status("starting"))
        for seed in count(options.seed):
            for line in lines:
                total = sum(each.events for each in lines)
                status.update(
                    f"{total:,} of {options.events:,} events; now seed {seed} of "
                    f"{line.database}/{line.ordering}"
                )
                with databases[line.database]() as url:
                    publish = partial(published, ordering=line.ordering)
                    mix = MIXES[line.database]
                    verdict = torture(url, publish, crews, seed=seed, seconds=SECONDS, mix=mix)
                line.add(seed, verdict)
                for complaint in verdict.complaints:
                    console.print(f"{line.database}/{line.ordering}, seed {seed}: {complaint}")
            if not lines or sum(line.events for line in lines) >= options.events:
                break
    sys.stdout.write(_json(lines) if options.json else _markdown(lines))
    return 1 if not lines or any(line.complaints for line in lines) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000, help="how many in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--only", default="", help="such as postgresql or postgresql/observed")
    parser.add_argument("--json", action="store_true", help="print JSON and not Markdown")
    return parser.parse_args()


Database = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, and drops it behind its user."""


def _databases(names: set[str], stack: ExitStack, console: Console) -> dict[str, Database]:
    """Start what is needed and can be had here."""
    databases: dict[str, Database] = {"sqlite": _sqlite}
    for name, server in (("postgresql", postgresql_server), ("mariadb", mariadb_server)):
        if name in names:
            try:
                databases[name] = partial(new_database, stack.enter_context(server()))
            except pytest.skip.Exception as reason:
                console.print(f"{name} is left out: {reason}")
    return databases


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/soak.db"


@contextmanager
def _crew() -> Iterator[Crew]:
    crew = Crew()
    try:
        yield crew
    finally:
        crew.close()


def _json(lines: list[Line]) -> str:
    return json.dumps([asdict(line) for line in lines], indent=2) + "\n"


def _markdown(lines: list[Line]) -> str:
    titles = ("ordering", "database", "rounds", "events", "transactions", *WRONG)
    rows = [titles, ("---",) * len(titles)]
    for line in lines:
        numbers = (line.rounds, line.events, line.transactions)
        counted = (*numbers, *(line.counts[what] for what in WRONG))
        rows.append((line.ordering, line.database, *(f"{number:,}" for number in counted)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
