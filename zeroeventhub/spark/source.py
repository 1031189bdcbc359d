"""The source that Spark loads, for batches and streams."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.functions import udf
from pyspark.sql.types import StructType

from zeroeventhub.bulk.columns import Columns, RangePage
from zeroeventhub.bulk.connection import LIMITS, Connection
from zeroeventhub.bulk.offsets import Offsets, Range
from zeroeventhub.bulk.options import LATEST
from zeroeventhub.bulk.plan import SCANNED, Plan
from zeroeventhub.bulk.range_reader import RangeReader
from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.errors import ConfigurationError, PageTooLarge, Unauthorized, ZeroEventHubError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.spark.options import Options, read_options
from zeroeventhub.spark.schema import arrow_schema, default_schema, inferred_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
except ImportError:

    class AvailableNow:  # type: ignore[no-redef]
        """A placeholder for the interface, which PySpark before 4.2 lacks."""


_log = logging.getLogger("zeroeventhub.spark")

_Answer = TypeVar("_Answer")

_GIVE_CREDENTIALS = (
    " Set the option bearerTokenFile, bearerTokenEnv, headersFile or headersEnv to where the "
    "credentials are that the feed's owner gave you."
)

_LOWER_PAGE_SIZE = (
    f"A page of the feed has more than {LIMITS.page_bytes:,} bytes or {LIMITS.page_events:,} "
    "events: lower the option pageSize, which helps unless one event is that large."
)


class SparkConnection(Connection):
    """Send requests with the credentials that options name."""

    _options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(self._open(options), options)

    def request(self, call: Callable[[Client], _Answer]) -> _Answer:
        """Send a request, and again with a token that has replaced one the feed refuses."""
        while True:
            try:
                return super().request(call)
            except Unauthorized as error:
                # The token in the file may be a newer one by now.
                if self._options.credentials.headers() == self._headers:
                    raise Unauthorized(error.message, advice=_GIVE_CREDENTIALS) from None
                self.close()
                self._client = self._open(self._options)
            except PageTooLarge:
                raise PageTooLarge(_LOWER_PAGE_SIZE) from None
            except ConfigurationError as error:
                # Only for Spark is this number an option, beside another one of that name.
                message = str(error).replace("`partitions`", "the option v1Partitions")
                raise ConfigurationError(message) from None

    def close(self) -> None:
        """Close the connection; it may be closed already."""
        super().close()
        self._http.close()

    def _open(self, options: Options) -> Client:
        self._headers = options.credentials.headers()
        self._http = options.credentials.open(self._headers, open_http)
        return Client(options.url, self._http, partitions=options.v1_partitions, limits=LIMITS)

    def _open_files(self, *, is_own: bool) -> httpx.Client:
        return self._options.credentials.open({}, httpx.Client, with_certificate=is_own)


_MOST_TYPES = 100
"""How many names of types a request may have (SPEC 9.3)."""


def narrow(options: Options, filters: Sequence[Any], columns: AbstractSet[str]) -> Options:
    """Restrict a read to the events that may pass Spark's filters.

    Only filters of `columns` are used, as a member of the events' JSON may have such a name too.
    """
    for one in filters:
        attribute = getattr(one, "attribute", ())
        if not columns >= {*attribute}:
            continue
        match type(one).__name__, attribute:
            case "EqualTo" | "In", ("partition",):
                among = _values(one)
                if options.among is not None:
                    among &= options.among
                options = replace(options, among=among)
            case "EqualTo" | "In", ("type",):
                options = _of_types(options, _values(one))
            case "GreaterThan" | "GreaterThanOrEqual", ("time",):
                if isinstance(one.value, datetime) and one.value.tzinfo is not None:
                    since = max(one.value, options.since or one.value)
                    options = replace(options, since=since)
    return options


def _values(one: Any) -> frozenset[Any]:
    return frozenset(one.value if isinstance(one.value, tuple | list) else [one.value])


def _of_types(options: Options, names: frozenset[Any]) -> Options:
    if options.types is not None or len(names) > _MOST_TYPES:
        return options
    try:
        return replace(options, types=TypeFilter(names))
    except (ConfigurationError, TypeError):
        return options


def tasks_of(planned: list[list[Range]]) -> list[InputPartition]:
    """Return tasks that read their ranges in order; one without ranges for an empty plan."""
    return [InputPartition(ranges) for ranges in planned or [[]]]


class _TaskReader:
    """Read the tasks of a batch or a micro-batch."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        # Refuses a column that cannot be made on the driver, before any task begins.
        self._known = self._columns().known

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        _log_to_stderr()
        ranges: list[Range] = partition.value
        columns = self._columns()
        rows, size = 0, 0
        with closing(SparkConnection(self._options)) as connection:
            reader = RangeReader(connection, self._options, with_headers=columns.with_headers)
            for one in ranges:
                for page in _fetch_ahead(reader, one):
                    batch = columns.batch(page)
                    if batch.num_rows:
                        rows, size = rows + batch.num_rows, size + batch.nbytes
                        yield batch
        if ranges:
            numbers = ", ".join(str(one.partition) for one in ranges)
            _log.info("Read partition %s: %s events, %s bytes.", numbers, f"{rows:,}", f"{size:,}")

    def _columns(self) -> Columns:
        return Columns(arrow_schema(self._schema), self._options)


