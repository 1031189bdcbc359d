"""Measure, and write down what was found.

    PYTHONPATH=tests python -m benchmarks [SUITE …] [--events 200000] [--rows 2000000] [--rounds 5]

By default all suites are run. What a suite found replaces what it had found before in
docs/benchmarks.md, and in the plots beside it.
"""

import argparse
import json
import os
import platform
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from rich.console import Console
from sqlalchemy import create_engine, text

from benchmarks.document import keep, render
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.suites import SUITES

PACKAGES = (
    *("SQLAlchemy", "psycopg", "msgspec", "httpx", "uvicorn", "uvloop", "httptools"),
    *("pyarrow", "pyspark"),
)


def main() -> None:
    """Run the suites that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--events", type=int, default=200_000, help="in a run")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of a long table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there too")
    parser.add_argument("--dry", action="store_true", help="leave the document as it is")
    options = parser.parse_args()
    if unknown := set(options.suites) - SUITES.keys():
        parser.error(f"there is no suite {min(unknown)}; there are {', '.join(SUITES)}")
    console, results = Console(stderr=True, highlight=False), []
    with ExitStack() as stack:

        def tell(what: str) -> None:
            console.print(f"[dim]{name}[/] {what}")

        stage = Stage(options.events, options.rows, options.rounds, tell, stack)
        for name in options.suites or SUITES:
            results.append(_measured(stage, name))
            if not options.dry:
                keep(results[-1])
                render()
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


def _measured(stage: Stage, name: str) -> Result:
    load = os.getloadavg()[0]
    result = SUITES[name](stage)
    result.machine = _machine(stage.postgresql)
    result.size = result.size or f"{stage.events:,} events a run, {stage.count} rounds"
    result.size += f", beginning at a load of {load:.1f}"
    for goal in result.goals:
        if (figure := result.figure(goal)) is not None:
            verdict = "reached" if goal.is_met(figure[0]) else "not reached"
            stage.tell(f"{goal.what}: {figure[0]:.2f} of {goal.wanted:g}, {verdict}")
    return result


def _machine(postgresql: str) -> dict[str, str]:
    """Describe this machine, and the versions of what was measured on it."""
    engine = create_engine(postgresql)
    with engine.connect() as connection:
        server = connection.scalar(text("SHOW server_version"))
        fsync = connection.scalar(text("SHOW fsync"))
    engine.dispose()
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1024**3:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": f"{server} (fsync {fsync})",
        **versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
