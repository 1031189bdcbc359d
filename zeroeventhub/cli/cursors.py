"""Cursors of consumers: show, set, move and forget them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import click
from sqlalchemy import Connection, Engine, delete

from zeroeventhub.cli.options import (
    FeedAddress,
    as_json,
    feed_options,
    open_client,
    open_database,
    reflect,
)
from zeroeventhub.consumer.store.admin import CursorStatus
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError, printable
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.spark.offsets import committed_offsets

__all__ = [
    "agreed",
    "consumer_option",
    "cursors",
    "expect_consumer",
    "go_ahead",
    "open_store",
    "store_option",
]

store_option = click.option(
    "--store", "database", required=True, metavar="DATABASE_URL", help="Where the cursors are."
)

consumer_option = click.option("--consumer", required=True, help="The consumer's name.")

agreed = click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")


@contextmanager
def open_store(url: str) -> Iterator[tuple[Engine, CursorStore]]:
    """Open a store, and its database, for as long as a command runs.

    Raises:
        ConfigurationError: there is none at this address, or one of another version.
    """
    engine = open_database(url, must_exist=True)
    store = CursorStore(engine)
    with engine.connect() as connection:
        store.check_tables(connection)
    yield engine, store


def expect_consumer(connection: Connection, store: CursorStore, consumer: str) -> None:
    """Refuse the name of a consumer that the store does not know.

    Raises:
        ConfigurationError: it has no cursor and no dead letter of this name; it says whose it has.
    """
    names = sorted({place.consumer for place in store.standings(connection)})
    if consumer not in names and not store.dead_letters.count(connection, consumer):
        others = f"it has {', '.join(map(printable, names))}" if names else "it has none at all"
        raise ConfigurationError(f"This store has no consumer {printable(consumer)!r}; {others}.")


def go_ahead(question: str, *, yes: bool) -> None:
    """End the command unless its user agrees; what is asked is not part of the output."""
    if not yes:
        click.confirm(f"{question} Go on?", abort=True, err=True)


def document(value: Any) -> str:
    """Write a dataclass, or a list of them, as JSON."""
    found = [asdict(one) for one in value] if isinstance(value, list) else asdict(value)
    return json.dumps(found, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(type(value).__name__)


def put(
    engine: Engine,
    store: CursorStore,
    consumer: str,
    cursors: Mapping[int, str],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Ask, put cursors elsewhere, and say so.

    Args:
        engine: the store's database.
        store: where the cursors are.
        consumer: the consumer's name.
        cursors: by partition.
        yes: do not ask.
        as_json: say it for machines.
    """
    before = _cursors(engine, store, consumer)
    lines = [
        f"  partition {number}: {printable(before.get(number, 'none'))} -> {printable(cursor)}"
        for number, cursor in sorted(cursors.items())
    ]
    go_ahead(
        f"Consumer {printable(consumer)} will go on elsewhere, so that events are repeated or left "
        "out:\n" + "\n".join(lines) + "\n",
        yes=yes,
    )
    with engine.begin() as connection:
        for number, cursor in sorted(cursors.items()):
            store.set(connection, consumer, number, cursor)
    if as_json:
        listed = [
            {"partition": number, "before": before.get(number), "cursor": cursor}
            for number, cursor in sorted(cursors.items())
        ]
        click.echo(json.dumps({"consumer": consumer, "partitions": listed}))
    else:
        click.echo("\n".join(line.strip() for line in lines))


