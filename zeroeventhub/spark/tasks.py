"""The tasks of Spark, which read ranges of a feed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from zeroeventhub.bulk.columns import Columns, RangePage
from zeroeventhub.bulk.offsets import Range
from zeroeventhub.bulk.range_reader import RangeReader
from zeroeventhub.spark.connection import SparkConnection, log, log_to_stderr
from zeroeventhub.spark.options import Options


class Task(InputPartition):
    """The ranges of a task, in the order in which they are read."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def tasks_of(planned: list[list[Range]]) -> list[InputPartition]:
    """Return tasks for Spark; an empty plan is one task without ranges."""
    return [Task(tuple(ranges)) for ranges in planned] or [Task(())]


def read_task(
    partition: InputPartition, columns: Columns, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    log_to_stderr()
    ranges = partition.ranges if isinstance(partition, Task) else ()
    rows, size = 0, 0
    with closing(SparkConnection(options)) as connection:
        reader = RangeReader(connection, options, with_headers=columns.with_headers)
        for one in ranges:
            for page in _fetched_ahead(reader, one):
                batch = columns.batch(page)
                if batch.num_rows:
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    yield batch
    if ranges:
        numbers = ", ".join(str(one.partition) for one in ranges)
        log.info("Read partition %s: %s events, %s bytes.", numbers, f"{rows:,}", f"{size:,}")


def _fetched_ahead(reader: RangeReader, one: Range) -> Iterator[RangePage]:
    """Yield the pages of a range; the next page is fetched while one is used."""
    # A thread fetches ahead: httpx waits, and decoding releases the GIL. It holds two pages.
    with ThreadPoolExecutor(1) as ahead:
        pages = reader.pages(one)
        coming = ahead.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = ahead.submit(next, pages, None)
            if page.count:
                yield page
