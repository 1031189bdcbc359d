"""Read a feed with Spark: its history in parallel, and then as a stream.

    register(spark)
    events = spark.read.format("zeroeventhub").load("https://shop.example/orders")

`FeedSource` is a Python data source of Spark; its options are those of `Options`.
"""

from typing import TYPE_CHECKING, Any

from zeroeventhub.errors import require

if TYPE_CHECKING:
    from zeroeventhub.spark.source import FeedSource, register

__all__ = ["FeedSource", "register"]


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name at first use, because reading a checkpoint does not need PySpark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("pyspark", "pyarrow"):
        require(package, extra="spark", user=f"{__name__}.{name}")
    from zeroeventhub.spark import source  # noqa: PLC0415 - it needs both

    return getattr(source, name)
