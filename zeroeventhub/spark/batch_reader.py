"""A batch: everything between two places of a feed, as they are when it is planned."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zeroeventhub.spark.columns import Columns
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.filters import narrowed
from zeroeventhub.spark.options import Options
from zeroeventhub.spark.plan import Plan
from zeroeventhub.spark.task import read_task, tasks_of

__all__ = ["BatchReader", "PushingReader"]


class BatchReader(DataSourceReader):
    """Read a batch.

    Args:
        schema: its columns.
        options: what is asked of the feed.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        # What cannot be made is refused when it is planned, not by a task.
        self._known = Columns(schema, options).known

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks; the end is fixed here."""
        with Connection.to(self._options) as connection:
            return tasks_of(Plan(connection, self._options).batch())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_task(partition, Columns(self._schema, self._options), self._options)


class PushingReader(BatchReader):
    """Read a batch, with filters of the query that the feed applies.

    Spark refuses such a reader unless spark.sql.python.filterPushdown.enabled is true.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Narrow what is asked of the feed; all filters are left to be applied by Spark again."""
        self._options = narrowed(self._options, filters, self._known)
        return filters
