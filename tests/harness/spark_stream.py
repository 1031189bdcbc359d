"""A stream into Parquet in a process of its own, to be killed.

    python tests/harness/spark_stream.py FOLDER URL [rows.json]

With the name of a file it reads what is there, ends, and writes all rows that have come.
"""

import json
import sys
from pathlib import Path

from harness.spark import spark_session

LIMIT = 40
"""Events of a batch."""


def main() -> None:
    """Read on from where an earlier process was killed."""
    folder, url, *file = sys.argv[1:]
    local = {"spark_local_dir": f"{folder}/local", "spark_sql_warehouse_dir": f"{folder}/warehouse"}
    with spark_session(**local) as spark:
        events = (
            spark.readStream.format("zeroeventhub")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", LIMIT)
            .load(url)
        )
        writing = events.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        if not file:
            writing.start(f"{folder}/rows").awaitTermination()
        writing.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination()
        rows = spark.read.parquet(f"{folder}/rows").select("partition", "data").collect()
        found = [(row.partition, json.loads(row.data)["n"]) for row in rows]
        Path(file[0]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
