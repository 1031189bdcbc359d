"""What versions of PySpark have in different forms, by one name for all."""

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["AvailableNow", "arrow_schema", "read_limit"]

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


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns that Spark takes for a schema; moments are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
