"""`zeroeventhub sync`: land a feed in a table, exactly once."""

import json
import threading
import time

import click
from sqlalchemy import Connection

from zeroeventhub.cli.event_types import chosen_types, type_options
from zeroeventhub.cli.options import FeedAddress, as_json, feed_options, open_client, open_database
from zeroeventhub.cli.progress import Meters
from zeroeventhub.consumer import Consumer, Failures, Observer, PendingPage
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.landing import LandingTable

__all__ = ["sync"]

ATTEMPTS = 5

LEASE = 10.0
"""Seconds for which a process that was killed keeps its partitions."""

PATIENCE = 1.0
"""Seconds without a partition after which it is said why; at the end there are some as well."""


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
@click.option(
    "--tries",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often to try to land an event that the database refuses.",
)
@click.option(
    "--set-aside",
    is_flag=True,
    help="Put events that cannot be landed aside as dead letters; else their partition halts.",
)
@click.option(
    "--lease",
    type=click.FloatRange(0, min_open=True),
    default=LEASE,
    show_default=True,
    help="Seconds after which others take over from a process that was killed.",
)
@click.option(
    "--register-progress",
    is_flag=True,
    help="Tell the publisher how far this has come, so that it keeps what has not landed.",
)
@type_options
@as_json
def sync(
    *,
    feed: FeedAddress,
    database: str,
    table: str,
    consumer: str,
    follow: bool,
    page: int | None,
    tries: int,
    set_aside: bool,
    lease: float,
    register_progress: bool,
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
    with open_client(feed) as client, Meters({"landed": None}) as meters:
        watch = _Watch(meters, lease)
        following = Consumer(
            client,
            store,
            consumer,
            follow=follow,
            limit=page,
            types=chosen_types(client, only_types, skipped_types),
            attempts=None if follow else ATTEMPTS,
            lease=lease,
            failures=Failures(tries, "set-aside" if set_aside else "halt"),
            observer=watch,
            register_progress=register_progress,
        )
        if not follow and (info := client.discover()).token is None and not info.exactly_once:
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
            landing.land(connection, page.partition, page.events)

        following.run(apply, handle_signals=True)
    if as_json:
        counts = {"landed": watch.landed, "set_aside": watch.aside}
        click.echo(json.dumps({**counts, "table": table, "consumer": consumer}))
    else:
        click.echo(f"Events landed in {table}: {watch.landed:,}", err=True)
    if watch.aside:
        click.echo(f"Events set aside as dead letters: {watch.aside:,}", err=True)


class _Watch(Observer):
    """Count what has landed, and say what is waited for."""

    def __init__(self, meters: Meters, lease: float) -> None:
        self.landed = 0
        self.aside = 0
        self._meters = meters
        self._lease = lease
        self._lock = threading.Lock()
        self._idle_since: float | None = None
        self._has_said = False

    def committed(self, consumer: str, partition: int, events: int) -> None:  # noqa: ARG002
        self._count(events)

    def duplicate(self, consumer: str, partition: int, events: int) -> None:  # noqa: ARG002
        self._count(-events)

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:  # noqa: ARG002
        self._count(-events - held, events + held)

    def _count(self, landed: int, aside: int = 0) -> None:
        with self._lock:
            self.landed += landed
            self.aside += aside
            self._meters.show("landed", self.landed)

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        now = time.monotonic()
        if partitions:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif not self._has_said and now - self._idle_since > PATIENCE:
            self._has_said = True
            self._meters.say(
                f"Other processes of consumer {consumer!r} hold its partitions; those of one that "
                f"was killed are free {self._lease:g} s after its last sign of life."
            )
