"""`zeroeventhub compact`: keep the last event of each key of a table."""

import json
from datetime import timedelta
from typing import Any

import click

from zeroeventhub.cli.options import age, as_json
from zeroeventhub.cli.progress import Meters
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.cli.settling import patiently
from zeroeventhub.cli.store import agreed, go_ahead

__all__ = ["compact"]


@click.command()
@publish_options
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only events older than this, such as 30d or 12h.",
)
@agreed
@as_json
def compact(*, older_than: timedelta | None, yes: bool, as_json: bool, **table: Any) -> None:
    """Delete the events of a table behind which there is a later one of the same key.

    Takes the options of `zeroeventhub serve`: give those that the feed has, and --key. It has to
    know its mark, by what `zeroeventhub ddl --retention` prints. Whoever serves the table has to
    say --compacted from before the first time on, or caches keep pages for ever that change here.
    Stopped anywhere, it begins anew.
    """
    engine, feed = open_feed(**{**table, "compacted": True})
    bound = feed.bind(engine)
    patiently(bound.head)
    go_ahead("Events behind which there is a later one of their key will go.", yes=yes)
    with Meters({"deleted": None}) as meters:
        events = bound.compact(
            older_than=older_than, told=lambda events, _: meters.show("deleted", events)
        )
    click.echo(json.dumps({"deleted": events}) if as_json else f"{events:,} events are gone.")
