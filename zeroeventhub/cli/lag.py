"""`zeroeventhub lag`: how far a consumer is behind."""

import json
from collections.abc import Mapping
from dataclasses import asdict

import click

from zeroeventhub.cli.options import as_json, feed_options, open_client, open_database
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Lag

__all__ = ["lag"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@click.command()
@feed_options
@click.option(
    "--store", "database", required=True, metavar="DATABASE_URL", help="Where the cursors are."
)
@click.option("--consumer", required=True, help="The consumer's name.")
@as_json
def lag(
    url: str,
    *,
    headers: tuple[str, ...],
    partitions: int | None,
    database: str,
    consumer: str,
    as_json: bool,
) -> None:
    """Show how many events of the feed at URL a consumer has not read, and how old the first is.

    A feed that does not count them is read, up to 10,000 events for each partition.
    """
    engine = open_database(database, must_exist=True)
    store = CursorStore(engine)
    with engine.connect() as connection:
        if not store.cursors(connection, consumer):
            raise ConfigurationError(
                f"There is no cursor of consumer {consumer!r} in this database: has it read yet, "
                "and is this its name?"
            )
    with open_client(url, headers, partitions) as client:
        found = find_lag(client, store, consumer)
    engine.dispose()
    if as_json:
        listed = [{"partition": number, **asdict(lag)} for number, lag in found.items()]
        click.echo(json.dumps({"consumer": consumer, "partitions": listed}))
        return
    click.echo(_table(found))


def _table(found: Mapping[int, Lag]) -> str:
    rows = [("partition", "events", "behind")]
    rows += [
        (str(number), f"{lag.events:,}{'' if lag.exact else '+'}", _duration(lag.seconds))
        for number, lag in found.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _duration(seconds: float | None) -> str:
    """Write a time in the largest unit that it has one of."""
    if seconds is None:
        return "unknown"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
