"""Publish real flights, consume them over HTTP, kill both sides, and compare the sums: `make demo`.

Four writers append departures from New York City to a table while it is served as a feed. A
consumer adds them up by carrier in its own database. The demo kills the consumer five times and the
publisher once. If the sums then differ from the data, the exit code is 1.
"""

import argparse
import json
import random
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from consumer import consume, departures_by_carrier, totals
from flights import FLIGHTS, add_up, departures, open_departures, read_flights
from publisher import publish
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine, create_engine, func, inspect, select

from zeroeventhub import CursorStore

CONSUMER_KILLS = 5
POLL_INTERVAL = 0.1
PATIENCE = 120.0
"""Seconds without any progress after which the demo gives up."""


class Process:
    """A process that can be killed and started again."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._work = work
        self._arguments = arguments

    def start(self) -> None:
        """Start it, as if it had never run."""
        self._process = SpawnProcess(target=self._work, args=self._arguments, daemon=True)
        self._process.start()

    def kill(self) -> None:
        """Kill it, at whatever it does."""
        self._process.kill()
        self._process.join()


def kill_schedule(dice: random.Random, flights: int) -> list[tuple[int, str]]:
    """Draw which process is killed, after how many departures consumed."""
    moments = [(dice.uniform(0.05, 0.9), "consumer") for _ in range(CONSUMER_KILLS)]
    moments.append((dice.uniform(0.3, 0.6), "publisher"))
    return [(int(share * flights), victim) for share, victim in sorted(moments)]


def run(folder: Path, database: str | None, flights: int, seed: int) -> dict[str, Any]:
    """Create the tables, run and kill the processes, drop the tables, and return the result."""
    source = database or f"sqlite:///{folder / 'publisher.db'}"
    target = f"sqlite:///{folder / 'consumer.db'}"
    publisher, consumer = open_departures(source), create_engine(target)
    truth = add_up(read_flights(flights))
    with ExitStack() as at_end:
        at_end.callback(consumer.dispose)
        at_end.callback(publisher.dispose)
        if inspect(publisher).has_table(departures.name):
            sys.exit(
                f"The database already has a table {departures.name!r}, which the demo would write "
                "to: give it another database."
            )
        departures.metadata.create_all(publisher)
        at_end.callback(departures.metadata.drop_all, publisher)
        with consumer.begin() as connection:
            CursorStore(consumer).create_tables(connection)
            departures_by_carrier.metadata.create_all(connection)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}/departures"
        processes = {
            "publisher": Process(publish, source, port, flights, seed),
            "consumer": Process(consume, target, url),
        }
        for process in processes.values():
            process.start()
            at_end.callback(process.kill)
        result = kill_and_count(processes, publisher, consumer, flights, seed)
        with consumer.connect() as connection:
            return result | {"equal": totals(connection) == truth}


def kill_and_count(
    processes: dict[str, Process], publisher: Engine, consumer: Engine, flights: int, seed: int
) -> dict[str, Any]:
    """Kill processes by a schedule until all flights are consumed, and return the counts."""

    def published() -> int:
        with publisher.connect() as connection:
            return connection.scalar(select(func.count()).select_from(departures)) or 0

    def consumed() -> int:
        with consumer.connect() as connection:
            return connection.scalar(select(func.sum(departures_by_carrier.c.departures))) or 0

    started = last_change = time.monotonic()
    last_count = 0
    kills = kill_schedule(random.Random(seed), flights)
    killed = {"consumer": 0, "publisher": 0}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        progress.print(f"{flights:,} flights, seed {seed}")
        bars = [progress.add_task(name, total=flights) for name in ("published", "consumed")]
        while (done := consumed()) < flights:
            progress.update(bars[0], completed=published())
            progress.update(bars[1], completed=done)
            if kills and done >= kills[0][0]:
                _, victim = kills.pop(0)
                processes[victim].kill()
                processes[victim].start()
                killed[victim] += 1
                progress.print(f"killed the {victim} after {done:,} departures")
            if done != last_count:
                last_count, last_change = done, time.monotonic()
            elif time.monotonic() - last_change > PATIENCE:
                sys.exit(f"Nothing has moved for {PATIENCE:.0f} s.")
            time.sleep(POLL_INTERVAL)
        seconds = time.monotonic() - started
        for bar in bars:
            progress.update(bar, completed=flights)
    # Leave time for an event that is delivered twice.
    time.sleep(2 * POLL_INTERVAL)
    # A kill does no harm, and SIGTERM would wait for the request at the head.
    processes["consumer"].kill()
    return {
        "flights": flights,
        "published": published(),
        "consumed": consumed(),
        "consumer_kills": killed["consumer"],
        "publisher_kills": killed["publisher"],
        "seconds": round(seconds, 1),
        "events_per_second": round(flights / seconds),
    }


def main() -> int:
    """Run the demo, and report what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition(": `")[0])
    parser.add_argument("--database", help="the URL of the publisher's; by default an SQLite file")
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many are published")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the kills")
    parser.add_argument("--json", action="store_true", help="report as JSON")
    options = parser.parse_args()
    if not 1 <= options.flights <= FLIGHTS:
        parser.error(f"there are 1 to {FLIGHTS:,} flights")
    # A signal raises SystemExit, so that the processes are ended and the folder is deleted.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-demo-") as folder:
        result = run(Path(folder), options.database, options.flights, options.seed)
    verdict = "[green]equal to the truth: every departure exactly once"
    if not result["equal"]:
        verdict = "[red]DIFFERENT from the truth"
    if options.json:
        print(json.dumps(result))
    else:
        kills = "{consumer_kills} kills of the consumer, {publisher_kills} of the publisher"
        report = f"""\
published  {{published:>9,}} departures
consumed   {{consumed:>9,}} departures, through {kills}
speed      {{events_per_second:>9,}} events/s over {{seconds:.1f}} s
by carrier {verdict}"""
        Console(highlight=False, soft_wrap=True).print(report.format_map(result))
    return 0 if result["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
