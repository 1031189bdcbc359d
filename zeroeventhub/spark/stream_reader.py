"""A stream: micro-batches of settled events, each between two offsets that Spark keeps."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.columns import Columns
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.log import log, speak
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.options import Options
from zeroeventhub.spark.plan import WALKED, Plan
from zeroeventhub.spark.task import read_task, tasks_of
from zeroeventhub.spark.versions import AvailableNow, read_limit

__all__ = ["StreamReader"]

_QUIET = 0.1
"""Seconds between two looks at a feed that has nothing new; Spark itself asks without a pause."""


class StreamReader(DataSourceStreamReader, AvailableNow):
    """Read a stream.

    Args:
        schema: its columns.
        options: what is asked of the feed.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        Columns(schema, options)
        self._connection: Connection | None = None
        self._stops_at_head = False
        self._is_over = False
        self._is_at_head = False
        self._target: Offsets | None = None
        self._position: Offsets | None = None
        self._looked_at = 0.0

    def __reduce__(self) -> Any:
        """Send to tasks what they need, which is no connection."""
        return type(self), (self._schema, self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        self._position = self._plan().begin()
        return self._position.document()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return how much a micro-batch may have."""
        return read_limit(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there when the query begins, and end."""
        self._stops_at_head = True

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` itself if there is nothing to read.

        Args:
            start: where it begins; Spark before 4.2 does not say.
            limit: how much it may have; nor that.
        """
        begin = self._position if start is None else Offsets.of(start)
        if begin is None:
            return self._moved_to(self._unlimited())
        events = self._options.max_offsets if limit is None else getattr(limit, "max_rows", None)
        if self._stops_at_head and self._target is None:
            self._target = self._plan().head()
        end = begin if self._is_over else self._plan().advance(begin, events, self._target)
        if self._stops_at_head and end.counts:
            # Of a feed that cannot stop, what is there is all that could be read in one go.
            read = sum(count - begin.counts.get(one, 0) for one, count in end.counts.items())
            self._is_over = read < (events or WALKED)
        stands = end == begin
        self._is_at_head = events is None or stands
        if stands:
            self._wait()
            return begin.document() if start is None else start
        return self._moved_to(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return where the feed ends now, for the query's progress; None where it cannot say."""
        head = self._position if self._is_at_head else self._plan().head()
        return None if head is None else head.document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        begin, self._position = Offsets.of(start), Offsets.of(end)
        planned = self._plan().tasks(begin, self._position)
        partitions = sorted({one.partition for ranges in planned for one in ranges})
        log.info("Planned %d tasks for partitions %s.", len(planned), partitions)
        return tasks_of(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_task(partition, Columns(self._schema, self._options), self._options)

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _plan(self) -> Plan:
        if self._connection is None:
            speak()
            self._connection = Connection(self._options)
        return Plan(self._connection, self._options)

    def _unlimited(self) -> Offsets:
        """Return where a micro-batch ends of which a Spark before 4.2 does not say the start.

        Raises:
            ConfigurationError: the feed has to be read through from the start.
        """
        if (head := self._plan().head()) is None:
            raise ConfigurationError(
                "This feed cannot be streamed by a PySpark older than 4.2, which does not say "
                "where to go on: the feed does not have the extension stop."
            )
        return head

    def _moved_to(self, end: Offsets) -> dict[str, Any]:
        self._position = end
        return end.document()

    def _wait(self) -> None:
        """Let some time pass since the last look at the feed."""
        time.sleep(max(0.0, self._looked_at + _QUIET - time.monotonic()))
        self._looked_at = time.monotonic()
