"""What is published while consumers are killed, what they write, and whether that is the truth."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, LAST, CursorStore, Event, FeedInfo, Page, Partition, errors
from zeroeventhub.databases.error_codes import is_transient

KEYS = 3  # how many keys the events of a partition have, in turn
NAME = "under fire"  # the consumer's name
PATIENCE = 60  # seconds after which a lock that the dead have left open should be gone


Counts = dict[int, int]
Numbers = dict[int, list[int]]  # of events, by partition


@dataclass(frozen=True)
class Script:
    """Say what each event of a feed is, and what has to become of it.

    Every third one may be poison, every fourth one a repeat, and every third page may be followed
    by other partitions; a consumer may leave out events at the start.
    """

    partitions: int = 2
    poison: bool = False
    repeats: bool = False
    replaced: bool = False
    start: int = 0

    def number(self, place: int) -> int:
        """Return the number of the event at a place, which is the place unless it is a repeat."""
        return place - 3 if self.repeats and place % 4 == 3 else place

    def is_poison(self, number: int) -> bool:
        return self.poison and number % 3 == 1

    def event(self, partition: int, place: int) -> Event:
        number = self.number(place)
        return Event.of(
            {
                "specversion": "1.0",
                "id": f"{partition}-{number}",
                "source": "/script",
                "type": "written",
                "subject": f"{partition}-{number % KEYS}",
                "data": {"n": number},
            }
        )

    def due(self, count: int, *, poison: bool) -> list[int]:
        """Return which of a partition's first events have to be applied, or set aside, in order."""
        numbers = dict.fromkeys(map(self.number, range(self.start, count)))
        return [n for n in numbers if self.is_poison(n) == poison]


class ScriptedFeed:
    """Publish a script, up to a place that may be moved."""

    def __init__(self, script: Script, end: int) -> None:
        self.script = script
        self.end = end
        self._pages = 0

    async def info(self) -> FeedInfo:
        size, script = self.script.partitions, self.script
        age = self._pages // 3 if script.replaced else 0
        partitions = tuple(
            Partition(number, cursor_from=tuple(range(number - size, -1, -size)))
            for number in range(age * size, (age + 1) * size)
        )
        return FeedInfo(partitions, f"v{age}", exactly_once=not script.repeats)

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor; a cursor counts the events before it."""
        self._pages += 1
        place = self.end if cursor == LAST else count_of(cursor)
        if place > self.end:
            raise errors.Diverged("The cursor is behind the last event.")
        upto = min(place + limit, self.end)
        same = partition % self.script.partitions
        return Page([self.script.event(same, each) for each in range(place, upto)], f"c{upto}")


def number_of(event: Event) -> int:
    """Return the number of an event, which may be a CloudEvent or the bare data of one."""
    return event.data.get("data", event.data)["n"]


def count_of(cursor: str) -> int:
    """Return how many events are before a cursor."""
    if cursor == FIRST:
        return 0
    if not cursor.startswith("c"):
        raise errors.BadCursor("A cursor of this feed is a c and a number.")
    return int(cursor[1:])


effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sqlite_autoincrement=True,
)
"""One row for every time that an event took effect, in the order in which they did."""


def write(connection: sa.Connection, events: Sequence[Event]) -> None:
    """Let events take effect."""
    parts = [int(event.data["id"].partition("-")[0]) for event in events]
    numbers = map(number_of, events)
    rows = [{"part": part, "n": n} for part, n in zip(parts, numbers, strict=True)]
    connection.execute(sa.insert(effects), rows)


class Ledger:
    """Hold the database of a consumer under fire."""

    def __init__(self, engine: sa.Engine, script: Script) -> None:
        self.engine = engine
        self.script = script
        self.store = CursorStore(engine)
        with engine.begin() as connection:
            self.store.create_tables(connection)
            effects.metadata.create_all(connection)

    def clear(self) -> None:
        tables = (*self.store.tables.all(), effects)
        self._write(lambda connection: [connection.execute(sa.delete(table)) for table in tables])

    def expire(self) -> None:
        """Let all leases run out at once, as they would in time."""
        past = [
            sa.update(table).values(expires_at=0)
            for table in (self.store.tables.leases, self.store.tables.members)
        ]
        self._write(lambda connection: [connection.execute(one) for one in past])

    def _write(self, action: Callable[[sa.Connection], object]) -> None:
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

    def state(self) -> tuple[Counts, Numbers, Numbers]:
        """Read in one snapshot how far cursors are, what took effect, and what was set aside."""
        applied: Numbers = defaultdict(list)
        letters: Numbers = defaultdict(list)
        size = self.script.partitions
        with self.engine.connect() as connection:
            match connection.dialect.name:
                case "postgresql":
                    level = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
                    connection.exec_driver_sql(level)
                case "sqlite":
                    connection.exec_driver_sql("BEGIN")
            cursors = self.store.cursors(connection, NAME)
            query = sa.select(effects.c.part, effects.c.n).order_by(effects.c.number)
            for row in connection.execute(query):
                applied[row.part].append(row.n)
            for letter in self.store.dead_letters.letters(connection, NAME):
                letters[letter.partition % size].append(number_of(letter.event))
        counts = {number % size: count_of(cursor) for number, cursor in cursors.items()}
        return counts, applied, letters

    def complaints(self, *, lanes: bool) -> Iterator[str]:
        """Say what cannot be: whatever happened, cursors and effects are of one moment."""
        counts, applied, letters = self.state()
        for partition in range(self.script.partitions):
            count = counts.get(partition, 0)
            for what, aside, found in (
                ("applied", False, applied[partition]),
                ("aside", True, letters[partition]),
            ):
                # Lanes apply events of the page behind the cursor, in the order of each key.
                ahead = max([count, *(n + 2 * KEYS for n in found)]) if lanes else count
                due = self.script.due(count, poison=aside)
                possible = self.script.due(ahead, poison=aside)
                for fault in _wrong(found, due, possible, KEYS if lanes else 1):
                    yield f"partition {partition} at {count}: {fault}, {what}"


def _wrong(found: list[int], due: list[int], possible: list[int], keys: int) -> Iterator[str]:
    if twice := [n for n, times in Counter(found).items() if times > 1]:
        yield f"twice {twice}"
    if lost := set(due) - set(found):
        yield f"lost {sorted(lost)}"
    for key in range(keys):
        of_key = [n for n in found if n % keys == key]
        if of_key != [n for n in possible if n % keys == key][: len(of_key)]:
            yield f"inverted, or ahead of the cursor: {of_key}"
