"""Read a feed with Spark: all of its history side by side, and then as a stream.

    register(spark)
    events = spark.read.format("zeroeventhub").load("https://shop.example/orders")

`FeedSource` is a Python data source of Spark; its options are those of `Options`.
"""

from zeroeventhub.errors import require

require("pyspark", extra="spark", user="zeroeventhub.spark")
require("pyarrow", extra="spark", user="zeroeventhub.spark")

from zeroeventhub.spark.source import FeedSource, register  # noqa: E402 - says first what is missing

__all__ = ["FeedSource", "register"]
