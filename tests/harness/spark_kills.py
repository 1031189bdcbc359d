"""Kill the driver of a stream into Parquet, with its JVM, again and again: row R16."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, create_engine, select
from starlette.applications import Starlette

from harness.faults.findings import Findings, naming
from harness.shop import metadata, orders, place
from harness.spark import prepare
from harness.spark_stream import LIMIT
from harness.waiting import until
from harness.web import serving
from zeroeventhub import TableFeed, feed_routes

__all__ = ["killed_streams"]

SCRIPT = Path(__file__).parent / "spark_stream.py"
PARTITIONS = 2
AHEAD = 5
PATIENCE = 120
"""Seconds in which the moment to kill a driver has to come, and the last one has to end."""


@dataclass
class Stream:
    """Hold a stream's folder, and how often its publisher was asked.

    Attributes:
        folder: of its checkpoint and its rows.
        url: of the feed.
        asked: how many requests have come.
    """

    folder: Path
    url: str = ""
    asked: int = field(default=0)

    def planned(self) -> int:
        """Count the batches whose ends are known."""
        return self._last("checkpoint/offsets")

    def written(self) -> int:
        """Count the files of rows, committed or not."""
        return len(list((self.folder / "rows").glob("*.parquet")))

    def landed(self) -> int:
        """Count the batches that are in the rows for good."""
        return self._last("rows/_spark_metadata")

    def committed(self) -> int:
        """Count the batches that Spark knows to be done."""
        return self._last("checkpoint/commits")

    def _last(self, name: str) -> int:
        folder = self.folder / name
        names = os.listdir(folder) if folder.exists() else []  # noqa: PTH208 - every millisecond
        return max((int(one.split(".")[0]) + 1 for one in names if one[0].isdigit()), default=0)

    def moment(self, dice: random.Random) -> tuple[str, Callable[[], bool]]:
        """Draw a moment to kill the driver at; say what it is called."""
        name = dice.choice(("asked", "planned", "written", "landed", "later"))
        batch = self.committed() + dice.randrange(4)
        asked = self.asked + dice.randrange(1, 40)
        files = self.written() + dice.randrange(1, 6)
        late = time.monotonic() + dice.uniform(0.2, 1)
        moments: dict[str, Callable[[], bool]] = {
            "asked": lambda: self.asked >= asked,
            "planned": lambda: self.planned() > max(batch, self.committed()),
            "written": lambda: self.written() >= files,
            "landed": lambda: self.landed() > max(batch, self.committed()),
            "later": lambda: self.committed() > batch and time.monotonic() > late,
        }
        return name, moments[name]

    @contextmanager
    def driving(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a driver in a group of processes of its own, and kill the group."""
        paths = [str(SCRIPT.parents[1]), str(SCRIPT.parents[2])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (self.folder / "log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, SCRIPT, self.folder, self.url, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        try:
            yield driver
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def killed_streams(
    database: str, folder: Path, *, seed: int, kills: int, tell: Callable[[str], object] = print
) -> Findings:
    """Kill the driver of a stream at drawn moments, and compare what has come with the table.

    Args:
        database: of the publisher, empty.
        folder: for the stream, empty.
        seed: draws the moments.
        kills: how many.
        tell: hears of each.
    """
    prepare()
    name = f"killed streams, seed {seed}"
    dice, findings = random.Random(name), Findings()
    engine = create_engine(database)
    metadata.create_all(engine)
    stream = Stream(folder)
    with naming(name), _publishing(engine, stream):
        with _writing(engine, stream):
            for number in range(kills):
                kind = _kill(stream, dice)
                tell(f"killed streams: {number + 1}, {kind}")
                findings.counts += {"kills": 1, kind: 1}
        seen = _finish(stream)
    findings.compare(name, _by_partition(_rows(engine)), _by_partition(seen))
    findings.counts["batches"] = stream.committed()
    engine.dispose()
    return findings


def _finish(stream: Stream) -> list[tuple[int, int]]:
    """Read what is left, and return all rows that have come."""
    file = stream.folder / "rows.json"
    with stream.driving(str(file)) as driver:
        if driver.wait(PATIENCE):
            raise AssertionError((stream.folder / "log").read_text())
    return sorted(map(tuple, json.loads(file.read_text())))


def _kill(stream: Stream, dice: random.Random) -> str:
    """Start a driver and kill it; return the name of the moment."""
    name, is_there = stream.moment(dice)
    with stream.driving() as driver:
        until(
            lambda: is_there() or driver.poll() is not None,
            f"the moment {name!r} comes at which the driver is to be killed",
            PATIENCE,
        )
        if driver.poll() is not None:
            raise AssertionError((stream.folder / "log").read_text())
    return name


@contextmanager
def _publishing(engine: Engine, stream: Stream) -> Iterator[None]:
    """Publish the orders, and count requests."""
    feed = TableFeed(orders, data="data", partition="part", partitions=PARTITIONS)
    application = Starlette(routes=feed_routes("/orders", feed, engine))

    async def counting(scope, receive, send):
        stream.asked += scope["type"] == "http"
        await application(scope, receive, send)

    with serving(counting) as url:
        stream.url = f"{url}/orders"
        yield


@contextmanager
def _writing(engine: Engine, stream: Stream) -> Iterator[None]:
    """Write orders meanwhile, and keep some batches ahead."""
    stopping = threading.Event()

    def write() -> None:
        first = 0
        while not stopping.wait(0.05):
            if first < (stream.committed() + AHEAD) * LIMIT:
                with engine.begin() as connection:
                    place(connection, 12, first=first, partitions=PARTITIONS)
                first += 12

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "The writer does not end."


def _rows(engine: Engine) -> list[tuple[int, int]]:
    with engine.connect() as connection:
        found = connection.execute(select(orders.c.part, orders.c.data).order_by(orders.c.id))
        return [(part, data["n"]) for part, data in found]


def _by_partition(rows: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, number in rows:
        found[partition].append(number)
    return found
