"""Run the long tests, to the sizes that the report states, and say what came of them.

    python tests/soak.py [PART …] [--share 0.01] [--seed 0]

Every row of a full size is written into the table of docs/reliability.md as soon as it is known,
with its date and commit. Stopped and started again, it goes on: what was done at this commit is not
done again.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from harness import captured, ordering_table
from harness.databases import mariadb_server, new_database, postgresql_server
from harness.drill import drilled
from harness.faults.account import Account, Findings, naming
from harness.faults.every_cut import (
    Case,
    Framing,
    async_fetch,
    pool_fetch,
    random_faults,
    sync_fetch,
)
from harness.faults.killed_appender import killed_while_appending
from harness.faults.killed_publisher import killed_while_sending
from harness.kills.torments import TORMENTS, tormented
from harness.nginx_paths import Deployment
from harness.random_requests import fuzz
from harness.simulation.world import simulate
from harness.soak_histories import KINDS, Histories, Kind
from harness.spark_kills import killed_streams
from harness.torture.round import torture
from harness.torture.writers import MIXES
from rich.console import Console

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reliability.md"
RULE = "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |\n"
"""What ends the head of the table of the report."""

CHUNK = 500
"""Simulated worlds that a process takes at a time."""

CAPTURED = 20_000
"""Events of captured tables on each database."""

ROUND = 6
"""Seconds of a round in which an ordering is tortured."""


@dataclass
class Soak:
    """Hold what all parts have in common: how much is run, on what, and what was wrong."""

    share: float
    seed: int
    console: Console
    databases: dict[str, Callable[[], AbstractContextManager[str]]]
    complaints: list[str] = field(default_factory=list)

    def size(self, full: int) -> int:
        """Say how much is to be run of what is enough."""
        return max(1, round(full * self.share))

    def seeds(self, full: int) -> range:
        """Return as many seeds, from the first one on."""
        return range(self.seed, self.seed + self.size(full))

    def tell(self, progress: str) -> None:
        self.console.print(progress, highlight=False)

    def row(
        self,
        key: tuple[str, str, str],
        find: Callable[[], Findings],
        counted: str,
        size: int | None = None,
    ) -> str:
        """Find something; return its row of the table. A size says that seeds draw what is done.

        Without one, what there is to do is all that is done. What was done at this commit is not
        done again, and has no row.
        """
        commit, (_, what, where) = _commit(), key
        if self.share >= 1 and any(
            _key(row) == key and row.endswith(f" {commit} |\n") for row in _reported()
        ):
            self.tell(f"{what} {where}: done at {commit}")
            return ""
        self.tell(f"{what} {where}")
        started = time.monotonic()
        found = find()
        done, complaints = found.counts[counted], found.complaints
        seconds = f"{time.monotonic() - started:,.0f}"
        for complaint in complaints:
            self.console.print(complaint, style="red", markup=False, highlight=False)
        self.complaints += complaints
        numbers = (done, done if size is None else size, len(complaints))
        seed = "" if size is None else f"{self.seed:,}"
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        cells = (*key, *(f"{number:,}" for number in numbers), seed, seconds, today, commit)
        row = f"| {' | '.join(cells)} |\n"
        if self.share >= 1 and done >= numbers[1]:
            _report(row)
        return row


def simulation(soak: Soak) -> Iterator[str]:
    """Let consumers, networks and stores happen by seeds, in virtual time."""

    def find() -> Findings:
        seeds = soak.seeds(1_000_000)
        chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
        with ProcessPoolExecutor() as pool:
            parts = [failures for *_, failures in pool.map(simulate, chunks)]
        wrong = [f"seed {seed}: {what}" for part in parts for seed, what in part.items()]
        return Findings(Counter(worlds=len(seeds)), wrong)

    yield soak.row(("R8", "simulated worlds", ""), find, "worlds", 1_000_000)


def wire(soak: Soak) -> Iterator[str]:
    """Break connections at every byte, and by dice."""
    with tempfile.TemporaryDirectory() as folder:
        consume = partial(_every_byte, Case.consume_all)
        everywhere = {
            "every byte, sync client": partial(_every_byte, Case.fetch_all, sync_fetch),
            "every byte, client without httpx": partial(_every_byte, Case.fetch_all, pool_fetch),
            "every byte, async client": partial(_every_byte, Case.fetch_all, async_fetch),
            "every byte, whole consumer": partial(_with_account, folder, consume),
        }
        for what, find in everywhere.items():
            yield soak.row(("R1", what, "sqlite"), find, "trials")
        for framing in Framing:
            draw = partial(random_faults, framing=framing, seeds=soak.seeds(10_000))
            find = partial(_with_account, folder, draw)
            yield soak.row(("R2", f"random faults, {framing}", "sqlite"), find, "trials", 10_000)


def _every_byte(breaking: Callable[..., None], *arguments: object) -> Findings:
    """Break an answer of every form at every byte in every way."""
    findings = Findings()
    for case in (Case(framing, packed) for framing in Framing for packed in (False, True)):
        breaking(case, *arguments)
        findings.add(case.findings)
    return findings


def _with_account(folder: str, breaking: Callable[[Account], Findings]) -> Findings:
    with Account.open(Path(tempfile.mkdtemp(dir=folder)) / "consumer.db") as account:
        return breaking(account)


def publishers(soak: Soak) -> Iterator[str]:
    """Kill publishers while they answer, however they are deployed."""
    with tempfile.TemporaryDirectory() as folder:
        for deployment in Deployment:
            own = Path(tempfile.mkdtemp(dir=folder))
            seeds, kills = count(soak.seed), soak.size(1_000)
            find = partial(killed_while_sending, deployment, own, seeds, kills)
            yield soak.row(("R4", "killed publishers", deployment), find, "kills", 1_000)


def appenders(soak: Soak) -> Iterator[str]:
    """Kill appenders, and the publishers of their log."""
    for name, database in soak.databases.items():
        find = partial(killed_while_appending, database, count(soak.seed), soak.size(100))
        yield soak.row(("R17", "killed appenders and publishers", name), find, "kills", 100)


def histories(soak: Soak) -> Iterator[str]:
    """Let failovers, restored backups and emptied tables befall publishers."""

    def befall(here: Histories, kind: Kind) -> Findings:
        found = Findings()
        for seed in soak.seeds(kind.size):
            soak.tell(f"{kind.name}: seed {seed}")
            found.add(here.run(kind, seed))
        return found

    with Histories.open(soak.databases) as here:
        for kind in KINDS:
            where = ", ".join(dict.fromkeys(case.database for case in here.cases(kind)))
            yield soak.row(
                ("R6", kind.name, where), partial(befall, here, kind), "rounds", kind.size
            )


def restores(soak: Soak) -> Iterator[str]:
    """Destroy databases, and restore them from their archives."""
    for name, database in soak.databases.items():

        def find(database: Callable[[], AbstractContextManager[str]] = database) -> Findings:
            return Findings(drilled(database, soak.seeds(20)))

        yield soak.row(("R18", "drills of restoring", name), find, "drills", 20)


def captures(soak: Soak) -> Iterator[str]:
    """Let writers collide while their tables are captured, with a new log for each seed."""
    for name, database in soak.databases.items():

        def find(database: Callable[[], AbstractContextManager[str]] = database) -> Findings:
            found, seeds = Findings(), count(soak.seed)
            while found.counts["events"] < soak.size(CAPTURED):
                with naming(f"capture, seed {(seed := next(seeds))}"), database() as url:
                    found.counts["events"] += captured.tortured(url, 2_000, seed)
            return found

        yield soak.row(("R19", "captured events", name), find, "events", CAPTURED)


def torments(soak: Soak, code: str) -> Iterator[str]:
    """Do to consumers what a row of the report says."""
    for torment in TORMENTS:
        there = [name for name in torment.databases if name in soak.databases]
        if torment.row == code and there:
            full = -(-torment.size // len(there))
            # Each database's consumers wait most of the time, and have processes of their own.
            options = {"size": soak.size(full), "seed": soak.seed, "tell": soak.tell}
            with ThreadPoolExecutor(len(there)) as pool:
                rows = []
                for name in there:
                    find = partial(tormented, torment, name, soak.databases[name], **options)
                    key = (torment.row, torment.name, name)
                    rows.append(pool.submit(soak.row, key, find, "done", full))
                for row in as_completed(rows):
                    yield row.result()


def orderings(soak: Soak) -> Iterator[str]:
    """Torture every ordering with writers that hurt until readers have verified enough events."""
    cases = [case for case in ordering_table.ALL if case.database in soak.databases]
    for case in cases:
        enough = 10_000_000 // len(cases)

        def verify(case: ordering_table.Case = case, size: int = soak.size(enough)) -> Findings:
            mix = MIXES[case.database]._replace(bulk=3, rest=0.02)
            found = Findings()
            seeds = count(soak.seed)
            while (events := found.counts["events"]) < size:
                soak.tell(f"{case.ordering} on {case.database}: {events:,} of {size:,} events")
                with soak.databases[case.database]() as url:
                    options = {"seed": (seed := next(seeds)), "seconds": ROUND, "mix": mix}
                    verdict = torture(url, case.ordering, **options)
                found.counts["events"] += verdict.events
                found.complaints += [f"seed {seed}: {wrong}" for wrong in verdict.complaints]
            return found

        yield soak.row(("", f"events, {case.ordering}", case.database), verify, "events", enough)


def requests(soak: Soak) -> Iterator[str]:
    """Ask feeds what no client should, and see that no answer fails or says what it must not."""

    def find() -> Findings:
        return Findings(Counter(requests=fuzz(soak.size(1_000_000), soak.seed).total()))

    yield soak.row(("R12", "requests made up", "sqlite"), find, "requests", 1_000_000)


def spark(soak: Soak) -> Iterator[str]:
    """Kill the driver of a stream into Parquet."""
    if "postgresql" in soak.databases:
        with soak.databases["postgresql"]() as url, tempfile.TemporaryDirectory() as folder:
            options = {"seed": soak.seed, "kills": soak.size(20), "tell": soak.tell}
            find = partial(killed_streams, url, Path(folder), **options)
            yield soak.row(("R16", "drivers killed", "postgresql"), find, "kills", 20)


PARTS: dict[str, Callable[[Soak], Iterator[str]]] = {
    "simulation": simulation,
    "wire": wire,
    "publishers": publishers,
    "appenders": appenders,
    "histories": histories,
    "restores": restores,
    "captures": captures,
    "kills": partial(torments, code="R3"),
    "connections": partial(torments, code="R5"),
    "leases": partial(torments, code="R7"),
    "orderings": orderings,
    "requests": requests,
    "spark": spark,
}


def main() -> int:
    """Run the parts; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    console = Console(stderr=True)
    # That consumers try again is what is wanted.
    logging.getLogger("zeroeventhub").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        soak = Soak(options.share, options.seed, console, {"sqlite": _sqlite})
        for name, server in (("postgresql", postgresql_server), ("mariadb", mariadb_server)):
            try:
                soak.databases[name] = partial(new_database, stack.enter_context(server()))
            except pytest.skip.Exception as reason:
                console.print(f"{name} is left out: {reason}")
        for name in options.parts or PARTS:
            for row in PARTS[name](soak):
                sys.stdout.write(row)
                sys.stdout.flush()
    return 1 if soak.complaints else 0


