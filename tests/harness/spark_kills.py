"""Kill the driver of a stream into Parquet, with its JVM, again and again: row R16.

    python -m harness.spark_kills FOLDER URL

is such a driver, which reads on from where an earlier one was killed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, select
from starlette.applications import Starlette

from harness.faults.account import Findings, naming
from harness.shop import fill, orders, write
from harness.spark import environment, prepare, spark_session
from harness.waiting import meanwhile, until
from harness.web import serving
from zeroeventhub import TableFeed, feed_routes

PARTITIONS = 2
LIMIT = 20  # events of a batch
AHEAD = 3  # batches that the writer keeps ahead of the stream
PATIENCE = 120
"""Seconds in which the moment to kill a driver has to come, and the last query has to end."""


class Stream:
    """Hold a stream's folder, how often its publisher was asked, and what that has published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.asked = 0
        self.written = 0

    def batches(self, name: str) -> int:
        """Count the batches that have a file in a folder of the stream's."""
        folder = self.folder / name
        names = os.listdir(folder) if folder.exists() else []  # noqa: PTH208 - every millisecond
        return max((int(one.split(".")[0]) + 1 for one in names if one[0].isdigit()), default=0)

    @property
    def committed(self) -> int:
        """Count the batches that Spark knows to be done."""
        return self.batches("checkpoint/commits")

    def moment(self, dice: random.Random) -> tuple[str, Callable[[], bool]]:
        """Draw a moment to kill the driver at; say what it is called."""
        name = dice.choice(("asked", "planned", "written", "landed", "later"))
        batch = self.committed + dice.randrange(4)
        asked = self.asked + dice.randrange(1, 40)
        late = time.monotonic() + dice.uniform(0.2, 1)

        def written() -> int:
            return len(list((self.folder / "rows").glob("*.parquet")))

        files = written() + dice.randrange(1, 6)
        moments: dict[str, Callable[[], bool]] = {
            "asked": lambda: self.asked >= asked,
            "planned": lambda: self.batches("checkpoint/offsets") > max(batch, self.committed),
            "written": lambda: written() >= files,
            "landed": lambda: self.batches("rows/_spark_metadata") > max(batch, self.committed),
            "later": lambda: self.committed > batch and time.monotonic() > late,
        }
        return name, moments[name]


def killed_streams(
    database: str,
    folder: Path,
    *,
    seed: int,
    kills: int,
    tell: Callable[[str], object] = print,
    spark: Any = None,
) -> Findings:
    """Kill the driver of a stream at drawn moments, and compare what has come with the table."""
    prepare()
    name = f"killed streams, seed {seed}"
    dice, findings = random.Random(name), Findings()
    engine = fill(create_engine(database), 0)
    stream = Stream(folder)
    with naming(name), _publishing(engine, stream):
        with meanwhile(partial(_write, engine, stream), pause=0.05):
            for number in range(kills):
                kind = _kill(stream, dice)
                tell(f"killed streams: {number + 1}, {kind}")
                findings.counts += {"kills": 1, kind: 1}
        with nullcontext(spark) if spark else spark_session() as session:
            query = _writing_rows(session, folder, stream.url).trigger(availableNow=True).start()
            assert query.awaitTermination(PATIENCE), "The last query does not end."
            rows = session.read.parquet(f"{folder}/rows").select("partition", "data").collect()
    with engine.connect() as connection:
        table = connection.execute(select(orders.c.part, orders.c.data).order_by(orders.c.id))
        truth = _by_partition((part, data["n"]) for part, data in table)
    seen = _by_partition(sorted((row.partition, json.loads(row.data)["n"]) for row in rows))
    findings.compare(name, truth, seen)
    findings.counts["batches"] = stream.committed
    engine.dispose()
    return findings


def _writing_rows(spark: Any, folder: object, url: str) -> Any:
    """Say what a stream writes, and where."""
    events = (
        spark.readStream.format("zeroeventhub")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", LIMIT)
        .load(url)
    )
    return events.writeStream.option("path", f"{folder}/rows").option(
        "checkpointLocation", f"{folder}/checkpoint"
    )


def _kill(stream: Stream, dice: random.Random) -> str:
    """Start a driver, and kill its group of processes; return the name of the moment."""
    name, is_there = stream.moment(dice)
    with (stream.folder / "log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "harness.spark_kills", stream.folder, stream.url],
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )
    try:
        until(
            lambda: is_there() or driver.poll() is not None,
            f"the moment {name!r} comes at which the driver is to be killed",
            PATIENCE,
        )
        assert driver.poll() is None, (stream.folder / "log").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
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


def _write(engine: Engine, stream: Stream) -> None:
    """Write orders, and keep some batches ahead."""
    if stream.written < (stream.committed + AHEAD) * LIMIT:
        write(engine, 12, first=stream.written, partitions=PARTITIONS)
        stream.written += 12


def _by_partition(rows: Any) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, number in rows:
        found[partition].append(number)
    return found


def main() -> None:
    """Read on until the process is killed."""
    folder, url = sys.argv[1:]
    with spark_session(spark_local_dir=f"{folder}/local") as spark:
        _writing_rows(spark, folder, url).start().awaitTermination()


if __name__ == "__main__":
    main()
