"""Cursors of consumers: show, set, move and forget them, and show how far they lag."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby

import click
from sqlalchemy import Connection, Engine, delete

from zeroeventhub.cli.consume import cursors_at
from zeroeventhub.cli.options import (
    NAMED_CURSORS,
    agreed,
    consumer_options,
    feed_options,
    moment,
    store_option,
)
from zeroeventhub.cli.output import Answer, answering, confirm, duration, table
from zeroeventhub.cli.table_options import open_database, reflect
from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.consumer.store.store import CursorStatus, CursorStore
from zeroeventhub.errors import ConfigurationError, printable
from zeroeventhub.protocol import FIRST
from zeroeventhub.spark.offsets import committed_offsets

__all__ = [
    "cursors",
    "expect_consumer",
    "lag",
    "open_store",
]

_TIME = "%Y-%m-%dT%H:%M:%SZ"


def open_store(url: str) -> tuple[Engine, CursorStore]:
    """Open a store and its database.

    Raises:
        ConfigurationError: there is none at this address, or one of another version.
    """
    engine = open_database(url, must_exist=True)
    store = CursorStore(engine)
    with engine.connect() as connection:
        store.check_tables(connection)
    return engine, store


def expect_consumer(connection: Connection, store: CursorStore, consumer: str) -> None:
    """Refuse the name of a consumer that the store does not know.

    Raises:
        ConfigurationError: it has no cursor and no dead letter of this name; it says whose it has.
    """
    names = sorted({place.consumer for place in store.standings(connection)})
    if consumer not in names and not store.dead_letters.count(connection, consumer):
        known = f"it has {', '.join(map(printable, names))}" if names else "it has none at all"
        raise ConfigurationError(f"This store has no consumer {printable(consumer)!r}; {known}.")


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
@answering
def list_(database: str, *, consumer: str | None) -> Answer:
    """List the consumers of a store."""
    engine, store = open_store(database)
    listed = [
        _Listed(
            name,
            len(places),
            len({place.owner for place in places} - {None}),
            max(place.updated_at for place in places),
        )
        for name, group in groupby(_statuses(engine, store, consumer), lambda one: one.consumer)
        if (places := list(group))
    ]
    lines = (
        f"{printable(one.consumer)}: partitions {one.partitions}, processes {one.processes}, "
        f"moved {one.updated_at:{_TIME}}"
        for one in listed
    )
    return listed, lines


@cursors.command()
@consumer_options
@answering
def show(database: str, *, consumer: str) -> Answer:
    """Show where a consumer stands in each partition, and which process reads it."""
    found = _statuses(*open_store(database), consumer)
    return found, map(_line, found)


def _line(place: CursorStatus) -> str:
    notes = [f"epoch {place.epoch}", f"moved {place.updated_at:{_TIME}}"]
    if place.ended:
        notes.append("read to its end")
    if place.owner is not None:
        notes.append(f"read by {printable(place.owner)}, for {place.lease_seconds:.0f} s yet")
    return f"partition {place.partition}: {printable(place.cursor)}; {'; '.join(notes)}"


@cursors.command("set")
@consumer_options
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
@answering
def set_(
    database: str,
    *,
    consumer: str,
    partition: int | None,
    cursor: str | None,
    checkpoint: str | None,
    source: str | None,
    yes: bool,
) -> Answer:
    """Put a consumer's cursor in a partition elsewhere, or all of them by a stream of Spark.

    CURSOR is one that the feed has given for this partition. Where the consumer keeps an inbox,
    events that it has applied are passed over all the same, unless `cursors reset` forgets them.

    DIR is the stream's checkpointLocation. Let the query end before, by Trigger.AvailableNow.
    """
    engine, store = open_store(database)
    before = _cursors(engine, store, consumer)
    match partition, cursor, checkpoint, source:
        case int() as number, str() as place, None, None:
            found = {number: NAMED_CURSORS.get(place, place)}
        case None, None, str() as folder, _:
            found = _stream_cursors(before, consumer, folder, source)
        case _:
            raise ConfigurationError(
                "Say --partition and a cursor, or --from-spark-checkpoint in their place."
            )
    return _set_cursors(engine, store, consumer, found, yes=yes)


def _stream_cursors(
    before: Mapping[int, str], consumer: str, checkpoint: str, source: str | None
) -> dict[int, str]:
    """Return where a consumer goes on after a stream of Spark, by partition.

    Partitions that the stream has not begun are left out: a consumer starts them by itself.

    Args:
        before: the consumer's cursors, by partition.
        consumer: its name.
        checkpoint: the folder of the stream's checkpoint.
        source: the stream's source that is the feed; None if it has one.

    Raises:
        ConfigurationError: the checkpoint does not say it, or the consumer has been where the
            stream has not.
    """
    offsets = committed_offsets(checkpoint, source)
    passed = {*offsets.cursors, *(one for line in offsets.cursor_from.values() for one in line)}
    if further := [one for one in before if one not in passed and before[one] != FIRST]:
        raise ConfigurationError(
            f"Consumer {printable(consumer)} has a cursor in partition {min(further)}, which the "
            "stream has not begun, and would leave out what is before that: let it start there "
            "again by `zeroeventhub cursors reset`, or take another name."
        )
    return dict(offsets.cursors)


@cursors.command()
@feed_options
@click.option(
    "--time",
    callback=moment,
    required=True,
    metavar="TIME",
    help="The moment, with its time zone, such as 2026-01-31T12:00:00Z.",
)
@consumer_options
@partition_option
@agreed
@answering
def seek(
    *,
    client: Client,
    time: datetime,
    database: str,
    consumer: str,
    chosen: tuple[int, ...],
    yes: bool,
) -> Answer:
    """Put a consumer's cursors before the events of a moment or later.

    The feed at URL says which cursors these are. About the inbox, see `cursors set`.
    """
    engine, store = open_store(database)
    found = cursors_at(client, time, chosen)
    return _set_cursors(engine, store, consumer, found, yes=yes)


def _set_cursors(
    engine: Engine,
    store: CursorStore,
    consumer: str,
    cursors: Mapping[int, str],
    *,
    yes: bool,
) -> Answer:
    """Ask, set the cursors of some partitions, and report where they were."""
    before = _cursors(engine, store, consumer)
    changes = [
        {"partition": number, "before": before.get(number), "cursor": cursor}
        for number, cursor in sorted(cursors.items())
    ]
    lines = [
        f"partition {number}: {printable(before.get(number, 'none'))} -> {printable(cursor)}"
        for number, cursor in sorted(cursors.items())
    ]
    confirm(
        f"Consumer {printable(consumer)} will go on elsewhere, so that events are repeated or left "
        "out:\n" + "".join(f"  {line}\n" for line in lines),
        yes=yes,
    )
    with engine.begin() as connection:
        for number, cursor in sorted(cursors.items()):
            store.set(connection, consumer, number, cursor)
    return {"consumer": consumer, "partitions": changes}, lines


@cursors.command()
@consumer_options
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
@answering
def reset(
    database: str,
    *,
    consumer: str,
    chosen: tuple[int, ...],
    cursor: str,
    emptied: tuple[str, ...],
    yes: bool,
) -> Answer:
    """Let a consumer start again, with an empty inbox and without dead letters.

    With --empty, what it has written is built anew: cursors and tables are of one moment.
    """
    if cursor not in NAMED_CURSORS and len(chosen) != 1:
        raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
    engine, store = open_store(database)
    known = {place.partition for place in _statuses(engine, store, consumer)}
    if unknown := set(chosen) - known:
        raise ConfigurationError(
            f"Consumer {printable(consumer)!r} has no cursor in partition {min(unknown)}; "
            f"it has them in {', '.join(map(str, sorted(known)))}."
        )
    tables = {name: reflect(engine, name) for name in emptied}
    names = ", ".join(map(printable, tables))
    confirm(
        f"Consumer {printable(consumer)} will start again in partition "
        f"{', '.join(map(str, sorted(chosen or known)))}, and its dead letters there and what "
        "its inbox knows are forgotten"
        + (f"; all rows of {names} are deleted." if names else "; effects may be repeated."),
        yes=yes,
    )
    start = NAMED_CURSORS.get(cursor, cursor)
    with engine.begin() as connection:
        count = store.reset(connection, consumer, chosen or None, start)
        deleted = {
            name: connection.execute(delete(table)).rowcount for name, table in tables.items()
        }
    document = {"consumer": consumer, "partitions": count, "deleted": deleted}
    rows = (f"Rows deleted from {printable(name)}: {rows:,}" for name, rows in deleted.items())
    return document, [f"Partitions that start again: {count}", *rows]


def _statuses(engine: Engine, store: CursorStore, consumer: str | None) -> list[CursorStatus]:
    """Return where consumers stand; refuse a name that none has."""
    with engine.connect() as connection:
        if consumer is not None:
            expect_consumer(connection, store, consumer)
        found = store.standings(connection)
    return [place for place in found if consumer in {None, place.consumer}]


def _cursors(engine: Engine, store: CursorStore, consumer: str) -> dict[int, str]:
    with engine.connect() as connection:
        return store.cursors(connection, consumer)


@click.command()
@feed_options
@consumer_options
@answering
def lag(*, client: Client, database: str, consumer: str) -> Answer:
    """Show how many events of the feed at URL a consumer has not read, and how old the first is.

    A feed that does not count them is read, up to 10,000 events for each partition.
    """
    engine, store = open_store(database)
    with engine.connect() as connection:
        expect_consumer(connection, store, consumer)
    found = find_lag(client, store, consumer)
    listed = [{"partition": number, **asdict(lag)} for number, lag in found.items()]
    rows = [("partition", "events", "behind")]
    rows += [
        (str(number), f"{lag.events:,}{'' if lag.exact else '+'}", duration(lag.seconds))
        for number, lag in found.items()
    ]
    return {"consumer": consumer, "partitions": listed}, table(rows)
