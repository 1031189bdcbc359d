"""One task of Spark: ranges that are read one after the other, as record batches."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from zeroeventhub.spark.columns import Columns
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.log import log, speak
from zeroeventhub.spark.offsets import Range
from zeroeventhub.spark.options import Options
from zeroeventhub.spark.range_reader import RangeReader

__all__ = ["Task", "read_task", "tasks_of"]


class Task(InputPartition):
    """Hold the ranges of a task.

    Args:
        ranges: in the order in which they are read.
    """

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def tasks_of(planned: list[list[Range]]) -> list[InputPartition]:
    """Return what Spark takes for tasks; an empty plan is one task without ranges."""
    return [Task(tuple(ranges)) for ranges in planned] or [Task(())]


def read_task(
    partition: InputPartition, columns: Columns, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task.

    Raises:
        ZeroEventHubError: the feed refused, failed, or sent what does not fit.
    """
    speak()
    ranges = partition.ranges if isinstance(partition, Task) else ()
    rows, size = 0, 0
    with Connection.to(options) as connection:
        reader = RangeReader(connection, options, with_headers=columns.with_headers)
        for one in ranges:
            for page in reader.pages(one):
                for batch in columns.batches(page):
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    yield batch
    if ranges:
        numbers = ", ".join(str(one.partition) for one in ranges)
        log.info("Read partition %s: %s events, %s bytes.", numbers, f"{rows:,}", f"{size:,}")
