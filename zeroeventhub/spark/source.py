"""The source that Spark knows, for batches and streams."""

import time
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.spark.columns import AvailableNow, Columns, default_schema, read_limit
from zeroeventhub.spark.connection import Connection, log, speak
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.options import LATEST, Options, read_options
from zeroeventhub.spark.plan import WALKED, Plan
from zeroeventhub.spark.range_reader import read_task, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "FeedSource",
    "register",
]

_MOST_TYPES = 100
"""Names of types that a feed takes in a request (SPEC 9.3)."""


def narrowed(options: Options, filters: Sequence[Any], columns: AbstractSet[str]) -> Options:
    """Narrow what is asked of a feed to what some filters let through, or somewhat more.

    Args:
        options: what is asked.
        filters: of `pyspark.sql.datasource`, of which all have to hold.
        columns: those that the feed knows; all other columns are members of the events' JSON, under
            names of any kind.
    """
    for one in filters:
        attribute = getattr(one, "attribute", ())
        if not columns >= {*attribute}:
            continue
        match type(one).__name__, attribute:
            case "EqualTo" | "In", ("partition",):
                options = _of_partitions(options, _values(one))
            case "EqualTo" | "In", ("type",):
                options = _of_types(options, _values(one))
            case "GreaterThan" | "GreaterThanOrEqual", ("time",):
                options = _since(options, one.value)
    return options


def _values(one: Any) -> frozenset[Any]:
    return frozenset(one.value if isinstance(one.value, tuple | list) else [one.value])


def _of_partitions(options: Options, partitions: frozenset[Any]) -> Options:
    among = partitions if options.among is None else options.among & partitions
    return replace(options, among=among)


def _of_types(options: Options, names: frozenset[Any]) -> Options:
    """Ask for some types; the feed takes no more than a hundred."""
    if options.types is not None or len(names) > _MOST_TYPES:
        return options
    try:
        return replace(options, types=TypeFilter(names))
    except (ConfigurationError, TypeError):
        return options


def _since(options: Options, moment: Any) -> Options:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return options
    return replace(options, since=max(moment, options.since or moment))


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
        """Narrow what is asked of the feed; Spark applies every filter again by itself."""
        self._options = narrowed(self._options, filters, self._known)
        return filters


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
        """Pickle the schema and the options for the tasks, without the connection."""
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
            limit: how much it may have; Spark before 4.2 does not say that either.
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
        """Return the end of a micro-batch whose start Spark, before 4.2, does not say.

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
        """Sleep until `_QUIET` seconds have passed since the last look at the feed."""
        time.sleep(max(0.0, self._looked_at + _QUIET - time.monotonic()))
        self._looked_at = time.monotonic()


class FeedSource(DataSource):
    """Read a feed; see `Options` for what can be asked of it.

    Example:
        spark.dataSource.register(FeedSource)
        events = spark.read.format("zeroeventhub").load("https://shop.example/orders")
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "zeroeventhub"

    def schema(self) -> StructType:
        """Return the columns of a read without a schema."""
        return default_schema(with_headers=self._options().with_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            ConfigurationError: an option or a column cannot be meant.
        """
        options = self._options()
        if options.max_offsets is not None:
            raise ConfigurationError("maxOffsetsPerTrigger is for streams, and this is a batch.")
        return (PushingReader if options.pushes_filters else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            ConfigurationError: an option or a column cannot be meant.
        """
        options = self._options()
        if options.ending != LATEST:
            raise ConfigurationError(
                "A stream does not end at an offset: leave it away, or read a batch."
            )
        return StreamReader(schema, options)

    def _options(self) -> Options:
        return read_options(self.options)


def register(spark: "SparkSession") -> None:
    """Let a session read feeds by `format("zeroeventhub")`."""
    try:
        spark.dataSource.register(FeedSource)
    except AnalysisException as error:
        # An older Spark refuses what it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
