"""What PySpark 4.2 has and 4.0 has not, by one name for both."""

__all__ = ["AvailableNow", "read_limit"]

from typing import Any

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
except ImportError:

    class AvailableNow:  # type: ignore[no-redef]
        """Stand for the interface, of which an older Spark knows nothing."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]


def read_limit(events: int | None) -> Any:
    """Return Spark's word for a number of events at most; None for all."""
    return ReadAllAvailable() if events is None else ReadMaxRows(events)
