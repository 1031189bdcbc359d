"""Step 6: processes of a consumer share partitions by leases, and a fence guards each commit."""

import errno
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import feed
from step_2 import start
from step_5 import Log

from zeroeventhub.errors import Trimmed

PARTITIONS = 2
LEASE = 30
"""Seconds after which another process takes over."""


def partition_of(key: str) -> int:
    """Return the partition of a key: all events of a key are in one, in their order."""
    return zlib.crc32(key.encode()) % PARTITIONS


class Fenced(Exception):
    """Say that another process has moved the cursor: nothing was applied."""


class Process:
    """One of the processes of a consumer, which share a database."""

    def __init__(self, name: str, database: Path) -> None:
        self.name = name
        self.database = sqlite3.connect(database)
        self.database.executescript(
            """CREATE TABLE IF NOT EXISTS invoices (number INTEGER);
            CREATE TABLE IF NOT EXISTS cursors
                (partition INTEGER PRIMARY KEY, place INTEGER, holder TEXT, until REAL)"""
        )
        with self.database:
            rows = [(partition,) for partition in range(PARTITIONS)]
            self.database.executemany("INSERT OR IGNORE INTO cursors VALUES (?, 0, '', 0)", rows)

    def lease(self, share: int, now: float) -> dict[int, int]:
        """Take or renew leases on a share of the partitions; return the cursors of these."""
        with self.database:
            taken = self.database.execute(
                """UPDATE cursors SET holder = :name, until = :until WHERE partition IN
                    (SELECT partition FROM cursors WHERE holder = :name OR until <= :now
                     ORDER BY holder <> :name, partition LIMIT :share)
                RETURNING partition, place""",
                {"name": self.name, "now": now, "until": now + LEASE, "share": share},
            )
            return dict(taken.fetchall())

    def apply(self, partition: int, before: int, events: list[Any], after: int) -> None:
        """Commit effects and cursor, if the cursor is still where the events were read."""
        move = "UPDATE cursors SET place = ? WHERE partition = ? AND place = ?"
        with self.database:
            if self.database.execute(move, (after, partition, before)).rowcount == 0:
                raise Fenced
            rows = [(number,) for number in feed.numbers(events)]
            self.database.executemany("INSERT INTO invoices VALUES (?)", rows)


def works(folder: Path) -> None:
    """Let a process freeze until another one has taken over its partition."""
    logs = [Log(folder / str(partition)) for partition in range(PARTITIONS)]
    for number, customer in enumerate(("ada", "cy", "ada", "cy"), 1):
        logs[partition_of(customer)].append({"order": number, "customer": customer})
    first, second = (Process(name, folder / "billing.db") for name in ("first", "second"))
    shares = [first.lease(share=1, now=0), second.lease(share=1, now=0)]
    print(f"Two processes share the partitions: {list(shares[0])} and {list(shares[1])}.")
    [(frozen, before)] = shares[0].items()
    page = logs[frozen].read(before)
    for partition, cursor in second.lease(share=2, now=LEASE + 1).items():
        second.apply(partition, cursor, *logs[partition].read(cursor))
    print("The first one freezes until its lease has ended. The second one takes over.")
    try:
        first.apply(frozen, before, *page)
    except Fenced:
        print("The first one wakes up and is fenced.")
    invoices = first.database.execute("SELECT number FROM invoices ORDER BY number")
    print(f"There are invoices for the orders {[number for (number,) in invoices]}.")


DISK = 80
"""Bytes that stand for the whole disk."""


def append(log: Log, number: int) -> None:
    """Append an order on a small disk."""
    if log.end() - start(log.segments()[0]) >= DISK:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    log.append({"order": number})


def fails(folder: Path) -> None:
    """Fill the disk, and make room while a consumer is behind."""
    log = Log(folder)
    for number in (1, 2, 3, 4):
        log.append({"order": number})
    _, cursor = log.read(0, limit=1)
    try:
        append(log, 5)
    except OSError as error:
        print(f"Failure: the disk is full, and order 5 is refused: {error.strerror}.")
    log.drop()
    append(log, 5)
    rest = feed.numbers(log.read(cursor)[0])
    print("The oldest segment is removed, and order 5 is written.")
    print(f"A consumer that had read order 1 reads on with {rest}, and knows nothing of 2.")


def holds(folder: Path) -> None:
    """Trim a feed while a consumer is behind."""
    engine = feed.opened(folder)
    feed.append(engine, 1, 2, 3, 4)
    _, cursor = feed.read(engine, limit=1)
    bound = feed.feed.bind(engine)
    bound.trim(bound.plan_trim(below=3))
    feed.append(engine, 5)
    try:
        feed.read(engine, cursor)
    except Trimmed as error:
        rest, _ = feed.read(engine, error.earliest or "")
        print(f"zeroeventhub: its cursor is refused with {error.status}, {error.problem},")
        print(f"and the answer names the cursor of what is left: {rest}.")


if __name__ == "__main__":
    feed.run(works, fails, holds)
