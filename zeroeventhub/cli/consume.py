"""Read a feed: its description, its events, and its events into a table."""

import json
import sys
import threading
from collections.abc import Collection
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Connection

from zeroeventhub.cli.configuration import FileCommand, entry
from zeroeventhub.cli.options import (
    ATTEMPTS,
    NAMED_CURSORS,
    as_json,
    config_option,
    feed_options,
    follow_option,
    landing_options,
    moment,
    partition_option,
    run_options,
    type_options,
)
from zeroeventhub.cli.output import Meter, report
from zeroeventhub.cli.table_options import open_database
from zeroeventhub.client import Client
from zeroeventhub.consumer.consumer import Consumer
from zeroeventhub.consumer.event_insert import LandingTable
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.page import PendingPage
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import ConfigurationError, printable
from zeroeventhub.protocol import FIRST, TypeFilter
from zeroeventhub.wire.documents import encode_info


def cursors_at(client: Client, moment: datetime, partitions: Collection[int]) -> dict[int, str]:
    """Ask a feed for the cursors before a moment, in these partitions or in all."""
    numbers = partitions or [partition.id for partition in client.discover().partitions]
    return {number: client.cursor_at(moment, number) for number in numbers}


@click.command()
@feed_options
@as_json
def discover(*, client: Client, as_json: bool) -> None:
    """Show the partitions and the extensions of the feed at URL."""
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


@click.command()
@feed_options
@partition_option
@click.option(
    "--from",
    "start",
    metavar="first|last|CURSOR",
    help="Start here, by default at the first event; a cursor needs --partition.",
)
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Start before the events of this moment, such as 2026-01-31T12:00:00Z.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many events.")
@follow_option
@type_options
def tail(
    *,
    client: Client,
    partition: int | None,
    start: str | None,
    since: datetime | None,
    limit: int | None,
    follow: bool,
    types: TypeFilter | None,
) -> None:
    """Print the events of the feed at URL as NDJSON.

    The command ends when it has read all events, unless --follow is given.
    """
    if start is not None and since is not None:
        raise ConfigurationError("Give --from or --since, not both.")
    chosen = [] if partition is None else [partition]
    if start not in {None, *NAMED_CURSORS} and not chosen and len(client.discover().partitions) > 1:
        raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
    begin = {} if since is None else cursors_at(client, since, chosen)
    # The command stores nothing, so the cursors are in memory.
    memory = open_database("sqlite://")
    store = CursorStore(memory)
    with memory.begin() as connection:
        store.create_tables(connection)
        for number, cursor in begin.items():
            store.load(connection, "tail", number, start=cursor)
    left = limit
    for page in Consumer(
        client,
        store,
        "tail",
        start=FIRST if start is None else NAMED_CURSORS.get(start, start),
        partitions=chosen or None,
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
    """Escape, as JSON does, the characters that control a terminal."""
    return "".join(
        one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in lines.decode()
    ).encode()


class SyncCommand(FileCommand):
    """A command that takes what URL is in the file, if it is the name of a consumer there."""

    def look_up(self, ctx: click.Context, words: dict[str, Any]) -> tuple[str, ...]:
        """Look the consumer up."""
        name = words.get("url")
        if not isinstance(name, str) or "://" in name:
            return ()
        consumer = entry("consumers", name, words.get("config"))
        ctx.default_map = {"consumer": name, **consumer}
        return "consumers", name

    def invoke(self, ctx: click.Context) -> Any:
        """Read the feed of the consumer."""
        if ctx.default_map is not None:
            ctx.params["url"] = ctx.default_map["url"]
        return super().invoke(ctx)


@click.command(cls=SyncCommand)
@feed_options
@config_option
@landing_options
@run_options
@type_options
@as_json
def sync(
    *,
    client: Client,
    into: str,
    table: str,
    consumer: str,
    running: dict[str, Any],
    types: TypeFilter | None,
    as_json: bool,
) -> None:
    """Insert a feed's events into a table, each exactly once.

    URL is the address of the feed, or the name of a consumer in zeroeventhub.toml. The command ends
    when it has read all events, unless --follow is given. After a stop or a kill, run the same
    command again: it continues where it was. Several processes with the same consumer name share
    the partitions.

    The consumer never gets the events that --event-type or --skip-event-type leave out, also if a
    later run asks for them.
    """
    engine = open_database(into, option="into")
    landing = LandingTable(table)
    store = CursorStore(engine)
    with Meter("landed") as meter:
        progress = RunProgress(meter)
        following = Consumer(client, store, consumer, types=types, observer=progress, **running)
        if not running["follow"] and client.discover().token is None:  # of ZeroEventHub v1
            meter.say("The feed does not promise that it publishes an event only once.")
        with engine.begin() as connection:
            store.create_tables(connection)
            if store.cursors(connection, consumer) and not landing.exists(connection):
                raise ConfigurationError(
                    f"Consumer {consumer!r} has read before, but not into {table!r}: "
                    "choose another --consumer, or the table that it has filled."
                )
            landing.create(connection)
            # In this order, as another process of the consumer may land its first page meanwhile.
            if landing.has_events(connection) and not store.cursors(connection, consumer):
                raise ConfigurationError(
                    f"Table {table!r} has events already, and consumer {consumer!r} has read none: "
                    "name the consumer that has filled it, or another table."
                )

        def apply(connection: Connection, page: PendingPage) -> None:
            landing.land(connection, page.partition, page.events)

        following.run(apply, handle_signals=True)
    progress.report(f"Events landed in {table}", table=table, consumer=consumer, as_json=as_json)


class RunProgress(Observer):
    """Count the events on a meter."""

    def __init__(self, meter: Meter) -> None:
        self.done = 0
        self.aside = 0
        self._meter = meter
        self._lock = threading.Lock()

    def committed(self, consumer: str, partition: int, events: int) -> None:  # noqa: ARG002
        """Count them."""
        self._count(events)

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:  # noqa: ARG002
        """Count them apart."""
        self._count(0, events + held)

    def _count(self, done: int, aside: int = 0) -> None:
        with self._lock:
            self.done += done
            self.aside += aside
            self._meter.show(self.done)

    def report(self, sentence: str, *, as_json: bool, **more: str) -> None:
        """Print what was done, and what was set aside."""
        report({self._meter.name: self.done, "set_aside": self.aside, **more}, [], as_json=as_json)
        if not as_json:
            click.echo(f"{sentence}: {self.done:,}", err=True)
        if self.aside:
            click.echo(f"Events set aside as dead letters: {self.aside:,}", err=True)