def _commit() -> str:
    """Name the last commit of anything but documents, with a mark if the tree was changed since."""
    code = ("--", ".", ":!docs")
    last, changes = (
        subprocess.run(["git", *words, *code], cwd=ROOT, capture_output=True, text=True, check=True)
        for words in (["log", "-1", "--format=%h"], ["status", "--porcelain"])
    )
    return last.stdout.strip() + ("+" if changes.stdout else "")


def _reported() -> list[str]:
    """Return the rows of the report."""
    table = REPORT.read_text().partition(RULE)[2].partition("\n\n")[0]
    return [line for line in table.splitlines(keepends=True) if line.startswith("| ")]


def _report(row: str) -> None:
    """Put a row into the report, in the place of an older one of the same thing."""
    before, rule, rest = REPORT.read_text().partition(RULE)
    after = rest.partition("\n\n")[2]
    rows = {_key(line): line for line in [*_reported(), row]}
    table = "".join(sorted(rows.values()))
    REPORT.write_text(f"{before}{rule}{table}" + (f"\n{after}" if after else ""))


def _key(row: str) -> tuple[str, ...]:
    """Return the cells of a row that say what was done."""
    return tuple(cell.strip() for cell in row.split("|")[1:4])


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/soak.db"


if __name__ == "__main__":
    sys.exit(main())
