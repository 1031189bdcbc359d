"""Step 7: retention removes what is old, waits for consumers, and refuses cursors from before."""

import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import feed
import step_5
from step_2 import start

from zeroeventhub.errors import Diverged


class Gone(Exception):
    """Say that events after a cursor were removed, and where the log begins now."""


class Log(step_5.Log):
    """A log that forgets, and says so."""

    def first(self) -> int:
        """Return the position at which the log begins: its first segment has it as a name."""
        return min(map(start, self.segments()), default=0)

    def read(self, cursor: int, limit: int = 100) -> tuple[list[Any], int]:
        """Return the events after a cursor, and the cursor after them; 0 is before all events."""
        page = super().read(cursor, limit)
        if 0 < cursor < self.first():  # asked after the page was read, as segments go meanwhile
            raise Gone(self.first())
        return page

    def trim(self, below: int, registered: Mapping[str, int]) -> None:
        """Remove segments below a position, but none that a registered consumer has not read."""
        until = min([below, self.horizon(), *registered.values()])
        for path, following in pairwise(self.segments()):  # the last one stays: it knows the end
            if start(following) <= until:
                path.unlink()


def works(folder: Path) -> None:
    """Trim a log with a consumer that is behind, and without."""
    log = Log(folder)
    for number in (1, 2, 3, 4, 5):
        log.append({"order": number})
    _, cursor = log.read(0, limit=1)
    log.trim(log.end(), {"search": cursor})
    print(f"Search has read order 1, and trimming waits: {feed.numbers(log.read(0)[0])} are left.")
    log.trim(log.end(), {})
    print(f"Search was silent for too long: {feed.numbers(log.read(0)[0])} is left.")
    try:
        log.read(cursor)
    except Gone as error:
        print(f"Search comes back and is refused: the log begins at {error}.")


def fails(folder: Path) -> None:
    """Restore a backup that lacks what a consumer has read."""
    log = Log(folder / "log")
    for number in (1, 2):
        log.append({"order": number})
    shutil.copytree(log.folder, folder / "backup")
    for number in (3, 4):
        log.append({"order": number})
    _, cursor = log.read(0)
    shutil.rmtree(log.folder)
    (folder / "backup").rename(log.folder)
    for number in (5, 6, 7):
        log.append({"order": number})
    rest = feed.numbers(log.read(cursor)[0])
    print("Failure: a backup with the orders 1 and 2 is restored; a consumer had read up to 4.")
    print(f"Orders 5, 6 and 7 are written. The consumer reads on with {rest}.")


def holds(folder: Path) -> None:
    """Restore a backup of a feed's database."""
    engine = feed.opened(folder)
    feed.append(engine, 1, 2)
    shutil.copy(folder / "shop.db", folder / "backup.db")
    feed.append(engine, 3, 4)
    _, cursor = feed.read(engine)
    (folder / "backup.db").replace(folder / "shop.db")
    feed.append(engine, 5, 6, 7)
    try:
        feed.read(engine, cursor)
    except Diverged as error:
        print("zeroeventhub: a cursor has a digest of the event before it. After the same backup,")
        print(f"it is refused with {error.status}, {error.problem}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
