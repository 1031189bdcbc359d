"""Step 1: a log is a file that only grows. An event is in it when it is on the disk."""

import json
import os
from pathlib import Path
from typing import Any

import feed


class Log:
    """A file of events: a line of JSON for each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.log"
        self.file = self.path.open("ab")

    def append(self, event: Any) -> None:
        """Append an event; when this returns, the event survives a power cut."""
        self.file.write(json.dumps(event).encode() + b"\n")
        self.file.flush()  # into the operating system, which survives this process
        os.fsync(self.file.fileno())  # onto the disk, which survives the operating system

    def read(self) -> list[Any]:
        """Read all events."""
        with self.path.open("rb") as file:
            return [json.loads(line) for line in file]

    def drop(self, count: int) -> None:
        """Make room: put a file without the oldest events in the place of the present one."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        shorter = self.path.with_suffix(".new")
        shorter.write_bytes(b"".join(lines[count:]))
        shorter.replace(self.path)


def works(folder: Path) -> None:
    """Append, and read."""
    log = Log(folder)
    for number in (1, 2, 3, 4):
        log.append({"order": number})
    print(f"The log has the orders {feed.numbers(log.read())}.")


def fails(folder: Path) -> None:
    """Drop old events while a writer has the file open."""
    writer = Log(folder)
    for number in (1, 2, 3, 4):
        writer.append({"order": number})
    Log(folder).drop(2)
    writer.append({"order": 5})
    print("Failure: orders 1 and 2 are dropped while a writer has the file open, then it writes 5.")
    print(f"The log has the orders {feed.numbers(writer.read())}: 5 is in a file without a name.")


def holds(folder: Path) -> None:
    """Trim a feed while a writer writes."""
    engine = feed.opened(folder)
    feed.append(engine, 1, 2, 3, 4)
    bound = feed.feed.bind(engine)
    bound.trim(bound.plan_trim(below=3))
    feed.append(engine, 5)
    print(f"zeroeventhub: trimmed in the same way, the feed has the orders {feed.read(engine)[0]}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
