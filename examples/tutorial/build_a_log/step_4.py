"""Step 4: every event has its length and a checksum, so that recovery finds where the log ends."""

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feed
import step_3
from step_2 import start, write

from zeroeventhub.errors import StoreUnavailable

HEADER = struct.Struct(">II")
"""What stands before an event: its length and its checksum."""


def packed(event: Any) -> bytes:
    """Return the bytes of an event."""
    data = json.dumps(event).encode()
    return HEADER.pack(len(data), zlib.crc32(data)) + data


def unpacked(path: Path, cursor: int) -> Iterator[tuple[Any, int]]:
    """Yield events and the cursors after them, with None for an event that has another checksum."""
    content = path.read_bytes()[cursor - start(path) :]
    while len(content) >= HEADER.size:
        length, checksum = HEADER.unpack_from(content)
        data, content = content[HEADER.size :][:length], content[HEADER.size + length :]
        if len(data) < length:
            return
        cursor += HEADER.size + length
        yield json.loads(data) if zlib.crc32(data) == checksum else None, cursor


class Log(step_3.Log):
    """A log that can be opened after a crash."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.recover()

    def append(self, event: Any) -> None:
        """Append an event."""
        write(self.tail(), packed(event))

    def records(self, path: Path, cursor: int) -> Iterator[tuple[Any, int]]:
        """Yield events up to the first one that is not whole."""
        for event, after in unpacked(path, cursor):
            if event is None:
                return
            yield event, after

    def recover(self) -> None:
        """Cut off what a writer left half-done: its append never returned, so nobody misses it."""
        for path in self.segments()[-1:]:
            ends = [after for _, after in self.records(path, start(path))]
            os.truncate(path, max(ends, default=start(path)) - start(path))


def works(folder: Path) -> None:
    """Kill a writer in the middle of its write, and cut the power in the middle of another."""
    Log(folder).append({"order": 1})
    feed.killed(lambda: write(Log(folder).tail(), packed({"order": 2})[:10]))
    Log(folder).append({"order": 3})
    write(Log(folder).tail(), packed({"order": 4})[: HEADER.size] + bytes(12))
    Log(folder).append({"order": 5})
    print("The writer of 2 was killed. A power cut left the length of order 4, not its content.")
    print(f"The log was opened again each time, and has {feed.numbers(Log(folder).read(0)[0])}.")


def fails(folder: Path) -> None:
    """Open the log while another writer is in the middle of its write."""
    first = Log(folder)
    with first.tail().open("ab", buffering=0) as file:
        file.write(packed({"order": 1})[:10])
        Log(folder).append({"order": 2})
        file.write(packed({"order": 1})[10:])
        os.fsync(file.fileno())
    Log(folder).append({"order": 3})
    print("Failure: a second writer starts while the first is in the middle of order 1,")
    print("takes it for dead and cuts it off. Both go on, and all their writes succeed.")
    print(f"The log has the orders {feed.numbers(first.read(0)[0])}.")


def holds(folder: Path) -> None:
    """Append while another writer's transaction is open."""
    engine = feed.opened(folder)
    with engine.begin() as first:
        feed.log.append(first, feed.placed(1))
        try:
            feed.append(engine, 2)
        except StoreUnavailable:
            print("zeroeventhub: on SQLite the second writer is told to try again,")
    feed.append(engine, 2)
    feed.append(engine, 3)
    print(f"and after the first one's commit the feed has the orders {feed.read(engine)[0]}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
