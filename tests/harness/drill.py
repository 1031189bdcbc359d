"""A database that is destroyed again and again, and restored from its archive: row R18."""

from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import event, insert, select

from harness.archives import PARTITIONS, Died, dying, source
from harness.engines import connected
from harness.faults.account import naming
from harness.kills.points import Points
from harness.published import install
from harness.shop import metadata, orders
from harness.statements import scalars
from harness.trimmed import position_of
from zeroeventhub import FIRST, ArchiveFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Gone, Unavailable
from zeroeventhub.settings import Capacity

SMALL = Capacity(page_bytes=200)


def drilled(database, seeds):
    """Drill with a new archive for each seed, on databases that are opened; return all counts."""
    counts = Counter()
    for seed in seeds:
        with naming(f"drill, seed {seed}"), TemporaryDirectory() as folder, ExitStack() as opened:
            store, new_url = Path(folder) / "archive", lambda: opened.enter_context(database())
            counts += Drill(Random(seed), store, new_url).run() + Counter(drills=1)
    return counts


class Reader:
    """A consumer of one partition, which knows the positions of the events that it has applied."""

    def __init__(self, partition):
        self.partition = partition
        self.cursor, self.applied = FIRST, []

    @property
    def position(self):
        """The position after which it reads on."""
        return 0 if self.cursor == FIRST else position_of(self.cursor)

    def read(self, feed, limit):
        """Apply a page; return whether it had events."""
        page = feed.read(self.partition, self.cursor, limit, each=True)
        self.cursor = page.cursor
        self.applied += map(position_of, page.cursors)
        return bool(page.events)

    def forget(self, feed, sealed):
        """Undo what it knows of events that were lost, as an operator decides."""
        self.applied = [one for one in self.applied if one <= sealed]
        self.cursor = feed.cursor_after(sealed)


class Drill:
    """Write, seal and read at random; destroy the database at any moment, and restore it.

    `url` is that of the database of now; `new_url` gives one that is empty.
    """

    def __init__(self, dice, store, new_url):
        self.dice, self.store, self.new_url = dice, store, new_url
        self.readers = [Reader(number % PARTITIONS) for number in range(5)]
        self.counts = Counter()
        self.url = new_url()

    def feed(self, engine, archive=None):
        """Return the feed as a new process has it."""
        return source(archive or Archive(self.store)).bind(engine, SMALL)

    def write(self, engine):
        """Append events of one content: lost ones and new ones differ by position alone."""
        rows = [{"part": self.dice.randrange(PARTITIONS), "data": {"n": 0}}]
        with engine.begin() as connection:
            connection.execute(insert(orders), rows * self.dice.randint(1, 9))

    def live(self, engine):
        """Let writers, sealers and readers work for a while; return the positions of events."""
        dice = self.dice
        for what in dice.choices(["write", "seal", "read"], [3, 1, 2], k=dice.randint(3, 10)):
            if what == "write":
                self.write(engine)
            elif what == "seal":
                feed = self.feed(engine, dying(self.store, dice.randint(1, 15)))
                with suppress(Died):
                    feed.seal(segment_events=dice.randint(1, 9))
            else:
                for reader in dice.sample(self.readers, 3):
                    reader.read(self.feed(engine), dice.randint(1, 9))
        return scalars(engine, select(orders.c.id))

    def restore(self):
        """Restore a new database, and be killed meanwhile, up to three times."""
        for _ in range(self.dice.randint(0, 3)):
            with connected(self.url) as engine, suppress(ConfigurationError):  # if all was done
                metadata.create_all(engine)
                # Not at a rollback, which nobody would make in its place, as the process goes on.
                points = Points(self.dice.randint(1, 60), self.die)
                for moment in ("before_cursor_execute", "commit"):
                    event.listen(engine, moment, points.touch)
                with suppress(Died):
                    self.feed(engine).restore(skipped=2_000)
        with connected(self.url) as engine, suppress(ConfigurationError):
            metadata.create_all(engine)
            self.feed(engine).restore(skipped=2_000)

    def die(self):
        """End a process."""
        self.counts["killed"] += 1
        raise Died

    def go_on(self, engine, reader, sealed):
        """Let a reader read on to the end; it gets an error if it had read what was lost."""
        alone, feed = ArchiveFeed(Archive(self.store), capacity=SMALL), self.feed(engine)
        if reader.position > sealed:
            with pytest.raises(Unavailable):
                reader.read(alone, 9)
            with pytest.raises(Gone):
                reader.read(feed, 9)
            self.counts["informed"] += 1
            reader.forget(feed, sealed)
        else:
            reader.read(alone, 3)
            self.counts["went on"] += 1
        while reader.read(feed, self.dice.randint(1, 9)):
            pass
        own = select(orders.c.id).where(orders.c.part == reader.partition)
        assert reader.applied == scalars(engine, own.order_by(orders.c.id))
        self.counts["events"] += len(reader.applied)

    def run(self, disasters=3):
        """Destroy and restore again and again; return what was counted."""
        with connected(self.url) as engine:
            metadata.create_all(engine)
            install(source(Archive(self.store)), engine)
        for _ in range(disasters):
            with connected(self.url) as engine:
                positions = self.live(engine)
            sealed = Archive(self.store).sealed()
            if not sealed:
                continue
            self.counts["disasters"] += 1
            self.counts["lost"] += sum(position > sealed for position in positions)
            self.url = self.new_url()
            self.restore()
            with connected(self.url) as engine:
                for _ in range(self.dice.randint(0, 20)):
                    self.write(engine)
                for reader in self.readers:
                    self.go_on(engine, reader, sealed)
        return self.counts