def _log_to_stderr() -> None:
    """Log to standard error, which Spark keeps, unless a handler is installed."""
    library = logging.getLogger("zeroeventhub")
    if not library.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        library.addHandler(handler)
        library.setLevel(logging.INFO)


def _fetch_ahead(reader: RangeReader, one: Range) -> Iterator[RangePage]:
    """Yield the pages of a range; the next page is fetched while one is used."""
    # A thread fetches ahead: httpx waits, and decoding releases the GIL. It holds two pages.
    with ThreadPoolExecutor(1) as ahead:
        pages = reader.pages(one)
        coming = ahead.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = ahead.submit(next, pages, None)
            if len(page.data):
                yield page


class BatchReader(_TaskReader, DataSourceReader):
    """Read a batch."""

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks; the end of the batch is fixed here."""
        with closing(SparkConnection(self._options)) as connection:
            return tasks_of(Plan(connection, self._options).batch())


class PushingReader(BatchReader):
    """Read a batch, and let the feed apply filters of the query.

    Spark refuses such a reader unless spark.sql.python.filterPushdown.enabled is true.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Narrow what is read; Spark applies every filter again by itself."""
        self._options = narrow(self._options, filters, self._known)
        return filters


_QUIET = 0.1
"""Seconds between two polls of a feed without new events; Spark itself polls without a pause."""

_LONG_QUIET = 600.0
"""Seconds after which the cursors of partitions without new events move on."""


class StreamReader(_TaskReader, DataSourceStreamReader, AvailableNow):
    """Read a stream."""

    def __init__(self, schema: StructType, options: Options) -> None:
        super().__init__(schema, options)
        self._connection: SparkConnection | None = None
        self._stops_at_head = False
        self._is_over = False
        self._is_at_head = False
        self._target: Offsets | None = None
        self._position: Offsets | None = None
        self._polled_at = 0.0
        self._moved_at = -math.inf

    def __reduce__(self) -> Any:
        """Pickle the schema and the options for the tasks, without the connection."""
        return type(self), (self._schema, self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._move_to(self._plan().begin())

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch."""
        events = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if events is None else ReadMaxRows(events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the query after the events that exist when it begins."""
        self._stops_at_head = True

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; `start` itself if there is nothing to read.

        PySpark before 4.2 passes neither the start nor the limit.
        """
        begin = self._position if start is None else Offsets.of(start)
        if begin is None:
            return self._move_to(self._head())
        events = (
            self._options.max_offsets_per_trigger
            if limit is None
            else getattr(limit, "max_rows", None)
        )
        if self._stops_at_head and self._target is None:
            self._target = self._plan().head()
        end = begin
        if not self._is_over:
            moves = time.monotonic() > self._moved_at + _LONG_QUIET
            end = self._plan().advance(begin, events, self._target, moves_quiet=moves)
            self._moved_at = time.monotonic() if moves else self._moved_at
        if self._stops_at_head and end.counts:
            # A feed that cannot stop is read until a micro-batch is not full.
            read = sum(count - begin.counts.get(one, 0) for one, count in end.counts.items())
            self._is_over = read < (events or SCANNED)
        stands = end == begin
        self._is_at_head = events is None or stands
        if stands:
            time.sleep(max(0.0, self._polled_at + _QUIET - time.monotonic()))
            self._polled_at = time.monotonic()
            return begin.document() if start is None else start
        return self._move_to(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return where the feed ends now, for the query's progress; None if that is unknown."""
        try:
            head = self._position if self._is_at_head else self._plan().head()
        except ZeroEventHubError as error:
            # Spark would end the query, whose events do not depend on it.
            _log.warning("The head of the feed is unknown: %s", str(error))
            return None
        return None if head is None else head.document()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch."""
        begin, self._position = Offsets.of(start), Offsets.of(end)
        planned = self._plan().tasks(begin, self._position)
        partitions = sorted({one.partition for ranges in planned for one in ranges})
        _log.info("Planned %d tasks for partitions %s.", len(planned), partitions)
        return tasks_of(planned)

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _plan(self) -> Plan:
        if self._connection is None:
            _log_to_stderr()
            self._connection = SparkConnection(self._options)
        return Plan(self._connection, self._options)

    def _head(self) -> Offsets:
        """Return the head, the end of a micro-batch whose start is unknown (PySpark before 4.2)."""
        if (head := self._plan().head()) is None:
            raise ConfigurationError(
                "PySpark before 4.2 cannot stream this feed, which does not have the extension "
                "stop: update PySpark."
            )
        return head

    def _move_to(self, end: Offsets) -> dict[str, Any]:
        self._position = end
        return end.document()


class FeedSource(DataSource):
    """Read a feed; `zeroeventhub.spark.options.Options` describes its options.

    Example:
        spark.dataSource.register(FeedSource)
        events = spark.read.format("zeroeventhub").load("https://shop.example/orders")
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "zeroeventhub"

    def schema(self) -> StructType:
        """Return the columns of a read without a schema.

        Raises:
            ConfigurationError: they are to be inferred, and the feed does not describe its events.
        """
        options = read_options(self.options)
        if not options.infer_schema:
            return default_schema(with_headers=options.include_headers)
        with closing(SparkConnection(options)) as connection:
            return inferred_schema(connection.request(Client.schemas), options.types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            ConfigurationError: an option or a column cannot work.
        """
        options = read_options(self.options)
        if options.max_offsets_per_trigger is not None:
            raise ConfigurationError("maxOffsetsPerTrigger is for streams, and this is a batch.")
        return (PushingReader if options.filter_pushdown else BatchReader)(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            ConfigurationError: an option or a column cannot work.
        """
        options = read_options(self.options)
        if options.ending != LATEST:
            raise ConfigurationError(
                "A stream has no end: leave out endingOffsets, endingTimestamp and "
                "endingOffsetsByTimestamp, or read a batch."
            )
        return StreamReader(schema, options)


def register(spark: "SparkSession") -> None:
    """Register the format "zeroeventhub" in a session of Spark, classic or Connect.

    Spark imports the package where it plans and, in one task, where it reads, so that a Python
    without it is noticed here.

    Raises:
        ConfigurationError: the Python of Spark's workers lacks the package or one that it needs.
    """
    try:
        spark.dataSource.register(FeedSource)
    except AnalysisException as error:
        # An older Spark refuses a format that it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    imported = udf(_same, "long", useArrow=False)
    try:
        _ = spark.read.format(FeedSource.name()).load("http://no-request-is-sent").columns
        spark.range(0, 1, 1, 1).select(imported("id")).collect()
    except PySparkException as error:
        missing = re.search(r"No module named '([\w.]+)'", str(error))
        if missing is None:
            raise
        raise ConfigurationError(
            f"The Python of Spark's workers has no module {missing[1]}: set PYSPARK_PYTHON, before "
            "Spark or its Connect server starts, to a Python that has zeroeventhub[spark] on every "
            "machine."
        ) from None


def _same(value: int) -> int:
    """Return what is given, in a worker: to find this function, it imports this module."""
    return value
