"""What consumers under fire have written, and whether that is the truth."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError

from harness.kills.script import KEYS, Script, count_of
from zeroeventhub import CursorStore
from zeroeventhub.cursors.transience import is_transient

NAME = "under fire"
"""The consumer's name."""

PATIENCE = 60
"""Seconds after which a lock that the dead have left open should be gone."""

effects = Table(
    "effects",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("part", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("worker", Integer, nullable=False),
    sqlite_autoincrement=True,
)
"""One row for every time that an event took effect, in the order in which they did."""


def write(
    connection: Connection, partition: int, numbers: Sequence[int], *, worker: int = 0
) -> None:
    """Let events take effect."""
    rows = [{"part": partition, "n": number, "worker": worker} for number in numbers]
    connection.execute(insert(effects), rows)


@dataclass(frozen=True)
class State:
    """Hold what a consumer's database says, all of one moment.

    Attributes:
        counts: by partition, how many events are before its cursor.
        applied: by partition, the numbers of the events that took effect, in order.
        letters: by partition, the numbers of the events that were set aside, in order.
    """

    counts: Mapping[int, int]
    applied: Mapping[int, list[int]]
    letters: Mapping[int, list[int]]


class Ledger:
    """Hold the database of a consumer under fire."""

    def __init__(self, engine: Engine, script: Script) -> None:
        self.engine = engine
        self.script = script
        self.store = CursorStore(engine)
        with engine.begin() as connection:
            self.store.create_tables(connection)
            effects.metadata.create_all(connection)

    def clear(self) -> None:
        """Start again from nothing."""
        tables = (*self.store.tables.all(), effects)
        self._write(lambda connection: [connection.execute(delete(table)) for table in tables])

    def reset(self) -> None:
        """Let the consumer start again, and empty what it has written."""
        self._write(
            lambda connection: (
                self.store.reset(connection, NAME),
                connection.execute(delete(effects)),
            )
        )

    def state(self) -> State:
        """Read everything in one snapshot."""
        applied: dict[int, list[int]] = defaultdict(list)
        letters: dict[int, list[int]] = defaultdict(list)
        with self.engine.connect() as connection:
            _freeze(connection)
            cursors = self.store.cursors(connection, NAME)
            query = select(effects.c.part, effects.c.n).order_by(effects.c.number)
            for row in connection.execute(query):
                applied[row.part].append(row.n)
            for letter in self.store.dead_letters.letters(connection, NAME):
                letters[letter.partition].append(letter.event.data["data"]["n"])
        counts = {partition: count_of(cursor) for partition, cursor in cursors.items()}
        return State(counts, applied, letters)

    def arrived(self) -> list[int]:
        """Return the numbers of all events that took effect, in the order in which they did."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(effects.c.n).order_by(effects.c.number)))

    def expire(self) -> None:
        """Let all leases run out at once, as they would in time."""
        tables = (self.store.tables.leases, self.store.tables.members)
        self._write(
            lambda connection: [
                connection.execute(update(table).values(expires_at=0)) for table in tables
            ]
        )

    def _write(self, action: Callable[[Connection], object]) -> None:
        """Write in a transaction, in spite of those that the dead have left open."""
        ending = time.monotonic() + PATIENCE
        while True:
            try:
                with self.engine.begin() as connection:
                    action(connection)
            except DBAPIError as error:
                if not is_transient(error) or time.monotonic() > ending:
                    raise
            else:
                return

    def workers(self) -> set[int]:
        """Return the numbers of the workers whose events took effect."""
        with self.engine.connect() as connection:
            return set(connection.scalars(select(effects.c.worker).distinct()))

    def held(self) -> list[int]:
        """Return the partitions that somebody holds a lease of."""
        with self.engine.connect() as connection:
            standings = self.store.standings(connection, NAME)
        return [each.partition for each in standings if each.owner is not None]

    def complaints(self, state: State, *, lanes: bool = False) -> Iterator[str]:
        """Say what cannot be: whatever happened, cursors and effects are of one moment."""
        for partition in range(self.script.partitions):
            count = state.counts.get(partition, 0)
            for what, found, due in (
                ("applied", state.applied.get(partition, []), self.script.effects),
                ("set aside", state.letters.get(partition, []), self.script.letters),
            ):
                wrong = _wrong_lanes(found, due, count) if lanes else _wrong(found, due(count))
                for fault in wrong:
                    yield f"partition {partition} at {count}: {fault}, {what}"


def _freeze(connection: Connection) -> None:
    """Let all that is read from here on be of one moment."""
    match connection.dialect.name:
        case "postgresql":
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        case "sqlite":
            connection.exec_driver_sql("BEGIN")


def _wrong(found: list[int], due: list[int]) -> Iterator[str]:
    if found == due:
        return
    yield from _twice(found)
    if lost := set(due) - set(found):
        yield f"lost {sorted(lost)}"
    if ahead := set(found) - set(due):
        yield f"ahead of the cursor {sorted(ahead)}"
    if [n for n in found if n in due] != sorted(set(found) & set(due)):
        yield f"inverted {found}"


def _wrong_lanes(found: list[int], due, count: int) -> Iterator[str]:
    yield from _twice(found)
    if lost := set(due(count)) - set(found):
        yield f"lost {sorted(lost)}"
    every = due(max([count, *(n + 2 * KEYS for n in found)]))
    for key in range(KEYS):
        of_key = [n for n in found if n % KEYS == key]
        if of_key != [n for n in every if n % KEYS == key][: len(of_key)]:
            yield f"inverted {of_key}"


def _twice(found: list[int]) -> Iterator[str]:
    if twice := [n for n, times in Counter(found).items() if times > 1]:
        yield f"twice {twice}"
