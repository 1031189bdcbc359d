"""A driver that reads feeds in several ways, and says all that can be seen of it."""

import json
import sys
import traceback

from harness.spark import spark_session

cases, folder = json.loads(sys.argv[1]), sys.argv[2]
settings = {
    "spark_eventLog_enabled": "true",
    "spark_eventLog_compress": "false",
    "spark_eventLog_dir": f"file://{folder}",
}

with spark_session(**settings) as spark:
    spark.sparkContext.setLogLevel("INFO")
    for name, options in cases.items():
        try:
            events = spark.read.format("zeroeventhub").options(**options).load()
            events.explain(mode="extended")
            rows = events.collect()
            sys.stdout.write(f"{name} read {rows}\n")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
            sys.stdout.write(f"{name} failed {error!r} {error.args} {error} end\n")
            traceback.print_exc()