def stream_cursors(
    engine: Engine, store: CursorStore, consumer: str, checkpoint: str, source: str | None
) -> dict[int, str]:
    """Return where a consumer goes on behind a stream of Spark, by partition.

    Partitions that the stream has not begun are left out: a consumer starts them by itself.

    Args:
        engine: the store's database.
        store: where the cursors are.
        consumer: the consumer's name.
        checkpoint: the folder of the stream's checkpoint.
        source: the stream's source that is the feed; None if it has one.

    Raises:
        ConfigurationError: the checkpoint does not say it, or the consumer has been where the
            stream has not.
    """
    offsets = committed_offsets(checkpoint, source)
    passed = {*offsets.cursors, *(one for line in offsets.cursor_from.values() for one in line)}
    before = _cursors(engine, store, consumer)
    if further := [one for one in before if one not in passed and before[one] != FIRST]:
        raise ConfigurationError(
            f"Consumer {printable(consumer)} has a cursor in partition {min(further)}, which the "
            "stream has not begun, and would leave out what is before that: let it start there "
            "again by `zeroeventhub cursors reset`, or take another name."
        )
    return dict(offsets.cursors)


def _cursors(engine: Engine, store: CursorStore, consumer: str) -> dict[int, str]:
    with engine.connect() as connection:
        return store.cursors(connection, consumer)


_NAMES = {"first": FIRST, "last": LAST}

partition_option = click.option(
    "--partition",
    "chosen",
    type=click.IntRange(0),
    multiple=True,
    help="This partition alone; can be given several times.",
)


@dataclass(frozen=True)
class _Listed:
    """A consumer of a store, and how many partitions it reads in how many processes."""

    consumer: str
    partitions: int
    processes: int
    updated_at: datetime


@click.group()
def cursors() -> None:
    """Show where consumers stand, and put them elsewhere.

    A consumer may go on running meanwhile: a page that it has read from another place is not
    committed, and it reads on from the new one.
    """


@cursors.command("list")
@store_option
@click.option("--consumer", help="The consumer's name; by default all are listed.")
@as_json
def list_(database: str, *, consumer: str | None, as_json: bool) -> None:
    """List the consumers of a store."""
    with open_store(database) as (engine, store):
        found = _standings(engine, store, consumer)
    listed = [
        _Listed(
            name,
            len(places),
            len({place.owner for place in places} - {None}),
            max(place.updated_at for place in places),
        )
        for name, group in groupby(found, lambda place: place.consumer)
        if (places := list(group))
    ]
    if as_json:
        click.echo(document(listed))
        return
    for one in listed:
        click.echo(
            f"{printable(one.consumer)}: partitions {one.partitions}, processes {one.processes}, "
            f"moved {_moment(one.updated_at)}"
        )


@cursors.command()
@store_option
@consumer_option
@as_json
def show(database: str, *, consumer: str, as_json: bool) -> None:
    """Show where a consumer stands in each partition, and which process reads it."""
    with open_store(database) as (engine, store):
        found = _standings(engine, store, consumer)
    if as_json:
        click.echo(document(found))
        return
    for place in found:
        notes = [f"epoch {place.epoch}", f"moved {_moment(place.updated_at)}"]
        if place.ended:
            notes.append("read to its end")
        if place.owner is not None:
            notes.append(f"read by {printable(place.owner)}, for {place.lease_seconds:.0f} s yet")
        click.echo(f"partition {place.partition}: {printable(place.cursor)}; {'; '.join(notes)}")


