"""A billing service that follows a shop's orders: what the tests of consumers have in common."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from starlette.applications import Starlette

from harness.shop import orders
from zeroeventhub import Client, Consumer, CursorStore, Observer, TableFeed, feed_routes

PATIENCE = 30
"""Seconds after which what is waited for does not come any more."""

effects = Table(
    "effects",
    MetaData(),
    Column("arrival", Integer, primary_key=True),
    Column("n", Integer, nullable=False),
    Column("worker", String(40)),
)


def shop(engine, partitions: int) -> Starlette:
    """Make an application that publishes the orders."""
    feed = TableFeed(orders, partition="part", partitions=partitions, data="data")
    return Starlette(routes=feed_routes("/orders", feed, engine))


def make_tables(store, connection) -> None:
    """Create what a billing service keeps."""
    store.create_tables(connection)
    effects.metadata.create_all(connection)


def write(connection, page) -> None:
    """Write the effects of a page."""
    connection.execute(insert(effects), [{"n": event.data["n"]} for event in page.events])


async def async_write(connection, page) -> None:
    """Write the effects of a page through an async connection or session."""
    await connection.execute(insert(effects), [{"n": event.data["n"]} for event in page.events])


def landed(store) -> list[int]:
    """Read all effects, in the order they were written."""
    with store.engine.connect() as connection:
        return list(connection.scalars(select(effects.c.n).order_by(effects.c.arrival)))


async def async_landed(store) -> list[int]:
    """Read all effects through an async engine."""
    async with store.engine.connect() as connection:
        return list(await connection.scalars(select(effects.c.n).order_by(effects.c.arrival)))


def workers(store) -> dict[int, str]:
    """Tell by event who has written its effect."""
    with store.engine.connect() as connection:
        rows = connection.execute(select(effects.c.n, effects.c.worker))
        return {row.n: row.worker for row in rows}


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    ending = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ending
        time.sleep(0.01)


class Impatient(Client):
    """A client that does not let the feed wait long at its head, so that tests end soon."""

    def fetch(self, partition, cursor, *, wait=None, **options):
        return super().fetch(partition, cursor, wait=min(wait or 0.0, 0.1), **options)


class Watch(Observer):
    """Remember what is held, and what was refused."""

    def __init__(self):
        self.leases = frozenset()
        self.fences = 0

    def held(self, consumer, partitions):
        self.leases = partitions

    def fenced(self, consumer, partition):
        self.fences += 1


class Runner:
    """Run a consumer in a thread, and remember what it ended in."""

    def __init__(self, consumer, apply=write, **options):
        self.consumer = consumer
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(apply, options), daemon=True)
        self._thread.start()

    def _run(self, apply, options):
        try:
            self.consumer.run(apply, **options)
        except BaseException as error:  # noqa: BLE001 - raised where its end is waited for
            self.error = error

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Wait for the end, and raise what it ended in."""
        self._thread.join(PATIENCE)
        assert not self.is_running
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop it, and wait for the end."""
        self.consumer.stop()
        self.end()


class _Marks(Observer):
    """Leave marks in a folder: before a page is applied, and when a commit is refused."""

    def __init__(self, folder: Path, worker: str, *, waits: bool):
        self._folder = folder
        self._worker = worker
        self._waits = waits

    def applying(self, consumer, partition, events):
        if self._waits:
            (self._folder / f"{self._worker}-applies").touch()
            wait_until((self._folder / "go").exists)
        return super().applying(consumer, partition, events)

    def fenced(self, consumer, partition):
        (self._folder / f"{self._worker}-fenced").touch()


def work(url: str, database: str, folder: str, worker: str, **options) -> None:
    """Run a consumer in a process of its own, until SIGTERM.

    Args:
        url: the feed's.
        database: the store's.
        folder: where to leave marks.
        worker: the name that effects are signed with.
        options: the consumer's; and `waits`, whether to wait for a mark named "go" before a page
            is applied.
    """
    waits = options.pop("waits", False)
    engine = create_engine(database)

    def apply(connection, page):
        rows = [{"n": event.data["n"], "worker": worker} for event in page.events]
        connection.execute(insert(effects), rows)

    with httpx.Client() as http:
        marks = _Marks(Path(folder), worker, waits=waits)
        store = CursorStore(engine)
        Consumer(Impatient(url, http), store, "billing", observer=marks, **options).run(apply)
    engine.dispose()


def kill(process, number=signal.SIGKILL) -> None:
    """End a process that may be stopped, and wait for its end."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
    process.join(PATIENCE)
