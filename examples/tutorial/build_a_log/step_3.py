"""Step 3: a cursor says where to read on. A consumer stores it with its effects."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feed
import step_2
from sqlalchemy import Connection
from step_2 import start, write

from zeroeventhub import FIRST
from zeroeventhub.errors import CutPage
from zeroeventhub.testing import Faults, client_of


class Log(step_2.Log):
    """A log that can be read from any place that it has named."""

    def read(self, cursor: int, limit: int = 100) -> tuple[list[Any], int]:
        """Return the events after a cursor, and the cursor after them; 0 is before all events."""
        events, segments = [], self.segments()
        cursor = max([cursor, *map(start, segments[:1])])  # what was before them is removed
        for path in segments:
            if start(path) > cursor:  # the one before it could not be read to its end
                break
            for event, after in self.records(path, cursor):
                if len(events) == limit:
                    return events, cursor
                events += [] if event is None else [event]
                cursor = after
        return events, cursor

    def records(self, path: Path, cursor: int) -> Iterator[tuple[Any, int]]:
        """Yield the events of a segment after a cursor, each with the cursor after it."""
        with path.open("rb") as file:
            file.seek(cursor - start(path))
            for line in file:
                cursor += len(line)
                yield json.loads(line), cursor


class Consumer:
    """Write an invoice for each order, and the cursor, in one transaction."""

    def __init__(self, database: Path) -> None:
        self.database = sqlite3.connect(database)
        with self.database:
            self.database.execute("CREATE TABLE IF NOT EXISTS invoices (number INTEGER)")
            self.database.execute("CREATE TABLE IF NOT EXISTS cursors (place INTEGER)")

    def cursor(self) -> int:
        """Return the cursor that was committed last."""
        found = self.database.execute("SELECT max(place) FROM cursors").fetchone()[0]
        return found or 0

    def apply(self, events: list[Any], cursor: int) -> None:
        """Commit the effects of events and the cursor after them: both, or neither."""
        with self.database:
            rows = [(number,) for number in feed.numbers(events)]
            self.database.executemany("INSERT INTO invoices VALUES (?)", rows)
            self.database.execute("INSERT INTO cursors VALUES (?)", (cursor,))

    def invoices(self) -> list[int]:
        """Return the numbers of all orders that have an invoice."""
        return [number for (number,) in self.database.execute("SELECT number FROM invoices")]


def works(folder: Path) -> None:
    """Read on after a part of the log was removed, with a consumer that was started again."""
    log = Log(folder)
    for number in (1, 2, 3, 4):
        log.append({"order": number})
    Consumer(folder / "billing.db").apply(*log.read(0))
    log.drop()
    log.append({"order": 5})
    consumer = Consumer(folder / "billing.db")
    consumer.apply(*log.read(consumer.cursor()))
    print(f"Segment 0 is removed, and the consumer goes on: invoices {consumer.invoices()}.")


def fails(folder: Path) -> None:
    """Kill a writer in the middle of its write."""
    log = Log(folder)
    log.append({"order": 1})
    feed.killed(lambda: write(log.tail(), b'{"ord'))
    log.append({"order": 3})
    print("Failure: a writer is killed in the middle of order 2. Another one writes order 3.")
    try:
        log.read(0)
    except ValueError as error:
        print(f"Every reader ends with {type(error).__name__}, whenever it tries again.")


def holds(folder: Path) -> None:
    """Kill a writer in the middle of its transaction, and cut a page on its way."""
    engine = feed.opened(folder)
    feed.append(engine, 1)

    def begin() -> Connection:
        connection = engine.connect()
        feed.log.append(connection, feed.placed(2))
        return connection

    feed.killed(begin)
    feed.append(engine, 3)
    print(f"zeroeventhub: a writer is killed in the same way, readers find {feed.read(engine)[0]}.")
    faults = Faults()
    faults.cut_page()
    client = client_of(feed.feed, engine, faults=faults)
    try:
        client.fetch(0, FIRST)
    except CutPage as error:
        print(f"A page that is cut on its way has no cursor at its end: {type(error).__name__}.")
    again = client.fetch(0, FIRST)
    print(f"Asked for again, it has {feed.numbers(event.data for event in again.events)}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
