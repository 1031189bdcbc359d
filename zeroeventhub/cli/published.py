"""Options that say how a table is published, and the feed that they make."""

from collections.abc import Callable
from typing import Any

import click
from sqlalchemy import JSON, Engine, Table, func, select, type_coerce

from zeroeventhub.cli.options import open_database, reflect, table_options
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.mapping import resolve

__all__ = ["open_feed", "publish_options"]


def publish_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a table and say what its events are."""
    for option in (
        click.option(
            "--mutable",
            is_flag=True,
            help="Rows are changed or deleted, so cursors cannot be checked.",
        ),
        click.option("--cloudevents", is_flag=True, help="Wrap events in a CloudEvents envelope."),
        click.option("--id", "id_", metavar="COL", help="The column of the event's id."),
        click.option("--key", metavar="COL", help="The column of the event's key."),
        click.option("--type", "type_", metavar="COL", help="The column of the event's type."),
        click.option("--columns", metavar="a,b,c", help="The columns that make an event's data."),
        click.option(
            "--data", metavar="COL", help="The column that holds an event's data as JSON."
        ),
        click.option(
            "--partitions",
            type=click.IntRange(1),
            metavar="N",
            help="How many partitions; by default the column's largest value + 1.",
        ),
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
    **options: Any,
) -> tuple[Engine, TableFeed]:
    """Open a database and make the feed of one of its tables.

    Args:
        database: its URL.
        table: the table's name.
        partition: the column of partitions.
        partitions: how many there are; None to find out.
        data: the column that holds an event's data as JSON.
        columns: the columns that make it, with commas between.
        type_: the column of the event's type.
        id_: the column of its id.
        options: other options of TableFeed.

    Raises:
        ConfigurationError: options contradict each other, or something is not there.
    """
    if data and columns:
        raise ConfigurationError("An event's data is --data or --columns, not both.")
    if partitions and not partition:
        raise ConfigurationError("--partitions needs --partition, the column to read it from.")
    engine = open_database(database, must_exist=True)
    events = reflect(engine, table)
    if partition and not partitions:
        partitions = _count_partitions(engine, events, partition)
    feed = TableFeed(
        events,
        partition=partition,
        partitions=partitions,
        data=_data(events, data, columns),
        type=type_,
        id=id_,
        **options,
    )
    return engine, feed


def _count_partitions(engine: Engine, events: Table, partition: str) -> int:
    with engine.connect() as connection:
        largest = connection.scalar(select(func.max(resolve(events, partition))))
    if not isinstance(largest, int | None):
        raise ConfigurationError(f"{partition} does not hold whole numbers from 0.")
    return max(largest or 0, 0) + 1


def _data(events: Table, data: str | None, columns: str | None) -> Any:
    if columns:
        return [name.strip() for name in columns.split(",")]
    # A column named here holds JSON, whatever type it was declared with.
    return data and type_coerce(resolve(events, data), JSON).label(data)
