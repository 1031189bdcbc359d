"""The source without a session: planned as Spark's driver does, and read as its tasks do."""

import json
import pickle

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from zeroeventhub.spark import FeedSource


def source(url, /, **options):
    """Return the source of a feed."""
    return FeedSource({"path": url, **{name: str(value) for name, value in options.items()}})


def planned(url, schema=None, **options):
    """Plan a batch; return its reader and its tasks, as they come to executors."""
    found = source(url, **options)
    reader = found.reader(schema or found.schema())
    tasks = reader.partitions()
    return pickle.loads(pickle.dumps((reader, tasks)))


def rows_of(reader, tasks):
    """Read tasks; return the rows of all."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def read(url, schema=None, **options):
    """Return the rows of a batch."""
    return rows_of(*planned(url, schema, **options))


def numbers(rows):
    """Return the numbers of events, as they came."""
    return [json.loads(row["data"])["n"] for row in rows]


class Streaming:
    """Be the driver of a stream, whose offsets are kept as JSON."""

    def __init__(self, url, **options):
        found = source(url, **{"startingOffsets": "earliest", **options})
        self.reader = found.streamReader(found.schema())

    def begin(self):
        return json.loads(json.dumps(self.reader.initialOffset()))

    def end(self, start, limit=None):
        """Return where a batch ends that begins somewhere."""
        most = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        return json.loads(json.dumps(self.reader.latestOffset(start, most)))

    def tasks(self, start, end):
        """Return the rows of each task of a batch."""
        return [rows_of(self.reader, [task]) for task in self.reader.partitions(start, end)]

    def numbers(self, start, end):
        return [number for rows in self.tasks(start, end) for number in numbers(rows)]
