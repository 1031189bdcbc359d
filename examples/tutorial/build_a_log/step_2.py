"""Step 2: a log is a folder of segments. The name of a segment says at which position it begins."""

import json
import os
from pathlib import Path
from typing import Any

import feed

SEGMENT = 24
"""Bytes after which a segment is full: two orders. Use some millions."""


class Log:
    """A folder of files, the last of which grows until it is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)

    def segments(self) -> list[Path]:
        """Return the segments, the oldest first."""
        return sorted(self.folder.glob("*.log"))

    def end(self) -> int:
        """Return the position after the last event: how many bytes there ever were before it."""
        return max((start(path) + path.stat().st_size for path in self.segments()), default=0)

    def tail(self) -> Path:
        """Return the segment to write to: the last one, or a new one if that is full."""
        end, segments = self.end(), self.segments()
        if segments and end - start(segments[-1]) < SEGMENT:
            return segments[-1]
        return self.folder / f"{end:012}.log"

    def append(self, event: Any) -> None:
        """Append an event."""
        write(self.tail(), json.dumps(event).encode() + b"\n")

    def events(self) -> list[Any]:
        """Read all events."""
        lines = b"".join(path.read_bytes() for path in self.segments()).splitlines()
        return [json.loads(line) for line in lines]

    def drop(self) -> None:
        """Make room: remove the oldest segment, to which nobody writes any more."""
        self.segments()[0].unlink()


def start(path: Path) -> int:
    """Return the position at which a segment begins."""
    return int(path.stem)


def write(path: Path, content: bytes) -> None:
    """Append to a file, on the disk; and its name, which is the folder's content."""
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def works(folder: Path) -> None:
    """Drop the oldest segment between two appends."""
    log = Log(folder)
    for number in (1, 2, 3, 4):
        log.append({"order": number})
    log.drop()
    log.append({"order": 5})
    print(f"Segment 0 is removed, and the log has the orders {feed.numbers(log.events())}.")


def fails(folder: Path) -> None:
    """Let a reader count the events that it has read."""
    log = Log(folder)
    for number in (1, 2, 3, 4):
        log.append({"order": number})
    count = len(log.events())
    log.drop()
    log.append({"order": 5})
    log.append({"order": 6})
    rest = feed.numbers(log.events()[count:])
    print("Failure: a reader has read 4 events. Segment 0 is removed, 5 and 6 are written.")
    print(f"After the first 4 events the reader finds {rest}: it never sees 5 and 6.")


def holds(folder: Path) -> None:
    """Read on by a cursor after events were trimmed."""
    engine = feed.opened(folder)
    feed.append(engine, 1, 2, 3, 4)
    _, cursor = feed.read(engine)
    bound = feed.feed.bind(engine)
    bound.trim(bound.plan_trim(below=3))
    feed.append(engine, 5, 6)
    rest, _ = feed.read(engine, cursor)
    print(f"zeroeventhub: after the cursor that the feed gave it, a reader finds {rest}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
