"""How far behind consumers are, by their own store and by what the publisher was told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from zeroeventhub.cli.cursors import (
    agreed,
    consumer_option,
    expect_consumer,
    go_ahead,
    open_store,
    store_option,
)
from zeroeventhub.cli.options import FeedAddress, as_json, feed_options, open_client
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.errors import Gone, printable
from zeroeventhub.protocol import Lag
from zeroeventhub.publisher.progress import Registered

__all__ = [
    "lag",
    "progress",
]

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


@click.group()
def progress() -> None:
    """Show consumers that have told a feed how far they have come, and forget some.

    Trimming waits for them. The feed has to keep what they say, in the table that
    `zeroeventhub ddl --progress` prints.
    """


@progress.command("list")
@publish_options
@as_json
def list_(*, as_json: bool, **options: Any) -> None:
    """List who has come how far, how many events lie behind that, and when it was heard.

    Takes the options of `zeroeventhub serve`.
    """
    engine, feed = open_feed(**options)
    bound: Any = feed.bind(engine)
    found = [(one, _lag(bound, one)) for one in bound.registered()]
    if as_json:
        click.echo(
            json.dumps(
                [{**asdict(one), "lag": None if lag is None else asdict(lag)} for one, lag in found]
            )
        )
        return
    rows = [("consumer", "principal", "partition", "events", "behind", "heard")]
    rows += [
        (
            printable(one.consumer),
            printable(one.principal) or "-",
            str(one.partition),
            "lost some" if lag is None else f"{lag.events:,}{'' if lag.exact else '+'}",
            "unknown" if lag is None else duration(lag.seconds),
            f"{duration(one.heard)} ago",
        )
        for one, lag in found
    ]
    click.echo(table(rows))


@progress.command()
@publish_options
@consumer_option
@click.option("--principal", help="Who registers it; by default whoever does.")
@agreed
@as_json
def forget(
    *, consumer: str, principal: str | None, yes: bool, as_json: bool, **options: Any
) -> None:
    """Forget a consumer that is no more, so that trimming does not wait for it."""
    engine, feed = open_feed(**options)
    bound: Any = feed.bind(engine)
    go_ahead(f"Trimming will no longer wait for consumer {printable(consumer)}.", yes=yes)
    places = bound.forget_progress(consumer, principal=principal)
    if as_json:
        click.echo(json.dumps({"consumer": consumer, "places": places}))
        return
    click.echo(f"Places that are forgotten: {places}")


def _lag(bound: Any, one: Registered) -> Lag | None:
    """Count the events behind a place; None where some of them are gone."""
    try:
        found: Lag = bound.lag(one.partition, one.cursor)
    except Gone:
        return None
    return found
