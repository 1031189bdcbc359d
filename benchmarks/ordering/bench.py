"""What the benchmarks of the orderings share: a table, its variants, and how far one may read."""

import argparse
import statistics
import time
from collections.abc import Sequence

from sqlalchemy import Connection, Engine, create_engine, func, select

from benchmarks.events import feed_table
from zeroeventhub import LAST, TableFeed
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.ordering import BY_DATABASE, Horizon, Ordering

PAYLOAD = "x" * 300
PAUSE = 0.005
"""Seconds between two readings of a reader who waits for an event."""

NONE = "none"
READER = "a reader"
"""A reader who asks for the largest number and trusts it: what reading costs, right or wrong."""


class Trust(Ordering):
    """Take the largest number there is for the horizon."""

    def check(self, connection: Connection) -> None:
        """Take any table."""

    def horizon(self, connection: Connection) -> Horizon:
        """Return the largest number."""
        largest = connection.scalar(select(func.max(self.source.position))) or 0
        return Horizon(largest, largest)


ORDERINGS = {dialect: tuple(names) for dialect, names in BY_DATABASE.items()}
for names in BY_DATABASE.values():
    names[READER] = Trust

events = feed_table("ordering_benchmark", "text")


def arguments(description: str | None, **numbers: float) -> argparse.Namespace:
    """Read the URL of a database from the command line, and options with these defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("url")
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=type(number), default=number)
    return parser.parse_args()


def orderings(engine: Engine) -> tuple[str, ...]:
    """Return the orderings that a database has."""
    return ORDERINGS[engine.dialect.name]


def open_engine(url: str) -> Engine:
    """Open a database with patience for SQLite's queue of writers."""
    return create_engine(url, connect_args={"timeout": 60} if url.startswith("sqlite") else {})


def new_feed(engine: Engine, ordering: str) -> BoundFeed | None:
    """Make the table anew, with a feed over it unless there is to be none."""
    with engine.begin() as connection:
        if engine.dialect.has_table(connection, events.name):
            source = TableFeed(events, data="data", ordering="sequenced")
            source.uninstall(connection)
    events.drop(engine, checkfirst=True)
    events.create(engine)
    return None if ordering == NONE else install(engine, ordering)


def install(engine: Engine, ordering: str) -> BoundFeed:
    """Install an ordering over the table as it is, and return its feed."""
    source = TableFeed(events, data="data", ordering=ordering)
    with engine.begin() as connection:
        source.install(connection)
    return source.bind(engine)


def finish(engine: Engine) -> None:
    """Leave nothing in the database."""
    new_feed(engine, NONE)
    events.drop(engine)
    engine.dispose()


def settled(feed: BoundFeed) -> int:
    """Read the horizon; -1 while it is not known."""
    try:
        return int(feed.read(0, LAST, 1).cursor.split("-")[1])
    except Unavailable:
        return -1


def is_readable(feed: BoundFeed, cursor: str, data: str) -> tuple[bool, str]:
    """Read on from a cursor; tell whether an event was among what came, and where that ended."""
    try:
        page = feed.read(0, cursor, 1000)
    except Unavailable:
        return False, cursor
    return f'"{data}"'.encode() in {event.raw for event in page.events}, page.cursor


def wait_until_readable(feed: BoundFeed, cursor: str, data: str) -> tuple[float, str]:
    """Wait for an event; return for how many milliseconds, and the cursor behind it."""
    began = time.perf_counter()
    while True:
        found, cursor = is_readable(feed, cursor, data)
        if found:
            return 1000 * (time.perf_counter() - began), cursor
        time.sleep(PAUSE)


def spread(values: Sequence[float]) -> str:
    """Show a median with its smallest and largest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def quantiles(delays: Sequence[float]) -> str:
    """Show the median and the 99th percentile of delays in milliseconds."""
    cuts = statistics.quantiles(delays, n=100)
    return f"{cuts[49]:.1f} | {cuts[98]:.1f}"
