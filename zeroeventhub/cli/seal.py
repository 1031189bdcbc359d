"""`zeroeventhub seal`: write what is settled in a table into its archive."""

import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from zeroeventhub.cli.options import age, as_json
from zeroeventhub.cli.progress import Meters
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.cli.settling import patiently
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.sealing import SEGMENT_EVENTS

__all__ = ["seal"]


@click.command()
@publish_options
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only events older than this, such as 30d or 12h.",
)
@click.option(
    "--segment-events",
    type=click.IntRange(1),
    default=SEGMENT_EVENTS,
    show_default=True,
    help="How many events a segment has, at most.",
)
@click.option(
    "--least",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many events are worth a segment.",
)
@as_json
def seal(
    *,
    older_than: timedelta | None,
    segment_events: int,
    least: int,
    as_json: bool,
    **table: Any,
) -> None:
    """Write what is settled in a table, and not in its archive yet, into the archive.

    Takes the options of `zeroeventhub serve`: give those that the feed has, and --archive. The
    table stays as it is; `zeroeventhub trim --archive …` takes out of it what is in the archive.
    Stopped anywhere, it goes on next time.
    """
    if not table["archive"]:
        raise ConfigurationError("Say where to seal it: --archive with a folder, or a URL.")
    engine, feed = open_feed(**table)
    bound = feed.bind(engine)
    patiently(bound.head)
    with Meters({"sealed": None}) as meters:
        found = bound.seal(
            older_than=older_than,
            segment_events=segment_events,
            least=least,
            told=lambda events: meters.show("sealed", events),
        )
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(
        f"{found.events:,} events in {found.segments:,} new segments of {found.size:,} bytes; "
        f"sealed up to position {found.position}."
    )
