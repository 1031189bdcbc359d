"""Batches without a session: planned as Spark's driver does, and read as its tasks do."""

import pickle

import pyarrow as pa

from zeroeventhub.spark.source import FeedSource

__all__ = ["planned", "read", "rows_of"]


def planned(url, schema=None, **options):
    """Plan a batch; return its reader and its tasks, as they come to executors."""
    source = FeedSource({"path": url, **{name: str(value) for name, value in options.items()}})
    reader = source.reader(schema or source.schema())
    tasks = reader.partitions()
    return pickle.loads(pickle.dumps((reader, tasks)))


def rows_of(reader, tasks):
    """Read tasks; return the rows of all."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def read(url, schema=None, **options):
    """Return the rows of a batch."""
    return rows_of(*planned(url, schema, **options))
