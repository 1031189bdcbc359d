"""Options that say how a table is published, and the feed that they make."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import click
from sqlalchemy import JSON, Engine, Table, literal_column, type_coerce

from zeroeventhub.cli.options import (
    age,
    open_database,
    partitions_option,
    reflect,
    table_options,
)
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.compacting import Compaction
from zeroeventhub.publisher.mapping import resolve
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

__all__ = ["open_feed", "publish_options"]


def publish_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a table and say what its events are."""
    for option in (
        click.option(
            "--keep-tombstones",
            callback=age,
            metavar="AGE",
            help="How long such events stay; by default 7d.",
        ),
        click.option(
            "--tombstone",
            metavar="SQL",
            help="What is true for an event which says that its key is no more; it runs in the "
            "database as it is, so it has to be your own.",
        ),
        click.option(
            "--compacted",
            is_flag=True,
            help="The last event of each key is kept, by `zeroeventhub compact`.",
        ),
        click.option(
            "--cache", metavar="FOLDER", help="Where to keep what was fetched of the archive."
        ),
        click.option(
            "--shared",
            metavar="WAY",
            help='How readers reach files of the archive: "signed", or what stands before a name.',
        ),
        click.option(
            "--erasable",
            is_flag=True,
            help="Events may be erased from the archive, so no page is one that never changes.",
        ),
        click.option(
            "--archive", metavar="PLACE", help="Where old events are kept: a folder, or a URL."
        ),
        click.option(
            "--mutable",
            is_flag=True,
            help="Rows are changed or deleted, so cursors cannot be checked.",
        ),
        click.option("--cloudevents", is_flag=True, help="Wrap events in a CloudEvents envelope."),
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            metavar="NAME=COL",
            help="A column for an attribute of the envelope, such as subject=customer; can be "
            "given several times.",
        ),
        click.option("--id", "id_", metavar="COL", help="The column of the event's id."),
        click.option("--key", metavar="COL", help="The column of the event's key."),
        click.option("--type", "type_", metavar="COL", help="The column of the event's type."),
        click.option("--columns", metavar="a,b,c", help="The columns that make an event's data."),
        click.option(
            "--data", metavar="COL", help="The column that holds an event's data as JSON."
        ),
        partitions_option,
        table_options,
    ):
        command = option(command)
    return command


def open_feed(
    database: str,
    table: str,
    *,
    partition: str | None,
    partitions: int | None,
    data: str | None,
    columns: str | None,
    type_: str | None,
    id_: str | None,
    attributes: tuple[str, ...],
    archive: str | None,
    cache: str | None,
    erasable: bool,
    shared: str | None,
    compacted: bool,
    tombstone: str | None,
    keep_tombstones: timedelta | None,
    must_have_mark: bool = False,
    **options: Any,
) -> tuple[Engine, TableFeed]:
    """Open a database and make the feed of one of its tables.

    Args:
        database: its URL.
        table: the table's name.
        partition: the column of partitions.
        partitions: how many there are; None for as many as the table has.
        data: the column that holds an event's data as JSON.
        columns: the columns that make it, with commas between.
        type_: the column of the event's type.
        id_: the column of its id.
        attributes: further attributes of its envelope: a name, "=", and a column each.
        archive: where old events are kept: a local folder, or the URL of a store.
        cache: a local folder for what was fetched of it.
        erasable: whether events may be erased from it.
        shared: how readers reach its files.
        compacted: whether the last event of each key is kept, and others need not be.
        tombstone: SQL that is true for an event which says that its key is no more.
        keep_tombstones: how long such events stay; None for the usual time.
        must_have_mark: whether the feed is to be told of what was trimmed in any case, and not
            only where there is a mark; one that is compacted always is.
        options: other options of TableFeed.

    Raises:
        ConfigurationError: options contradict each other, or something is not there.
    """
    if data and columns:
        raise ConfigurationError("An event's data is --data or --columns, not both.")
    if partitions and not partition:
        raise ConfigurationError("--partitions needs --partition, the column to read it from.")
    if cache and not archive:
        raise ConfigurationError("--cache is of no use without --archive, of which it keeps parts.")
    if not archive and (erasable or shared):
        raise ConfigurationError("--erasable and --shared tell of an archive: give --archive too.")
    if not compacted and (tombstone or keep_tombstones is not None):
        raise ConfigurationError(
            "--tombstone and --keep-tombstones tell of a compacted feed: give --compacted too."
        )
    kept = (
        _open_archive(archive, cache=cache, erasable=erasable, shared=shared) if archive else None
    )
    engine = open_database(database, must_exist=True)
    events = reflect(engine, table)
    feed = partial(
        TableFeed,
        events,
        partition=partition,
        partitions=partitions,
        data=_data(events, data, columns),
        type=type_,
        id=id_,
        attributes=dict(map(_attribute, attributes)),
        compaction=_compaction(tombstone, keep_tombstones) if compacted else None,
        **options,
    )
    retention, progress = Retention(schema=events.schema), Progress(schema=events.schema)
    beside: dict[str, Any] = {}
    with engine.connect() as connection:
        if progress.is_there(connection):
            beside["progress"] = progress
        told = feed(retention=retention, archive=kept)
        if must_have_mark or compacted or kept is not None or told.has_mark(connection):
            beside |= {"retention": retention, "archive": kept}
    return engine, feed(**beside)


def _attribute(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not (name and equals and column):
        raise ConfigurationError("An attribute is written as NAME=COL, such as subject=customer.")
    return name, column


def _open_archive(place: str, **options: Any) -> Any:
    from zeroeventhub.archive import Archive  # noqa: PLC0415 - of another extra

    return Archive(place, **options)


def _compaction(tombstone: str | None, keep_tombstones: timedelta | None) -> Compaction:
    kept = {} if keep_tombstones is None else {"keep_tombstones": keep_tombstones}
    return Compaction(tombstone=tombstone and literal_column(f"({tombstone})"), **kept)


def _data(events: Table, data: str | None, columns: str | None) -> Any:
    if columns:
        return [name.strip() for name in columns.split(",")]
    if data is None:
        return None
    column = resolve(events, data)
    # A column named here holds JSON, whatever type it was declared with. One of jsonb stays so:
    # PostgreSQL would parse every document again to make it json.
    return column if isinstance(column.type, JSON) else type_coerce(column, JSON).label(data)
