"""Export a feed to files of Parquet or to DuckDB."""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zeroeventhub.bulk.connection import LIMITS
from zeroeventhub.cli.options import as_json, feed_options, moment, partition_option, type_options
from zeroeventhub.cli.output import Meter, report
from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import TypeFilter

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@partial(feed_options, limits=LIMITS)
@click.option(
    "--to",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A folder for files of Parquet, ending in .parquet; or a database, ending in .duckdb.",
)
@click.option("--table", default="events", help="The table in DuckDB.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME:TYPE",
    help="A column, such as customer:string, amount:double, price:decimal(10,2), count:int64, "
    "paid:bool, day:date32 or at:timestamp; repeatable. By default the columns are those of the "
    "guide, docs/data_frames.md.",
)
@partition_option
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Begin the first export before the events of this moment, such as 2026-01-31T12:00:00Z.",
)
@click.option(
    "--readers", type=click.IntRange(1), default=4, help="How many requests to send side by side."
)
@click.option(
    "--segment-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Also read files of old events at this origin, such as https://cdn.example or file://; "
    "without it, only at the feed's own origin and at signed URLs; repeatable.",
)
@click.option("--no-segments", is_flag=True, help="Read no files: read old events as pages too.")
@type_options
@as_json
def export(
    *,
    client: Client,
    to: Path,
    table: str,
    columns: Sequence[str],
    partition: int | None,
    since: datetime | None,
    readers: int,
    origins: Sequence[str],
    no_segments: bool,
    types: TypeFilter | None,
    as_json: bool,
) -> None:
    """Export the events of the feed at URL to Parquet or DuckDB.

    Run the same command again to add the events that are new. A killed command leaves whole files
    of Parquet, or a consistent database, which also hold the cursors: the next run continues there,
    so that each event is exported exactly once. Run one command at a time.
    """
    from zeroeventhub import export as exporting  # noqa: PLC0415 - it needs pyarrow

    with Meter("exported", 0) as meter:
        rows = exporting.export(
            client,
            to,
            table=table,
            schema=_schema(columns) if columns else None,
            start=since,
            partitions=None if partition is None else [partition],
            types=types,
            readers=readers,
            read_segments=not no_segments,
            segment_origins=origins,
            progress=lambda count, total: meter.show(count, total or count),
        )
    report({"exported": rows, "to": str(to)}, [], as_json=as_json)
    if not as_json:
        click.echo(f"Events exported to {to}: {rows:,}", err=True)


def _schema(columns: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415 - an extra

    found = {}
    for column in columns:
        name, _, kind = column.rpartition(":")
        try:
            if kind == "timestamp":
                found[name] = pa.timestamp("us", "UTC")
            elif digits := re.fullmatch(r"decimal\(([0-9]+), ?([0-9]+)\)", kind):
                found[name] = pa.decimal128(*map(int, digits.groups()))
            else:
                found[name] = pa.type_for_alias(kind)
        except ValueError:
            raise ConfigurationError(
                f"A column is written as NAME:TYPE, such as amount:double, not as {column}."
            ) from None
    if len(found) < len(columns):
        raise ConfigurationError("Two of the columns have one name: give each its own.")
    return pa.schema(found)
