"""`zeroeventhub tail`: events on stdout, one JSON document a line, and nothing else there."""

import json
import sys
from datetime import datetime

import click

from zeroeventhub.cli.event_types import chosen_types, type_options
from zeroeventhub.cli.options import FeedAddress, feed_options, open_client, open_database
from zeroeventhub.client import Client
from zeroeventhub.consumer import Consumer
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAST

__all__ = ["tail"]

ATTEMPTS = 3
NAME = "tail"


@click.command()
@feed_options
@click.option("--partition", type=click.IntRange(0), help="Read this partition only.")
@click.option(
    "--from",
    "start",
    metavar="first|last|CURSOR",
    help="Where to start, by default at the first event; a cursor goes with --partition.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Start before the events of this moment, such as 2026-01-31T12:00:00Z.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many events.")
@click.option("--follow", is_flag=True, help="Wait for more events at the head.")
@type_options
def tail(
    *,
    feed: FeedAddress,
    partition: int | None,
    start: str | None,
    since: str | None,
    limit: int | None,
    follow: bool,
    only_types: tuple[str, ...],
    skipped_types: tuple[str, ...],
) -> None:
    """Print the events of the feed at URL as NDJSON.

    Without --follow it ends when everything that could be read has been printed.
    """
    if start is not None and since is not None:
        raise ConfigurationError("Say where to start by --from or by --since, not both.")
    moment = None if since is None else _moment(since)
    names = {"first": FIRST, "last": LAST}
    cursor = FIRST if start is None else names.get(start, start)
    chosen = None if partition is None else [partition]
    with open_client(feed) as client:
        if start not in {None, *names} and not chosen and len(client.discover().partitions) > 1:
            raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
        types = chosen_types(client, only_types, skipped_types)
        begin = {} if moment is None else _cursors_at(client, moment, chosen)
        # Nothing is kept, so the cursors live in memory.
        memory = open_database("sqlite://")
        store = CursorStore(memory)
        with memory.begin() as connection:
            store.create_tables(connection)
            for number, place in begin.items():
                store.load(connection, NAME, number, start=place)
        left = limit
        for page in Consumer(
            client,
            store,
            NAME,
            start=cursor,
            partitions=chosen,
            follow=follow,
            limit=limit,
            types=types,
            attempts=None if follow else ATTEMPTS,
        ):
            events = page.events[:left]
            lines = b"".join(event.raw + b"\n" for event in events)
            sys.stdout.buffer.write(_for_terminal(lines) if sys.stdout.isatty() else lines)
            sys.stdout.buffer.flush()
            with memory.begin() as connection:
                page.commit(connection)
            if left is not None and (left := left - len(events)) == 0:
                break


def _for_terminal(lines: bytes) -> bytes:
    """Escape as JSON does what would move a terminal's cursor or turn the direction of writing."""
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in lines.decode()
    ).encode()


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            "--since takes a moment with its time zone, such as 2026-01-31T12:00:00Z."
        ) from None


def _cursors_at(client: Client, moment: datetime, chosen: list[int] | None) -> dict[int, str]:
    """Ask for the cursors of a moment, by partition."""
    numbers = chosen or [partition.id for partition in client.discover().partitions]
    return {number: client.cursor_at(moment, number) for number in numbers}
