"""Streams of a session: into Parquet, or into a list that is looked at."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Stream", "read_all", "running", "wait_until"]

PATIENCE = 60
"""Seconds in which anything has to come true."""


@dataclass
class Stream:
    """Hold a stream, whose query may be started and stopped.

    Attributes:
        spark: the session.
        folder: of its checkpoint and its rows.
        url: of the feed.
        options: of the source.
        batches: what came, by foreachBatch: of each batch, partition and data of its rows.
    """

    spark: Any
    folder: Path
    url: str
    options: dict[str, str] = field(default_factory=dict)
    batches: list[list[tuple[int, Any]]] = field(default_factory=list)

    def writing(self) -> Any:
        """Say where to write, which may be done again."""
        options = {"startingOffsets": "earliest", **self.options}
        events = self.spark.readStream.format("zeroeventhub").options(**options).load(self.url)
        return events.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))

    def collecting(self) -> Any:
        """Write to the list."""
        return self.writing().foreachBatch(lambda rows, _: self.batches.append(found(rows)))

    def into_parquet(self) -> Any:
        """Write files."""
        return self.writing().option("path", str(self.folder / "rows"))

    def rows(self) -> list[tuple[int, Any]]:
        """Return what is in the files."""
        return found(self.spark.read.parquet(str(self.folder / "rows")))

    def seen(self) -> list[tuple[int, Any]]:
        """Return what is in the list."""
        return [row for batch in self.batches for row in batch]

    @property
    def committed(self) -> int:
        """Count the batches that are done."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))


def found(rows: Any) -> list[tuple[int, Any]]:
    """Return partition and data of rows."""
    return [(row.partition, json.loads(row.data)) for row in rows.collect()]


def read_all(writing: Any) -> None:
    """Read what is there, and end."""
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)


@contextmanager
def running(writing: Any) -> Iterator[Any]:
    """Read on meanwhile."""
    query = writing.start()
    try:
        yield query
    finally:
        query.stop()


def wait_until(is_true: Callable[[], object], query: Any = None) -> None:
    """Wait until something has come true, unless a query fails before."""
    ending = time.monotonic() + PATIENCE
    while not is_true():
        if query is not None and query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < ending
        time.sleep(0.02)
