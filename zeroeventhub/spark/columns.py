"""Events as rows of Spark: record batches of the columns that a schema names."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Page
from zeroeventhub.spark.attributes import ATTRIBUTES, Attributes
from zeroeventhub.spark.json_columns import JsonColumns
from zeroeventhub.spark.options import Options
from zeroeventhub.spark.range_page import RangePage
from zeroeventhub.spark.versions import arrow_schema

__all__ = ["Columns", "default_schema"]

_TEXT = StringType()
_OF_FEED: dict[str, DataType] = {
    "partition": IntegerType(),
    "cursor": _TEXT,
    "key": _TEXT,
    "headers": MapType(_TEXT, _TEXT),
    "data": _TEXT,
}
_OF_EVENT: dict[str, DataType] = {"id": _TEXT, "type": _TEXT, "time": TimestampType()}


def default_schema(*, with_headers: bool) -> StructType:
    """Return the columns of events where nobody names others."""
    schema = StructType()
    for name in ("partition", "cursor", "id", "type", "time", "key", "headers", "data"):
        if name != "headers" or with_headers:
            kind = _OF_FEED.get(name) or _OF_EVENT[name]
            schema.add(name, kind, nullable=name not in {"partition", "cursor", "data"})
    return schema


class Columns:
    """Make the columns of a schema out of pages.

    Of a schema with columns of its own, those are members of the events' JSON objects.

    Args:
        schema: the columns.
        options: what is asked of the feed.

    Attributes:
        known: the columns that are not members of the events' JSON.
        with_headers: whether headers are one of them.

    Raises:
        ConfigurationError: a column cannot be made.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = arrow_schema(schema)
        self._types = options.types
        corrupt = options.corrupt_record if options.corrupt_record in schema.names else None
        if corrupt and schema[corrupt].dataType != _TEXT:
            raise ConfigurationError(
                f"The column {corrupt} for events that do not fit is a STRING."
            )
        others = [one for one in schema if one.name != corrupt]
        known = [one.name for one in others if _is_of(_OF_FEED, one)]
        rest = [one for one in others if one.name not in known]
        if all(_is_of(_OF_EVENT, one) for one in rest) and corrupt is None:
            known += [one.name for one in rest]
            rest = []
        _expect_nullable(schema, known)
        self.known = frozenset(known)
        self.with_headers = "headers" in known
        self._of_events = self.known & ATTRIBUTES
        self._json = JsonColumns(rest, corrupt) if rest or corrupt else None

    def batches(self, page: RangePage) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a page.

        Raises:
            ProtocolError: an event does not fit the schema, and no column is there for it.
        """
        left = page.count
        for data, headers in _events(page):
            taken = data.slice(0, left)
            left -= len(taken)
            batch = self._batch(page, taken, headers[: len(taken)])
            if batch.num_rows:
                yield batch

    def _batch(
        self, page: RangePage, data: pa.StringArray, headers: list[dict[str, str]]
    ) -> pa.RecordBatch:
        filters = self._types if not page.is_filtered else None
        attributes = None
        if self._of_events or filters is not None:
            attributes = Attributes(data)
        if attributes is not None and filters is not None:
            chosen = pa.array(attributes.chosen(filters), pa.bool_())
            data = data.filter(chosen)
            headers = [
                one for one, is_in in zip(headers, chosen.to_pylist(), strict=False) if is_in
            ]
            attributes = Attributes(data)
        found = {"data": data}
        if "partition" in self._schema.names:
            found["partition"] = pa.repeat(pa.scalar(page.partition, pa.int32()), len(data))
        if "cursor" in self._schema.names:
            found["cursor"] = pa.repeat(pa.scalar(page.page.cursor, pa.string()), len(data))
        if self.with_headers:
            pairs = [list(one.items()) for one in headers]
            found["headers"] = pa.array(pairs, self._schema.field("headers").type)
        if attributes is not None:
            found |= {name: attributes.column(name) for name in self._of_events}
        if self._json is not None:
            found |= self._json.columns(data, self._schema)
        return pa.record_batch([found[name] for name in self._schema.names], schema=self._schema)


def _events(page: RangePage) -> Iterator[tuple[pa.StringArray, list[dict[str, str]]]]:
    """Yield the texts of a page's events, and their headers where it has any."""
    if isinstance(page.page, Page):
        events = page.page.events
        yield (
            pa.array([one.raw for one in events], pa.string()),
            [dict(one.headers) for one in events],
        )
        return
    for batch in page.page.batches:
        yield batch.column(0), []


def _is_of(known: dict[str, DataType], field: StructField) -> bool:
    return known.get(field.name) == field.dataType


def _expect_nullable(schema: StructType, known: list[str]) -> None:
    for name in known:
        if name in {"id", "type", "time", "key"} and not schema[name].nullable:
            raise ConfigurationError(
                f"The column {name} cannot be NOT NULL: only CloudEvents say it of themselves."
            )
