"""A feed as a resource of dlt, whose cursors are loaded together with its rows.

pipeline = dlt.pipeline("orders", destination="duckdb", dataset_name="shop")
pipeline.run(feed_resource("https://shop.example/orders", name="orders"))
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from zeroeventhub.client import Client
from zeroeventhub.errors import require

for _package in ("dlt", "pyarrow"):
    require(_package, extra="dlt", user="A resource of dlt")
import dlt  # noqa: E402 - named if missing
import pyarrow as pa  # noqa: E402 - the same
from dlt.extract import DltResource  # noqa: E402 - the same

from zeroeventhub.bulk.arrow_read import read_arrow  # noqa: E402 - the same


def feed_resource(
    feed: Client | str,
    *,
    name: str,
    start: Mapping[int, str] | datetime | None = None,
    **options: Any,
) -> DltResource:
    """Return a resource that yields what has come since the last load.

    Its state has the cursors. dlt stores it in the destination with the rows, and takes it from
    there on a new machine.

    Args:
        feed: the feed's address, or a client.
        name: the resource's name, and the table's.
        start: where the first load begins.
        options: those of `zeroeventhub.read_arrow`.
    """

    def rows() -> Iterator[pa.RecordBatch]:
        state = dlt.current.resource_state()
        read = read_arrow(feed, start=state.get("cursors") or start, **options)
        for batch in read.reader:
            # Before the rows: dlt may take no more after them.
            state["cursors"] = {str(partition): at for partition, at in read.cursors.items()}
            yield batch

    return dlt.resource(rows, name=name, write_disposition="append")
