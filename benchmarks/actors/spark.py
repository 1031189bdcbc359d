"""Load events into Parquet with Spark: of a feed, or of a database by Spark's own source."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from harness.java import java_home
from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json

from benchmarks.actors.speaking import perform, task
from zeroeventhub.spark import register


def session(wanted: dict[str, Any]) -> SparkSession:
    """Start Spark, with as many tasks at once as there are to be."""
    os.environ["JAVA_HOME"] = java_home() or ""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": wanted.get("driver", ""),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": wanted["java"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{wanted['cores']}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def main() -> None:
    """Load as often as it is told to."""
    wanted = task()
    spark = session(wanted)
    place = Path(wanted["folder"]) / "loaded.parquet"

    def work(order: dict[str, Any]) -> dict[str, float]:
        shutil.rmtree(place, ignore_errors=True)
        began = time.perf_counter()
        reader = spark.read.format(order["format"]).options(**order["options"])
        if "schema" in order:
            reader = reader.schema(order["schema"])
        events = reader.load()
        if "members" in order:
            events = events.select(from_json("data", order["members"]).alias("of")).select("of.*")
        elif "columns" in order:
            events = events.select(*order["columns"])
        if "sink" in order:
            events.write.format(order["sink"]).mode("overwrite").save()
            return {"seconds": time.perf_counter() - began}
        events.write.parquet(str(place))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "events": spark.read.parquet(str(place)).count()}

    perform(work, jvm=spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr] # noqa: SLF001 - said nowhere else


if __name__ == "__main__":
    main()
