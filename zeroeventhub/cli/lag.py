"""`zeroeventhub lag`: how far a consumer is behind."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from zeroeventhub.cli.options import FeedAddress, as_json, feed_options, open_client
from zeroeventhub.cli.store import consumer_option, expect_consumer, open_store, store_option
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.protocol import Lag

__all__ = ["duration", "lag", "table"]

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


@click.command()
@feed_options
@store_option
@consumer_option
@as_json
def lag(
    *,
    feed: FeedAddress,
    database: str,
    consumer: str,
    as_json: bool,
) -> None:
    """Show how many events of the feed at URL a consumer has not read, and how old the first is.

    A feed that does not count them is read, up to 10,000 events for each partition.
    """
    with open_store(database) as (engine, store):
        with engine.connect() as connection:
            expect_consumer(connection, store, consumer)
        with open_client(feed) as client:
            found = find_lag(client, store, consumer)
    if as_json:
        listed = [{"partition": number, **asdict(lag)} for number, lag in found.items()]
        click.echo(json.dumps({"consumer": consumer, "partitions": listed}))
        return
    click.echo(table(_rows(found)))


def _rows(found: Mapping[int, Lag]) -> list[tuple[str, ...]]:
    return [
        ("partition", "events", "behind"),
        *(
            (str(number), f"{lag.events:,}{'' if lag.exact else '+'}", duration(lag.seconds))
            for number, lag in found.items()
        ),
    ]


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Set rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def duration(seconds: float | None) -> str:
    """Write a time in the largest unit that it has one of."""
    if seconds is None:
        return "unknown"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
