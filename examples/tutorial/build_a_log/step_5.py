"""Step 5: writers reserve places and fill them side by side. Readers stop at the horizon."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import feed
import step_3
import step_4
from sqlalchemy import text
from step_2 import start, write
from step_4 import HEADER, packed, unpacked

from zeroeventhub import Consumer
from zeroeventhub.errors import Fenced
from zeroeventhub.testing import client_of, store_of


class Log(step_4.Log):
    """A log for several writers; each holds a lock until its place is filled."""

    def recover(self) -> None:
        """Cut nothing off: what looks half-done may be the place of a writer that lives."""

    def end(self) -> int:
        """Return the position after the last place that was reserved."""
        last = self.segments()[-1:]
        ends = [start(path) for path in last]
        ends += [after for path in last for _, after in unpacked(path, start(path))]
        return max(ends, default=0)

    @contextmanager
    def transaction(self, event: Any) -> Iterator[None]:
        """Reserve a place for an event, and fill it when the block ends without an error."""
        record = packed(event)
        length = len(record) - HEADER.size
        with locked(self.folder / "writers.lock"):  # one reserves at a time, which is quick
            place, path = self.end(), self.tail()
            writer = locked(self.folder / f"{place}.writer")
            with path.open("ab") as file:
                file.truncate(place - start(path))  # of a place that was not reserved to its end
            write(path, HEADER.pack(length, 0) + bytes(length))
        with writer:  # the system releases its lock if this process dies
            yield
            fill(path, place, record)
            Path(writer.name).unlink()

    def append(self, event: Any) -> None:
        """Append an event."""
        with self.transaction(event):
            pass

    def horizon(self) -> int:
        """Return the position below which no writer is at work."""
        end = self.end()  # first: whoever reserves after this, reserves above it
        writers = [start(path) for path in self.folder.glob("*.writer") if is_locked(path)]
        return min([end, *writers])

    def records(self, path: Path, cursor: int) -> Iterator[tuple[Any, int]]:
        """Yield events below the horizon, with None for those whose writers died."""
        horizon = self.horizon()  # first: what is below it stays as it is
        for event, after in unpacked(path, cursor):
            if after > horizon:
                return
            yield event, after


def locked(path: Path) -> IO[bytes]:
    """Open a file, and lock it until it is closed."""
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def is_locked(path: Path) -> bool:
    """Tell whether somebody has locked a file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # its writer has just ended
        return False
    return False


def fill(path: Path, place: int, record: bytes) -> None:
    """Write an event to its place in a segment, on the disk."""
    with path.open("r+b") as file:
        file.seek(place - start(path))
        file.write(record)
        file.flush()
        os.fsync(file.fileno())


def works(folder: Path) -> None:
    """Let the second of two writers end first, and kill a third one."""
    log = Log(folder)
    log.append({"order": 1})
    with log.transaction({"order": 2}):
        log.append({"order": 3})
        events, cursor = log.read(0)
        print(f"Writer 2 is open, order 3 is written: a reader finds {feed.numbers(events)}.")
    events, cursor = log.read(cursor)
    print(f"Writer 2 has ended: the reader goes on with {feed.numbers(events)}.")
    feed.killed(log.transaction({"order": 4}).__enter__)
    log.append({"order": 5})
    events, cursor = log.read(cursor)
    print(f"Writer 4 is killed, and nobody waits for it: {feed.numbers(events)}.")


def fails(folder: Path) -> None:
    """Let two processes of a consumer read the same page."""
    log = Log(folder / "log")
    for number in (1, 2):
        log.append({"order": number})
    first, second = (step_3.Consumer(folder / "billing.db") for _ in range(2))
    pages = [log.read(first.cursor()), log.read(second.cursor())]
    first.apply(*pages[0])
    second.apply(*pages[1])
    print("Failure: two processes of one consumer read the same page, and both commit.")
    print(f"There are invoices for the orders {first.invoices()}.")


def holds(folder: Path) -> None:
    """Let two processes of a consumer read the same page of a feed."""
    engine, store = feed.opened(folder), store_of()
    feed.append(engine, 1, 2)
    with store.engine.begin() as connection:
        connection.execute(text("CREATE TABLE invoices (number INTEGER)"))
    client = client_of(feed.feed, engine)
    pages = [next(iter(Consumer(client, store, "billing"))) for _ in range(2)]
    for page in pages:
        try:
            with store.engine.begin() as connection:
                page.commit(connection)
                for event in page.events:
                    connection.execute(text("INSERT INTO invoices VALUES (:order)"), event.data)
        except Fenced as error:
            print(f"zeroeventhub: the second commit ends with {type(error).__name__},")
    with store.engine.connect() as connection:
        invoices = list(connection.scalars(text("SELECT number FROM invoices")))
    print(f"and there are invoices for the orders {invoices}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
