"""`zeroeventhub tail`: events on stdout, one JSON document a line, and nothing else there."""

import sys

import click
from sqlalchemy import create_engine

from zeroeventhub.cli.options import feed_options, open_client
from zeroeventhub.consumer import Consumer
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAST

__all__ = ["tail"]

ATTEMPTS = 3


@click.command()
@feed_options
@click.option("--partition", type=click.IntRange(0), help="Read this partition only.")
@click.option(
    "--from",
    "start",
    default="first",
    metavar="first|last|CURSOR",
    show_default=True,
    help="Where to start; a cursor goes with --partition.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many events.")
@click.option("--follow", is_flag=True, help="Wait for more events at the head.")
def tail(
    url: str,
    *,
    headers: tuple[str, ...],
    partitions: int | None,
    partition: int | None,
    start: str,
    limit: int | None,
    follow: bool,
) -> None:
    """Print the events of the feed at URL as NDJSON."""
    cursor = {"first": FIRST, "last": LAST}.get(start, start)
    with open_client(url, headers, partitions) as client:
        if cursor == start and partition is None and len(client.discover().partitions) > 1:
            raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
        # Nothing is kept, so the cursors live in memory.
        memory = create_engine("sqlite://")
        store = CursorStore(memory)
        with memory.begin() as connection:
            store.create_tables(connection)
        left = limit
        for page in Consumer(
            client,
            store,
            "tail",
            start=cursor,
            partitions=None if partition is None else [partition],
            follow=follow,
            limit=limit,
            attempts=None if follow else ATTEMPTS,
        ):
            events = page.events[:left]
            sys.stdout.buffer.write(b"".join(event.raw + b"\n" for event in events))
            sys.stdout.buffer.flush()
            with memory.begin() as connection:
                page.commit(connection)
            if left is not None and (left := left - len(events)) == 0:
                break
