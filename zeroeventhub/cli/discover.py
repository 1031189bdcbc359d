"""`zeroeventhub discover`: what a feed says of itself."""

import click

from zeroeventhub.cli.options import FeedAddress, as_json, feed_options, open_client
from zeroeventhub.errors import printable
from zeroeventhub.ndjson import encode_info

__all__ = ["discover"]


@click.command()
@feed_options
@as_json
def discover(*, feed: FeedAddress, as_json: bool) -> None:
    """Show the partitions of the feed at URL, and its extensions."""
    with open_client(feed) as client:
        info = client.discover()
    if as_json:
        click.echo(encode_info(info), nl=False)
        return
    version = (
        "ZeroEventHub v1" if info.token is None else f"FeedAPI v2, token {printable(info.token)}"
    )
    promise = "each event once" if info.exactly_once else "no promise that an event comes once"
    click.echo(f"{version}; {promise}")
    if info.extensions:
        click.echo(f"extensions: {', '.join(map(printable, sorted(info.extensions)))}")
    for partition in info.partitions:
        notes = ["closed"] if partition.closed else []
        if partition.starts_after is not None:
            notes.append(f"starts after partition {partition.starts_after}")
        if partition.cursor_from:
            parents = ", ".join(map(str, partition.cursor_from))
            notes.append(f"takes the cursor of partition {parents}")
        click.echo(f"partition {partition.id}" + (f": {'; '.join(notes)}" if notes else ""))
