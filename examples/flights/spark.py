"""Catch up with a year of departures from New York City, and follow the rest: `make spark`.

Nine in ten have departed when Spark begins; the rest depart while it follows. One checkpoint covers
both, so that each departure is in the files once.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from flights import FLIGHTS, departures, open_departures, read_flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from sqlalchemy import Engine, insert

from zeroeventhub.spark import register

COLUMNS = "flight_number INT, carrier STRING, origin STRING, scheduled TIMESTAMP_NTZ, delay INT"

SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def main(folder: Path, flights: int) -> int:
    """Run everything in a folder; return how many departures are missing or duplicated."""
    engine = open_departures(f"sqlite:///{folder / 'departures.db'}")
    departures.metadata.create_all(engine)
    rows = read_flights(flights)
    depart(engine, islice(rows, flights * 9 // 10))
    with published(engine) as url:
        spark = SparkSession.builder.config(map=SETTINGS).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)

        events = spark.readStream.format("zeroeventhub").schema(COLUMNS)
        events = events.option("startingOffsets", "earliest").option("minPartitions", 4)
        files = events.load(url).writeStream.option(
            "checkpointLocation", str(folder / "checkpoint")
        )
        path = str(folder / "departures")

        began = time.monotonic()
        files.trigger(availableNow=True).start(path).awaitTermination()
        seconds = time.monotonic() - began
        print(f"caught up with {spark.read.parquet(path).count():,} departures in {seconds:.1f} s")
        delays(spark.read.parquet(path)).show()

        threading.Thread(target=depart, args=(engine, rows, 500, 0.2), daemon=True).start()
        following = files.trigger(processingTime="1 second").start(path)
        while following.isActive and (count := spark.read.parquet(path).count()) < flights:
            print(f"followed up to {count:,} departures")
            time.sleep(2)
        following.stop()

        found = spark.read.parquet(path)
        delays(found).show()
        once = found.groupBy("flight_number").count().where("count = 1").count()
        print(f"published {flights:,}, of which {once:,} are in the files once")
        return flights - once


def depart(
    engine: Engine, rows: Iterator[dict[str, Any]], size: int = 10_000, pause: float = 0
) -> None:
    """Write departures in batches, with a pause after each."""
    while batch := list(islice(rows, size)):
        with engine.begin() as connection:
            connection.execute(insert(departures), batch)
        time.sleep(pause)


@contextmanager
def published(engine: Engine) -> Iterator[str]:
    """Publish the departures, and yield the feed's address."""
    command = [sys.executable, "-m", "zeroeventhub", "serve", "--database", str(engine.url)]
    command += ["--table", "departures", "--partition", "partition", "--arrow", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:  # noqa: S603 - our own
        try:
            yield publisher.stdout.readline().split()[-1]
        finally:
            publisher.terminate()


def delays(found: DataFrame) -> DataFrame:
    """Count departures and average their delays, by carrier."""
    late = sql.round(sql.avg("delay"), 1).alias("minutes late")
    return found.groupBy("carrier").agg(sql.count("*").alias("departures"), late).orderBy(late)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=FLIGHTS, help="how many there are")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python of Spark's tasks
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(Path(folder), parser.parse_args().flights) != 0)
