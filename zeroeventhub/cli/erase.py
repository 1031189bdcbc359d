"""`zeroeventhub erase`: take events out of the archive of a table's feed, for good."""

import json
from typing import Any

import click

from zeroeventhub.cli.options import as_json
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.cli.store import agreed, go_ahead
from zeroeventhub.errors import ConfigurationError

__all__ = ["erase"]


@click.command()
@publish_options
@click.option("--event-id", "ids", multiple=True, metavar="ID", help="The id of an event; several.")
@click.option("--event-key", "keys", multiple=True, metavar="KEY", help="A key; several.")
@agreed
@as_json
def erase(
    *, ids: tuple[str, ...], keys: tuple[str, ...], yes: bool, as_json: bool, **table: Any
) -> None:
    """Erase events from the archive of a table's feed, by their ids or keys, for good.

    Takes the options of `zeroeventhub serve`: give those that the feed has, --archive and
    --erasable. What is still in the table stays there. Stopped anywhere, do it again.
    """
    if not table["archive"]:
        raise ConfigurationError("Say from where: --archive with a folder, or a URL.")
    if not ids and not keys:
        raise ConfigurationError("Say which events: --event-id or --event-key, once or more.")
    engine, feed = open_feed(**table)
    bound = feed.bind(engine)
    go_ahead("These events will be erased for good.", yes=yes)
    events = bound.erase(ids=ids, keys=keys)
    click.echo(json.dumps({"erased": events}) if as_json else f"{events:,} events were erased.")
