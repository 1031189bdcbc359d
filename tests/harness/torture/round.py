"""Rounds of torture: crews that write, readers that count, a verdict; and mutants to be caught."""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TypeVar

from harness.engines import connected
from harness.torture.writers import (
    CREWS,
    FEEDS,
    PARTITIONS,
    WRITERS,
    Crew,
    Mix,
    create_tables,
    elsewhere,
    events,
    last_numbers,
    others,
    published,
)
from harness.waiting import until
from sqlalchemy import Engine, Table, create_engine, event, insert, text

from zeroeventhub import FIRST
from zeroeventhub.errors import Diverged, FeedFailure, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.publisher.bound_feed import BoundFeed

LIMITS = (1, 5, 20, 100)
HASTE = 1000  # the limit of a reader that has fallen behind
PATIENCE = 10  # seconds without a new event after which a reader that lacks some is stuck
READING_PAUSE = 0.005
"""Seconds at most that a reader waits after a statement, so that writers come in between."""

EXAMPLES = 3

_Answer = TypeVar("_Answer")


def reading_engine(url: str, dice: random.Random) -> Engine:
    """Make an engine whose readers dawdle between any two statements of a read."""
    engine = create_engine(url)

    @event.listens_for(engine, "after_cursor_execute")
    def dawdle(*_: object) -> None:
        if dice.random() < 0.5:
            time.sleep(dice.random() * READING_PAUSE)

    return engine


@dataclass
class Tally:
    """Count the events of a reader, in memory for its keys and not for its events.

    The next number of a key is always its last plus one.
    """

    events: int = 0
    twice: int = 0
    inverted: int = 0
    examples: list[str] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    missing: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def see(self, key: int, n: int) -> None:
        self.events += 1
        last = self.last.get(key, 0)
        if n == last + 1:
            self.last[key] = n
            return
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"event {n} of key {key} came behind event {last}")
        if n > last:
            self.missing[key].update(range(last + 1, n))
            self.last[key] = n
        elif n in self.missing[key]:
            self.missing[key].remove(n)
            self.inverted += 1
        else:
            self.twice += 1

    def lost(self) -> int:
        """Count the events that were passed over and have not come since."""
        return sum(map(len, self.missing.values()))

    def ahead(self, truth: Mapping[int, int]) -> int:
        """Count the committed events after the last one seen of their key."""
        return sum(max(0, n - self.last.get(key, 0)) for key, n in truth.items())

    def invented(self, truth: Mapping[int, int]) -> int:
        """Count the events that were shown and have never been committed."""
        return sum(max(0, last - truth.get(key, 0)) for key, last in self.last.items())


@dataclass(eq=False)
class WatchedFeed:
    """Read a feed that several readers use, and note when it says less than before."""

    table: Table
    feed: BoundFeed
    steady: bool = True
    horizon: int = 0
    has_answered: bool = False
    went_back: list[str] = field(default_factory=list)
    fell_silent: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def read(self, partition: int, cursor: str, limit: int) -> Page | None:
        """Read a page; None while the feed, which has just started, knows no horizon."""
        return self._ask(lambda: self.feed.read(partition, cursor, limit))

    def look(self) -> None:
        """Ask for the horizon, which must not lie below one that was known before."""
        before = self.horizon
        if (horizon := self._ask(self.feed.head)) is None:
            return
        with self.lock:
            if self.steady and horizon < before:
                self.went_back.append(f"{before} to {horizon}")
            self.horizon = max(self.horizon, horizon)

    def _ask(self, question: Callable[[], _Answer]) -> _Answer | None:
        had_answered = self.has_answered  # before, as another reader may hear an answer meanwhile
        try:
            answer = question()
        except (FeedFailure, Unavailable) as error:
            if had_answered or isinstance(error, FeedFailure):
                self.fell_silent.append(repr(error.__cause__ or error))
            return None
        self.has_answered = True
        return answer


