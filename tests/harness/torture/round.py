"""One round: fresh tables, crews that write, readers that page beside them, and a verdict."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from sqlalchemy import Engine, insert, text

from harness.log import connected
from harness.torture import tables
from harness.torture.mutants import Spoil
from harness.torture.readers import Reader, WatchedFeed, reading_engine
from harness.torture.writers import WRITERS, Crew, Mix, Written
from harness.waiting import until

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

    def hear_writer(self, written: Written) -> None:
        """Take in what a writer has written."""
        self.kinds += written.kinds
        self.complaints += [written.failure] if written.failure else []

    def hear_feed(self, feed: WatchedFeed) -> None:
        """Take in what was seen of a feed object."""
        for what, seen in {"horizon back": feed.went_back, "silent": feed.fell_silent}.items():
            self._count(f"a feed of {feed.table}", what, len(seen), seen)

    def hear_reader(self, reader: Reader, truth: dict[int, int]) -> None:
        """Take in what a reader has seen."""
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
    url: str,
    ordering: str,
    crews: Sequence[Crew],
    *,
    seed: int,
    seconds: float,
    mix: Mix,
    spoil: Spoil | None = None,
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

        with _writing(engine, crews, mix, str(seed), verdict):
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
            tables.create(connection)
        with engine.begin() as connection:
            for table in tables.FEEDS:
                tables.published(table, ordering).install(connection)


def _readers(
    url: str, ordering: str, seed: int, spoil: Spoil, stack: ExitStack
) -> Iterator[Reader]:
    """Yield readers of feed objects, each of which has an ordering of its own."""
    for table, names in (
        (tables.events, ["first reader of a shared feed", "second reader of a shared feed"]),
        (tables.events, ["reader with a feed of its own"]),
        (tables.others, ["reader of the other feed"]),
        (tables.events, ["reader that started late"]),
    ):
        engine = reading_engine(url, random.Random(f"{seed} {names}"))
        stack.callback(engine.dispose)
        spoil(engine)
        feed = tables.published(table, ordering).bind(engine)
        watched = WatchedFeed(table, feed, steady=ordering != "gated")
        for name in names:
            yield Reader(name, watched, f"{seed} {name}")


@contextmanager
def _writing(
    engine: Engine, crews: Sequence[Crew], mix: Mix, seed: str, verdict: Verdict
) -> Iterator[None]:
    """Let the crews write, and freeze them now and then."""

    def victims() -> Iterable[int]:
        yield from (crew.pid for crew in crews)
        if engine.dialect.name == "postgresql":
            yield from _backends(engine)

    url = engine.url.render_as_string(hide_password=False)
    try:
        with _freezing(victims, f"{seed} freezer"):
            for index, crew in enumerate(crews):
                crew.begin(url, seed, mix, index, len(crews))
            yield
    finally:
        written = [one for crew in crews for one in crew.end()]
        _clear(engine)
    for one in written:
        verdict.hear_writer(one)


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
        truths = {table: tables.truth(connection, table) for table in tables.FEEDS}
        if engine.dialect.name != "sqlite":
            connection.execute(insert(tables.elsewhere).values(n=1))
        for reader in readers:
            reader.end(truths[reader.feed.table])
        for reader in readers:
            reader.join(JOINING)
    verdict.events = sum(sum(truth.values()) for truth in truths.values())
    for reader in readers:
        verdict.hear_reader(reader, truths[reader.feed.table])
    for feed in dict.fromkeys(reader.feed for reader in readers):
        verdict.hear_feed(feed)