@cursors.command("set")
@store_option
@consumer_option
@click.option("--partition", type=click.IntRange(0), help="The partition.")
@click.argument("cursor", metavar="[first|last|CURSOR]", required=False)
@click.option(
    "--from-spark-checkpoint",
    "checkpoint",
    metavar="DIR",
    help="Go on in all partitions where the committed batches of a stream of Spark end.",
)
@click.option(
    "--source", metavar="SOURCE", help="The stream's source that is the feed, if it has several."
)
@agreed
@as_json
def set_(
    database: str,
    *,
    consumer: str,
    partition: int | None,
    cursor: str | None,
    checkpoint: str | None,
    source: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Put a consumer's cursor in a partition elsewhere, or all of them by a stream of Spark.

    CURSOR is one that the feed has given for this partition. Where the consumer keeps an inbox,
    events that it has applied are passed over all the same, unless `cursors reset` forgets them.

    DIR is the stream's checkpointLocation. Let the query end before, by Trigger.AvailableNow.
    """
    with open_store(database) as (engine, store):
        match partition, cursor, checkpoint, source:
            case int() as number, str() as place, None, None:
                found = {number: _NAMES.get(place, place)}
            case None, None, str() as folder, _:
                found = stream_cursors(engine, store, consumer, folder, source)
            case _:
                raise ConfigurationError(
                    "Say --partition and a cursor, or --from-spark-checkpoint in their place."
                )
        put(engine, store, consumer, found, yes=yes, as_json=as_json)


@cursors.command()
@feed_options
@click.option(
    "--time",
    "moment",
    required=True,
    metavar="TIME",
    help="The moment, with its time zone, such as 2026-01-31T12:00:00Z.",
)
@store_option
@consumer_option
@partition_option
@agreed
@as_json
def seek(
    *,
    feed: FeedAddress,
    moment: str,
    database: str,
    consumer: str,
    chosen: tuple[int, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Put a consumer's cursors before the events of a moment or later.

    The feed at URL says which cursors these are. About the inbox, see `cursors set`.
    """
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        raise ConfigurationError(
            "--time takes a moment with its time zone, such as 2026-01-31T12:00:00Z."
        ) from None
    with open_store(database) as (engine, store):
        with open_client(feed) as client:
            numbers = chosen or [partition.id for partition in client.discover().partitions]
            found = {number: client.cursor_at(time, number) for number in numbers}
        put(engine, store, consumer, found, yes=yes, as_json=as_json)


@cursors.command()
@store_option
@consumer_option
@partition_option
@click.option(
    "--to",
    "cursor",
    default="first",
    show_default=True,
    metavar="first|last|CURSOR",
    help="Where to start again; a cursor goes with --partition.",
)
@click.option(
    "--empty",
    "emptied",
    multiple=True,
    metavar="TABLE",
    help="Delete all rows of this table in the same transaction; can be given several times.",
)
@agreed
@as_json
def reset(
    database: str,
    *,
    consumer: str,
    chosen: tuple[int, ...],
    cursor: str,
    emptied: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Let a consumer start again, with an empty inbox and without dead letters.

    With --empty, what it has written is built anew: cursors and tables are of one moment.
    """
    if cursor not in _NAMES and len(chosen) != 1:
        raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
    with open_store(database) as (engine, store):
        known = {place.partition for place in _standings(engine, store, consumer)}
        _check_known(known, chosen, consumer)
        tables = [reflect(engine, name) for name in emptied]
        names = ", ".join(map(printable, emptied))
        go_ahead(
            f"Consumer {printable(consumer)} will start again in partition "
            f"{', '.join(map(str, sorted(chosen or known)))}, and its dead letters there and what "
            "its inbox knows are forgotten"
            + (f"; all rows of {names} are deleted." if names else "; effects may be repeated."),
            yes=yes,
        )
        with engine.begin() as connection:
            count = store.reset(connection, consumer, chosen or None, _NAMES.get(cursor, cursor))
            deleted = {
                name: connection.execute(delete(table)).rowcount
                for name, table in zip(emptied, tables, strict=True)
            }
    if as_json:
        click.echo(json.dumps({"consumer": consumer, "partitions": count, "deleted": deleted}))
        return
    click.echo(f"Partitions that start again: {count}")
    for name, rows in deleted.items():
        click.echo(f"Rows deleted from {printable(name)}: {rows:,}")


def _standings(engine: Engine, store: CursorStore, consumer: str | None) -> list[CursorStatus]:
    """Return where consumers stand; refuse a name that none has."""
    with engine.connect() as connection:
        if consumer is not None:
            expect_consumer(connection, store, consumer)
        found = store.standings(connection)
    return [place for place in found if consumer in {None, place.consumer}]


def _check_known(known: set[int], chosen: tuple[int, ...], consumer: str) -> None:
    if unknown := set(chosen) - known:
        raise ConfigurationError(
            f"Consumer {printable(consumer)!r} has no cursor in partition {min(unknown)}; "
            f"it has them in {', '.join(map(str, sorted(known)))}."
        )


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
