"""Run the long tests, to the sizes that the report states, and write what came of them.

    python tests/soak.py [PART …] [--share 0.01] [--seed 0]

Every row is written into docs/reliability.md as soon as it is known, and stays until it is known
anew.
"""

import argparse
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from harness import soak_wire
from harness.databases import mariadb_server, new_database, postgresql_server
from harness.faults.findings import Findings
from harness.nginx_paths import Deployment
from harness.planted import PLANTED
from harness.simulation.campaign import simulate_in_processes
from harness.soak_consumer import TORMENTS, Torment, restarted, tormented
from harness.soak_ends import ended
from harness.soak_histories import KINDS, Histories
from harness.soak_orderings import verified
from harness.soak_wire import killed_publishers
from harness.spark_kills import killed_streams
from rich.console import Console

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- report -->\n", "<!-- end of report -->\n"

AT_ONCE = 4
"""How many servers are ended side by side: most of the time they wait."""

Database = Callable[[], AbstractContextManager[str]]


@dataclass(frozen=True)
class Row:
    """Say what was run, and what came of it.

    Attributes:
        code: names the property that was tested.
        what: what was counted.
        where: on what it was run.
        done: how much of it was done.
        size: how much of it is enough.
        wrong: how often something was wrong.
        seed: the first one; None where nothing was drawn.
        seconds: how long it took.
    """

    code: str
    what: str
    where: str
    done: int
    size: int
    wrong: int
    seed: int | None
    seconds: float

    def __str__(self) -> str:
        """Write the row of the table."""
        numbers = (f"{number:,}" for number in (self.done, self.size, self.wrong))
        seed = "" if self.seed is None else f"{self.seed:,}"
        cells = (self.code, self.what, self.where, *numbers, seed, f"{self.seconds:,.0f}")
        return f"| {' | '.join(cells)} |\n"


@dataclass
class Soak:
    """Hold what all parts have in common.

    Attributes:
        share: of the full size, how much is run.
        seed: the first one.
        console: hears how far it is.
        databases: by name, what can be had here.
        complaints: what was wrong.
    """

    share: float
    seed: int
    console: Console
    databases: dict[str, Database]
    complaints: list[str] = field(default_factory=list)

    def size(self, full: int) -> int:
        """Say how much is to be run of what is enough."""
        return max(1, round(full * self.share))

    def tell(self, progress: str) -> None:
        """Say how far it is."""
        self.console.print(progress, highlight=False)

    def complain(self, complaints: list[str]) -> int:
        """Take note of what was wrong; return how much it was."""
        for complaint in complaints:
            self.console.print(complaint, style="red", markup=False, highlight=False)
        self.complaints += complaints
        return len(complaints)


def simulation(soak: Soak) -> Iterator[Row]:
    """Let consumers, networks and stores happen by seeds, in virtual time."""
    started, size = time.monotonic(), soak.size(1_000_000)
    soak.tell(f"simulation: {size:,} seeds")
    tally = simulate_in_processes(range(soak.seed, soak.seed + size), os.cpu_count() or 1)
    wrong = soak.complain([f"seed {seed}: {what}" for seed, what in tally.failures.items()])
    seconds = time.monotonic() - started
    yield Row("R8", "simulated worlds", "", tally.seeds, 1_000_000, wrong, soak.seed, seconds)


def wire(soak: Soak) -> Iterator[Row]:
    """Break connections at every byte, and by dice; change partitions."""
    sizes = {"random faults": ("R2", 10_000)}
    with tempfile.TemporaryDirectory() as folder:
        parts = soak_wire.parts(Path(folder), seed=soak.seed, seeds=soak.size(10_000))
        for name, part in parts.items():
            soak.tell(f"wire: {name}")
            started = time.monotonic()
            found = part()
            code, size = sizes.get(name.partition(",")[0], ("R1", None))
            done = found.counts["trials"]
            wrong, seconds = soak.complain(found.complaints), time.monotonic() - started
            seed = None if size is None else soak.seed
            yield Row(code, name, "sqlite", done, size or done, wrong, seed, seconds)


def publishers(soak: Soak) -> Iterator[Row]:
    """Kill publishers while they answer, however they are deployed."""
    with tempfile.TemporaryDirectory() as folder:
        for deployment in Deployment:
            soak.tell(f"killed publishers: {deployment}")
            started = time.monotonic()
            found = killed_publishers(
                Path(folder), deployment, seed=soak.seed, kills=soak.size(1_000)
            )
            done, wrong = found.counts["kills"], soak.complain(found.complaints)
            seconds = time.monotonic() - started
            yield Row("R4", "killed publishers", deployment, done, 1_000, wrong, soak.seed, seconds)


