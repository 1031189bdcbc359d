"""Run publisher and consumer, kill them, and compare what is left with the truth."""

import json
import multiprocessing
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import click
from sqlalchemy import create_engine, func, inspect, select

from zeroeventhub.cli.demo.consumer import consume, consumed, departures_by_carrier
from zeroeventhub.cli.demo.flights import FLIGHTS, true_totals
from zeroeventhub.cli.demo.publisher import departures, open_departures, publish
from zeroeventhub.cli.options import Meters, as_json
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError, Unreachable

__all__ = ["demo"]

CONSUMER_KILLS = 5
POLL_INTERVAL = 0.1
PATIENCE = 120.0
"""Seconds without any progress after which the demo gives up."""
DIFFERENT = 1


@dataclass(frozen=True)
class Result:
    """What a run of the demo came to."""

    flights: int
    published: int
    consumed: int
    consumer_kills: int
    publisher_kills: int
    seconds: float
    events_per_second: int
    equal: bool


@click.command()
@click.option("--database", metavar="URL", help="Publish from here (default: an SQLite file).")
@click.option(
    "--flights",
    type=click.IntRange(1, FLIGHTS),
    default=FLIGHTS,
    show_default=True,
    help="How many of the flights of 2013 to publish.",
)
@click.option("--seed", type=int, help="Repeat a run's moments of killing.")
@as_json
def demo(*, database: str | None, flights: int, seed: int | None, as_json: bool) -> None:
    """Publish real flights, consume them over HTTP, kill both sides, and count.

    Four writers append departures from New York City to a table while it is served as a feed.
    A consumer adds them up by carrier in a database of its own. It is killed five times in the
    middle, the publisher once. In the end its table must equal the truth, or the exit code is 1.
    """
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311 - to be repeated
    # SIGTERM ends the demo as an exception does, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-demo-") as folder:
        result = _Demo(Path(folder), database, flights, seed).run()
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        _tell(result)
    if not result.equal:
        sys.exit(DIFFERENT)


def _tell(result: Result) -> None:
    kills = (
        f"{result.consumer_kills} kills of the consumer, {result.publisher_kills} of the publisher"
    )
    click.echo(f"published  {result.published:>9,} departures")
    click.echo(f"consumed   {result.consumed:>9,} departures, through {kills}")
    click.echo(f"speed      {result.events_per_second:>9,} events/s over {result.seconds:.1f} s")
    if result.equal:
        verdict = click.style("equal to the truth: every departure exactly once", fg="green")
    else:
        verdict = click.style("DIFFERENT from the truth", fg="red")
    click.echo(f"by carrier {verdict}")


class _Demo:
    """Two processes, two databases, and a schedule of kills."""

    def __init__(self, folder: Path, database: str | None, flights: int, seed: int) -> None:
        self._flights = flights
        self._seed = seed
        self._dice = random.Random(seed)  # noqa: S311 - to be repeated
        self._is_guest = database is not None
        self._source = database or f"sqlite:///{folder / 'publisher.db'}"
        self._target = f"sqlite:///{folder / 'consumer.db'}"
        self._publisher_database = open_departures(self._source)
        self._consumer_database = create_engine(self._target)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def run(self) -> Result:
        """Run to the end, and leave nothing behind in a database that was lent."""
        truth = true_totals(self._flights)
        self._create_tables()
        processes: dict[str, SpawnProcess] = {}
        try:
            return self._race(processes, truth)
        finally:
            for process in processes.values():
                process.kill()
                process.join()
            if self._is_guest:
                departures.metadata.drop_all(self._publisher_database)
            self._publisher_database.dispose()
            self._consumer_database.dispose()

    def _create_tables(self) -> None:
        with self._publisher_database.begin() as connection:
            if inspect(connection).has_table(departures.name):
                raise ConfigurationError(
                    f"The database already has a table {departures.name!r}, which the demo would "
                    "write to: give it another database."
                )
            departures.metadata.create_all(connection)
        with self._consumer_database.begin() as connection:
            CursorStore(self._consumer_database).create_tables(connection)
            departures_by_carrier.metadata.create_all(connection)

    def _race(
        self, processes: dict[str, SpawnProcess], truth: dict[str, tuple[int, int]]
    ) -> Result:
        started = time.monotonic()
        kills = self._schedule()
        killed: Counter[str] = Counter()
        with Meters({"published": self._flights, "consumed": self._flights}) as meters:
            meters.say(f"{self._flights:,} flights, seed {self._seed}")
            for victim in ("publisher", "consumer"):
                processes[victim] = self._start(victim)
            last_count, last_change = 0, started
            while (done := self._consumed()) < self._flights:
                meters.show("published", self._published())
                meters.show("consumed", done)
                if kills and done >= kills[0][0]:
                    _, victim = kills.pop(0)
                    processes[victim].kill()
                    processes[victim].join()
                    processes[victim] = self._start(victim)
                    killed[victim] += 1
                    meters.say(f"killed the {victim} after {done:,} departures")
                if done != last_count:
                    last_count, last_change = done, time.monotonic()
                elif time.monotonic() - last_change > PATIENCE:
                    raise Unreachable(f"Nothing has moved for {PATIENCE:.0f} s.")
                time.sleep(POLL_INTERVAL)
            seconds = time.monotonic() - started
            meters.show("published", self._published())
            meters.show("consumed", done)
        # What would come a second time comes now.
        time.sleep(2 * POLL_INTERVAL)
        processes["consumer"].terminate()
        processes["consumer"].join()
        with self._consumer_database.connect() as connection:
            equal = consumed(connection) == truth
        return Result(
            flights=self._flights,
            published=self._published(),
            consumed=self._consumed(),
            consumer_kills=killed["consumer"],
            publisher_kills=killed["publisher"],
            seconds=round(seconds, 1),
            events_per_second=round(self._flights / seconds),
            equal=equal,
        )

    def _schedule(self) -> list[tuple[int, str]]:
        """Choose who dies, after how many departures consumed."""
        moments = [(self._dice.uniform(0.05, 0.9), "consumer") for _ in range(CONSUMER_KILLS)]
        moments.append((self._dice.uniform(0.3, 0.6), "publisher"))
        return [(int(share * self._flights), victim) for share, victim in sorted(moments)]

    def _start(self, victim: str) -> SpawnProcess:
        spawn = multiprocessing.get_context("spawn")
        if victim == "publisher":
            seed = self._dice.randrange(10**6)
            arguments: Any = (self._source, self._port, self._flights, seed)
            process = spawn.Process(target=publish, args=arguments, daemon=True)
        else:
            url = f"http://127.0.0.1:{self._port}/departures"
            process = spawn.Process(target=consume, args=(self._target, url), daemon=True)
        process.start()
        return process

    def _published(self) -> int:
        with self._publisher_database.connect() as connection:
            return connection.scalar(select(func.count()).select_from(departures)) or 0

    def _consumed(self) -> int:
        with self._consumer_database.connect() as connection:
            return connection.scalar(select(func.sum(departures_by_carrier.c.departures))) or 0
