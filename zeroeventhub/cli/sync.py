"""`zeroeventhub sync`: land a feed in a table, exactly once."""

import json

import click
from sqlalchemy import Connection

from zeroeventhub.cli.event_types import chosen_types, type_options
from zeroeventhub.cli.options import as_json, feed_options, open_client, open_database
from zeroeventhub.cli.progress import Meters
from zeroeventhub.consumer import Consumer, PendingPage
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.landing import LandingTable

__all__ = ["sync"]

ATTEMPTS = 5


@click.command()
@feed_options
@click.option("--into", "database", required=True, metavar="DATABASE_URL", help="Where to.")
@click.option("--table", required=True, help="The table, created if it is not there.")
@click.option(
    "--consumer",
    required=True,
    help="The consumer's name, under which its place is kept: one name for one feed and table.",
)
@click.option("--follow", is_flag=True, help="Wait for more events at the head.")
@click.option("--page", type=click.IntRange(1), help="How many events to ask for at once.")
@type_options
@as_json
def sync(
    url: str,
    *,
    headers: tuple[str, ...],
    partitions: int | None,
    database: str,
    table: str,
    consumer: str,
    follow: bool,
    page: int | None,
    only_types: tuple[str, ...],
    skipped_types: tuple[str, ...],
    as_json: bool,
) -> None:
    """Land the events of the feed at URL in a table, each exactly once.

    Stopped or killed at any point, the same command goes on where it was. Several processes
    with one consumer name share the work. Without --follow it ends when everything that could be
    read has landed. Events of types that were not asked for are passed over for good.
    """
    engine = open_database(database)
    landing = LandingTable(table)
    store = CursorStore(engine)
    landed = 0
    with open_client(url, headers, partitions) as client, Meters({"landed": None}) as meters:
        following = Consumer(
            client,
            store,
            consumer,
            follow=follow,
            limit=page,
            types=chosen_types(client, only_types, skipped_types),
            attempts=None if follow else ATTEMPTS,
        )
        if not follow and not client.discover().exactly_once:
            meters.say("The feed does not promise that it publishes an event only once.")
        with engine.begin() as connection:
            store.create_tables(connection)
            if store.cursors(connection, consumer) and not landing.exists(connection):
                raise ConfigurationError(
                    f"Consumer {consumer!r} has read before, but not into {table!r}: "
                    "choose another --consumer, or the table that it has filled."
                )
            landing.create(connection)

        def apply(connection: Connection, page: PendingPage) -> None:
            nonlocal landed
            landing.land(connection, page.partition, page.events)
            landed += len(page.events)
            meters.show("landed", landed)

        following.run(apply)
    engine.dispose()
    if as_json:
        click.echo(json.dumps({"landed": landed, "table": table, "consumer": consumer}))
    else:
        click.echo(f"Events landed in {table}: {landed:,}", err=True)