class Reader(Thread):
    """Read a feed to its end with cursors of its own, and keep a tally."""

    def __init__(self, name: str, feed: WatchedFeed, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.feed = feed
        self.tally = Tally()
        self.stuck = 0
        self.diverged = 0
        self.failure: str | None = None
        self._dice = random.Random(seed)
        self._cursors = [FIRST] * PARTITIONS
        self._limits = [1] * PARTITIONS
        self._ended = Event()
        self._given_up = Event()
        self._truth: Mapping[int, int] = {}

    @property
    def is_wrong(self) -> bool:
        """Whether the reader has met anything that it should not."""
        return bool(self.tally.examples) or self.failure is not None

    def end(self, truth: Mapping[int, int]) -> None:
        """Say that the writers have ended, and what the last number of each key is."""
        self._truth = truth
        self._ended.set()

    def give_up(self) -> None:
        """Stop to read, wherever the reader is."""
        self._given_up.set()
        if self.ident:
            self.join(PATIENCE)

    def run(self) -> None:
        """Read until the writers have ended and nothing more comes."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - the verdict tells it
            self.diverged = int(isinstance(error, Diverged))
            self.failure = f"{error!r}, caused by {error.__cause__!r}"

    def _read(self) -> None:
        moved_at = time.monotonic()
        while not self._given_up.is_set():
            ended = self._ended.is_set()
            if self._sweep():
                moved_at = time.monotonic()
                continue
            if ended:
                self.stuck = self.tally.ahead(self._truth)
                if not self.stuck or time.monotonic() - moved_at > PATIENCE:
                    return
            time.sleep(0.002)

    def _sweep(self) -> bool:
        """Read a page of each partition; return whether there was any event."""
        moved = False
        for partition in range(PARTITIONS):
            page = self.feed.read(partition, self._cursors[partition], self._limits[partition])
            if page is None:
                continue
            full = len(page.events) == self._limits[partition]
            self._limits[partition] = HASTE if full else self._dice.choice(LIMITS)
            self._cursors[partition] = page.cursor
            moved = moved or bool(page.events)
            for event_ in page.events:
                self.tally.see(event_.data["key"], event_.data["n"])
        self.feed.look()
        return moved


Spoil = Callable[[Engine], None]
"""Lets the statements of an engine do something else."""


def rewritten(*changes: tuple[str, str]) -> Spoil:
    """Change parts of statements."""

    def spoil(engine: Engine) -> None:
        @event.listens_for(engine, "before_cursor_execute", retval=True)
        def rewrite(_connection, _cursor, statement, parameters, *_more):
            for old, new in changes:
                statement = statement.replace(old, new)
            return statement, parameters

    return spoil


_NO_LOCKS = rewritten(("FROM pg_locks WHERE", "FROM pg_locks WHERE false AND"))
_BACKWARDS = rewritten(
    (".id\n LIMIT", ".id DESC\n LIMIT"), (".position\n LIMIT", ".position DESC\n LIMIT")
)

MUTANTS: dict[tuple[str, str, str], Spoil] = {
    ("postgresql", "observed", "writers ignored"): _NO_LOCKS,
    ("postgresql", "gated", "marks ignored"): _NO_LOCKS,
    ("postgresql", "sequenced", "low mark that waits for no writer"): rewritten(
        ("virtualtransaction = ANY (state.holders)", "false"), ("state.low + 1000", "state.low")
    ),
    ("mariadb", "observed", "prepared transactions forgotten"): rewritten(
        ("XA RECOVER", "SELECT 1, 2, 3, 4 FROM DUAL WHERE FALSE")
    ),
    ("mariadb", "sequenced", "by everybody at once"): rewritten(("FOR UPDATE SKIP LOCKED", "")),
    ("sqlite", "single-writer", "pages read backwards"): _BACKWARDS,
    ("sqlite", "sequenced", "pages read backwards"): _BACKWARDS,
}
"""What is wrong, by the database and the ordering."""


FROZEN = 0.03  # seconds at most that a process is stopped
JOINING = 60  # seconds after which readers that do not come to an end are given up
SEEN = 100
"""How many events the first reader has seen before a round ends, on however slow a machine."""

_BACKENDS = text("""
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = :writers
""")
_PREPARED = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")


@dataclass
class Verdict:
    """Say how many events a round wrote, by which kinds of transactions, and what was wrong."""

    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def hear_feed(self, feed: WatchedFeed) -> None:
        """Take in what was seen of a feed object."""
        for what, seen in {"horizon back": feed.went_back, "silent": feed.fell_silent}.items():
            self._count(f"a feed of {feed.table}", what, len(seen), seen)

    def hear_reader(self, reader: Reader, truth: dict[int, int]) -> None:
        tally, examples = reader.tally, reader.tally.examples
        self._count(reader.name, "lost", tally.lost(), examples)
        self._count(reader.name, "twice", tally.twice, examples)
        self._count(reader.name, "inverted", tally.inverted, examples)
        self._count(reader.name, "invented", tally.invented(truth))
        self._count(reader.name, "stuck", reader.stuck)
        self._count(reader.name, "diverged", reader.diverged)
        if reader.failure:
            self.complaints.append(f"{reader.name} failed with {reader.failure}")

    def _count(self, who: str, what: str, count: int, examples: Sequence[str] = ()) -> None:
        if count:
            self.counts[what] += count
            self.complaints.append("; ".join([f"{who}: {count} {what}", *examples]))


def torture(
    url: str, ordering: str, *, seed: int, seconds: float, mix: Mix, spoil: Spoil | None = None
) -> Verdict:
    """Torture an ordering in an empty database."""
    verdict = Verdict()
    spoil = spoil or (lambda _engine: None)
    with ExitStack() as stack:
        engine = stack.enter_context(connected(url))
        _prepare(url, ordering, spoil, in_wal=seed % 2 == 0)
        readers = [*_readers(url, ordering, seed, spoil, stack)]
        for reader in readers:
            stack.callback(reader.give_up)
        first, *_, late = readers

        def is_wrong() -> bool:
            return any(reader.is_wrong for reader in readers)

        def write_on() -> None:
            with suppress(AssertionError):
                until(is_wrong, "a mistake is seen", seconds / 2)

        with _writing(engine, mix, str(seed), verdict):
            for reader in readers[:-1]:
                reader.start()
            write_on()
            late.start()
            write_on()
            until(
                lambda: first.tally.events > SEEN or not first.is_alive(),
                f"the {first.name} sees {SEEN} events",
            )
        if is_wrong():
            for reader in readers:
                reader.give_up()
        _judge(engine, readers, verdict)
    return verdict


def _prepare(url: str, ordering: str, spoil: Spoil, *, in_wal: bool) -> None:
    with connected(url) as engine:
        spoil(engine)
        if engine.dialect.name == "sqlite" and in_wal:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        with engine.begin() as connection:
            create_tables(connection)
        with engine.begin() as connection:
            for table in FEEDS:
                published(table, ordering).install(connection)


def _readers(
    url: str, ordering: str, seed: int, spoil: Spoil, stack: ExitStack
) -> Iterator[Reader]:
    """Yield readers of feed objects, each of which has an ordering of its own."""
    for table, names in (
        (events, ["first reader of a shared feed", "second reader of a shared feed"]),
        (events, ["reader with a feed of its own"]),
        (others, ["reader of the other feed"]),
        (events, ["reader that started late"]),
    ):
        engine = reading_engine(url, random.Random(f"{seed} {names}"))
        stack.callback(engine.dispose)
        spoil(engine)
        feed = published(table, ordering).bind(engine)
        watched = WatchedFeed(table, feed, steady=ordering != "gated")
        for name in names:
            yield Reader(name, watched, f"{seed} {name}")


@contextmanager
def _writing(engine: Engine, mix: Mix, seed: str, verdict: Verdict) -> Iterator[None]:
    """Let the crews write, and freeze them now and then."""

    def victims() -> Iterable[int]:
        yield from (crew.pid for crew in crews)
        if engine.dialect.name == "postgresql":
            yield from _backends(engine)

    url = engine.url.render_as_string(hide_password=False)
    crews = [Crew(url, seed, mix, index) for index in range(CREWS)]
    try:
        with _freezing(victims, f"{seed} freezer"):
            yield
    finally:
        written = [one for crew in crews for one in crew.end()]
        _clear(engine)
    for one in written:
        verdict.kinds += one.kinds
        verdict.complaints += [one.failure] if one.failure else []


@contextmanager
def _freezing(victims: Callable[[], Iterable[int]], seed: str) -> Iterator[None]:
    """Stop one process after the other between any two of its steps, for some milliseconds."""
    dice, ending = random.Random(seed), Event()

    def freeze() -> None:
        while not ending.is_set():
            pid = dice.choice(sorted(victims()))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(dice.random() * FROZEN)
                finally:
                    os.kill(pid, signal.SIGCONT)
            time.sleep(dice.random() * FROZEN)

    freezer = Thread(target=freeze, daemon=True)
    freezer.start()
    try:
        yield
    finally:
        ending.set()
        freezer.join()


def _backends(engine: Engine) -> list[int]:
    """Find the writers' backends of a PostgreSQL server that runs here and lets itself be stopped.

    Elsewhere, as in a container, a number may be another process: a backend of here shows the
    name of its database, which no other process has, in its command line.
    """

    def serves(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            return engine.url.database.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    with engine.connect() as connection:
        found = connection.scalars(_BACKENDS, {"writers": WRITERS}).all()
    return [pid for pid in found if serves(pid)]


def _clear(engine: Engine) -> None:
    """Wait until the writers' sessions are gone, and roll back what they have left prepared."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            backends = _BACKENDS.bindparams(writers=WRITERS)
            until(lambda: not connection.scalars(backends).all(), "the writers' sessions end")
            for name in connection.scalars(_PREPARED).all():
                connection.execute(text(f"ROLLBACK PREPARED '{name}'"))
        elif engine.dialect.name == "mariadb":
            for *_, name in connection.execute(text("XA RECOVER")).all():
                if name.startswith(engine.url.database.encode()):
                    connection.execute(text(f"XA ROLLBACK '{name.decode()}'"))


def _judge(engine: Engine, readers: Sequence[Reader], verdict: Verdict) -> None:
    """Let the readers come to the end beside an open writer of another table, and judge them."""
    with engine.connect() as connection:
        truths = {table: last_numbers(connection, table) for table in FEEDS}
        if engine.dialect.name != "sqlite":
            connection.execute(insert(elsewhere).values(n=1))
        for reader in readers:
            reader.end(truths[reader.feed.table])
        for reader in readers:
            reader.join(JOINING)
    verdict.events = sum(sum(truth.values()) for truth in truths.values())
    for reader in readers:
        verdict.hear_reader(reader, truths[reader.feed.table])
    for feed in dict.fromkeys(reader.feed for reader in readers):
        verdict.hear_feed(feed)