def histories(soak: Soak) -> Iterator[Row]:
    """Let failovers, restored backups and crashes befall publishers."""
    with Histories.open(soak.databases) as here:
        for kind in KINDS:
            started = time.monotonic()
            rounds = range(soak.seed, soak.seed + soak.size(kind.size))
            found = Findings()
            for seed in rounds:
                soak.tell(f"{kind.name}: seed {seed}")
                found.add(here.run(kind, seed))
            where = ", ".join(dict.fromkeys(case.database for case in here.cases(kind)))
            done, wrong = found.counts["rounds"], soak.complain(found.complaints)
            seconds = time.monotonic() - started
            yield Row("R6", kind.name, where, done, kind.size, wrong, soak.seed, seconds)


def kills(soak: Soak) -> Iterator[Row]:
    """Kill consumers."""
    return _torments(soak, "R3")


def connections(soak: Soak) -> Iterator[Row]:
    """Cut consumers off from their databases."""
    return _torments(soak, "R5")


def leases(soak: Soak) -> Iterator[Row]:
    """Freeze consumers, and let several be at work."""
    return _torments(soak, "R7")


def _torments(soak: Soak, row: str) -> Iterator[Row]:
    for torment in TORMENTS:
        there = [name for name in torment.databases if name in soak.databases]
        if torment.row == row and there:
            full = -(-torment.size // len(there))
            # Each database's consumers wait most of the time, and have processes of their own.
            with ThreadPoolExecutor(len(there)) as pool:
                rows = [pool.submit(_torment, soak, torment, name, full=full) for name in there]
                for row_done in as_completed(rows):
                    yield row_done.result()


def _torment(soak: Soak, torment: Torment, name: str, *, full: int) -> Row:
    started, database = time.monotonic(), soak.databases[name]
    line = tormented(torment, name, database, size=soak.size(full), seed=soak.seed, tell=soak.tell)
    wrong, seconds = soak.complain(line.found.complaints), time.monotonic() - started
    return Row(torment.row, torment.name, name, line.done, full, wrong, soak.seed, seconds)


def restarts(soak: Soak) -> Iterator[Row]:
    """Restart a PostgreSQL server beneath consumers."""
    started = time.monotonic()
    line = restarted(size=soak.size(1_000), seed=soak.seed, tell=soak.tell)
    wrong, seconds = soak.complain(line.found.complaints), time.monotonic() - started
    yield Row("R5", "restarts", "postgresql", line.done, 1_000, wrong, soak.seed, seconds)


def orderings(soak: Soak) -> Iterator[Row]:
    """Torture every ordering with writers that hurt."""
    started, full = time.monotonic(), 10_000_000
    lines = verified(soak.databases, events=soak.size(full), seed=soak.seed, tell=soak.tell)
    seconds = (time.monotonic() - started) / max(1, len(lines))
    for line in lines:
        wrong = soak.complain(line.complaints)
        share = full // len(lines)
        what = f"events, {line.ordering}"
        yield Row("", what, line.database, line.events, share, wrong, soak.seed, seconds)


def payloads(soak: Soak) -> Iterator[Row]:
    """Decode the payloads that hurt."""
    started = time.monotonic()
    passed, failed, output = _pytest("tests/unit/test_hostile_payloads.py")
    wrong = soak.complain([output] if failed else [])
    seconds = time.monotonic() - started
    yield Row("R10", "hostile payloads", "", passed, passed + failed, wrong, None, seconds)


def rules(soak: Soak) -> Iterator[Row]:
    """Plant one mistake after the other, and see tests fail."""
    started = time.monotonic()
    script = ROOT / "tests" / "mutation_check.py"
    process = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    killed = int(process.stdout.partition(" of ")[0] or 0)
    wrong = soak.complain([process.stdout + process.stderr] if process.returncode else [])
    seconds = time.monotonic() - started
    yield Row("R15", "planted mistakes noticed", "", killed, len(PLANTED), wrong, None, seconds)


def requests(soak: Soak) -> Iterator[Row]:
    """Ask feeds what nobody should, and see that no answer fails or tells what it must not."""
    started, cores = time.monotonic(), os.cpu_count() or 1
    script, each = ROOT / "tests" / "fuzz" / "fuzz_requests.py", soak.size(1_000_000) // cores
    soak.tell(f"requests: {each:,} in each of {cores} processes")
    words = [[sys.executable, script, str(each), str(soak.seed + core)] for core in range(cores)]
    run = partial(subprocess.run, capture_output=True, text=True, check=False)
    with ThreadPoolExecutor(cores) as pool:
        processes = [*pool.map(run, words)]
    wrong = soak.complain([one.stdout + one.stderr for one in processes if one.returncode])
    seconds, done = time.monotonic() - started, each * (cores - wrong)
    yield Row("R12", "requests made up", "sqlite", done, 1_000_000, wrong, soak.seed, seconds)


def ends(soak: Soak) -> Iterator[Row]:
    """End servers while readers wait, stream, or do not read."""
    started, found = time.monotonic(), Findings()
    seeds = range(soak.seed, soak.seed + soak.size(100))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for one in pool.map(ended, seeds):
            found.add(one)
            soak.tell(f"ends: {found.counts['ends']:,}")
    done, wrong = found.counts["ends"], soak.complain(found.complaints)
    seconds = time.monotonic() - started
    yield Row("R14", "servers ended", "uvicorn", done, 100, wrong, soak.seed, seconds)


def spark(soak: Soak) -> Iterator[Row]:
    """Kill the driver of a stream into Parquet."""
    if "postgresql" in soak.databases:
        started = time.monotonic()
        with soak.databases["postgresql"]() as url, tempfile.TemporaryDirectory() as folder:
            kills = soak.size(20)
            found = killed_streams(url, Path(folder), seed=soak.seed, kills=kills, tell=soak.tell)
        done, wrong = found.counts["kills"], soak.complain(found.complaints)
        seconds = time.monotonic() - started
        yield Row("R16", "drivers killed", "postgresql", done, 20, wrong, soak.seed, seconds)


PARTS = {
    part.__name__: part
    for part in (
        *(simulation, wire, publishers, histories, payloads, kills, connections, leases),
        *(restarts, orderings, requests, ends, spark, rules),
    )
}


def _pytest(path: str) -> tuple[int, int, str]:
    """Run tests; return how many passed, how many did not, and what was said."""
    command = [sys.executable, "-m", "pytest", "-q", path]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = process.stdout + process.stderr
    passed, failed = (
        sum(int(number) for number in re.findall(rf"(\d+) {word}", said))
        for word in ("passed", "(?:failed|error)")
    )
    return passed, max(failed, int(bool(process.returncode))), said


def main() -> int:
    """Run the parts; return 1 if anything was wrong."""
    options = _options()
    console = Console(stderr=True)
    # That consumers try again is what is wanted.
    logging.getLogger("zeroeventhub").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        databases = _databases(stack, console)
        soak = Soak(options.share, options.seed, console, databases)
        for name in options.parts or PARTS:
            for row in PARTS[name](soak):
                sys.stdout.write(str(row))
                sys.stdout.flush()
                if options.share >= 1:
                    _report(row)
    return 1 if soak.complaints else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    return options


def _databases(stack: ExitStack, console: Console) -> dict[str, Database]:
    """Start what can be had here."""
    databases: dict[str, Database] = {"sqlite": _sqlite}
    for name, server in (("postgresql", postgresql_server), ("mariadb", mariadb_server)):
        try:
            databases[name] = partial(new_database, stack.enter_context(server()))
        except pytest.skip.Exception as reason:
            console.print(f"{name} is left out: {reason}")
    return databases


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/soak.db"


def _report(row: Row) -> None:
    """Put a row into the report, in the place of an older one of the same thing."""
    before, _, rest = REPORT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    table = {_key(line): line for line in old.splitlines(keepends=True) if line.startswith("| ")}
    table[_key(str(row))] = str(row)
    title = "| row | what | where | done | of | wrong | first seed | seconds |\n"
    body = sorted(line for key, line in table.items() if key not in {_key(title), _key(_RULE)})
    machine = (
        f"Last run on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}.\n\n"
    )
    text = "".join((before, BEGIN, machine, title, _RULE, *body, END, after))
    REPORT.write_text(text)


_RULE = "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |\n"


def _key(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split("|")[1:4])


if __name__ == "__main__":
    sys.exit(main())
