"""`zeroeventhub progress`: how far consumers have told a feed that they have come."""

import json
from dataclasses import asdict
from typing import Any

import click

from zeroeventhub.cli.lag import duration, table
from zeroeventhub.cli.options import as_json
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.cli.store import agreed, consumer_option, go_ahead
from zeroeventhub.errors import Gone, printable
from zeroeventhub.protocol import Lag
from zeroeventhub.publisher.progress import Registered

__all__ = ["progress"]


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
