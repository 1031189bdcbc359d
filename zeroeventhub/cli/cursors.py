"""`zeroeventhub cursors` and `lag`: show, set, move and reset the cursors of consumers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import wraps
from itertools import groupby
from typing import Any

import click
from sqlalchemy import Connection, Engine, delete

from zeroeventhub.cli.consume import cursors_at
from zeroeventhub.cli.options import (
    NAMED_CURSORS,
    consumer_option,
    feed_options,
    moment,
    option_group,
    partition_option,
    yes_option,
)
from zeroeventhub.cli.output import Answer, answering, confirm, duration, table
from zeroeventhub.cli.table_options import open_database, reflect
from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.consumer.store.cursor_store import CursorStatus, CursorStore
from zeroeventhub.errors import ConfigurationError, printable
from zeroeventhub.protocol import FIRST
from zeroeventhub.spark.offsets import committed_offsets

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that names a store; the command gets its `engine`, and the `store`."""

    @click.option(
        "--store",
        "database",
        required=True,
        metavar="DATABASE_URL",
        help="The consumer's database.",
    )
    @wraps(command)
    def with_store(*, database: str, **options: Any) -> Any:
        engine = open_database(database, must_exist=True)
        store = CursorStore(engine)
        with engine.connect() as connection:
            store.check_tables(connection)
        return command(engine=engine, store=store, **options)

    return with_store


consumer_options = option_group(store_option, consumer_option)


def expect_consumer(connection: Connection, store: CursorStore, consumer: str) -> None:
    """Refuse the name of a consumer that has neither a cursor nor a dead letter in the store."""
    names = sorted({status.consumer for status in store.standings(connection)})
    if consumer not in names and not store.dead_letters.count(connection, consumer):
        known = f"it has {', '.join(map(printable, names))}" if names else "it has none at all"
        raise ConfigurationError(f"This store has no consumer {printable(consumer)!r}; {known}.")


partitions_option = click.option(
    "--partition",
    "chosen",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; repeatable.",
)


@click.group()
def cursors() -> None:
    """Show and move the cursors of consumers.

    A consumer may run meanwhile: its page from the old cursor is not committed, and it continues
    from the new one.
    """


@cursors.command("list")
@store_option
@click.option("--consumer", help="List only this consumer.")
@answering
def list_(engine: Engine, store: CursorStore, *, consumer: str | None) -> Answer:
    """List the consumers of a store."""
    listed, lines = [], []
    for name, group in groupby(_statuses(engine, store, consumer), lambda one: one.consumer):
        found = list(group)
        processes = len({one.owner for one in found} - {None})
        moved = max(one.updated_at for one in found)
        listed.append(
            {
                "consumer": name,
                "partitions": len(found),
                "processes": processes,
                "updated_at": moved,
            }
        )
        lines.append(
            f"{printable(name)}: partitions {len(found)}, processes {processes}, "
            f"moved {moved:{TIME_FORMAT}}"
        )
    return listed, lines


@cursors.command()
@consumer_options
@answering
def show(engine: Engine, store: CursorStore, *, consumer: str) -> Answer:
    """Show a consumer's cursor in each partition, and the process that reads it."""
    found = _statuses(engine, store, consumer)
    return found, map(_line, found)


def _line(status: CursorStatus) -> str:
    notes = [f"epoch {status.epoch}", f"moved {status.updated_at:{TIME_FORMAT}}"]
    if status.ended:
        notes.append("read to its end")
    if status.owner is not None:
        owner = printable(status.owner)
        notes.append(f"read by {owner}, whose lease ends in {status.lease_seconds:.0f} s")
    return f"partition {status.partition}: {printable(status.cursor)}; {'; '.join(notes)}"


@cursors.command("set")
@consumer_options
@partition_option
@click.argument("cursor", metavar="[first|last|CURSOR]", required=False)
@click.option(
    "--from-spark-checkpoint",
    "checkpoint",
    metavar="DIR",
    help="Continue all partitions where the committed batches of a Spark stream end.",
)
@click.option(
    "--source",
    metavar="SOURCE",
    help="The number or name of the feed among the stream's sources, if it has several.",
)
@yes_option
@answering
def set_(
    engine: Engine,
    store: CursorStore,
    *,
    consumer: str,
    partition: int | None,
    cursor: str | None,
    checkpoint: str | None,
    source: str | None,
    yes: bool,
) -> Answer:
    """Set a consumer's cursor in one partition, or in all from a Spark stream.

    CURSOR is one that the feed gave for this partition. A consumer with an inbox still skips the
    events that it has applied, unless `cursors reset` empties the inbox.

    DIR is the stream's checkpointLocation. End the query by Trigger.AvailableNow first.
    """
    match partition, cursor, checkpoint, source:
        case int(), str(), None, None:
            found = {partition: NAMED_CURSORS.get(cursor, cursor)}
        case None, None, str(), _:
            with engine.connect() as connection:
                before = store.cursors(connection, consumer)
            found = _stream_cursors(before, consumer, checkpoint, source)
        case _:
            raise ConfigurationError(
                "Give --partition and a cursor, or --from-spark-checkpoint instead."
            )
    return _set_cursors(engine, store, consumer, found, yes=yes)


def _stream_cursors(
    before: Mapping[int, str], consumer: str, checkpoint: str, source: str | None
) -> dict[int, str]:
    """Return the cursors at which a Spark stream ended, for the partitions that it has begun."""
    offsets = committed_offsets(checkpoint, source)
    passed = {*offsets.cursors, *(one for line in offsets.cursor_from.values() for one in line)}
    if further := [one for one in before if one not in passed and before[one] != FIRST]:
        raise ConfigurationError(
            f"Consumer {printable(consumer)} has a cursor in partition {min(further)}, which the "
            "stream has not begun, so that the consumer would skip the events before that cursor: "
            "reset it by `zeroeventhub cursors reset`, or choose another name."
        )
    return dict(offsets.cursors)


@cursors.command()
@feed_options
@click.option(
    "--time",
    type=moment,
    required=True,
    metavar="TIME",
    help="The moment, with its time zone, such as 2026-01-31T12:00:00Z.",
)
@consumer_options
@partitions_option
@yes_option
@answering
def seek(
    engine: Engine,
    store: CursorStore,
    *,
    client: Client,
    time: datetime,
    consumer: str,
    chosen: tuple[int, ...],
    yes: bool,
) -> Answer:
    """Set a consumer's cursors before the events of a moment or later.

    The feed at URL finds the cursors. A consumer with an inbox still skips the events that it has
    applied.
    """
    return _set_cursors(engine, store, consumer, cursors_at(client, time, chosen), yes=yes)


def _set_cursors(
    engine: Engine, store: CursorStore, consumer: str, cursors: Mapping[int, str], *, yes: bool
) -> Answer:
    """Set the cursors of some partitions once the operator agrees, and report the old ones."""
    with engine.connect() as connection:
        before = store.cursors(connection, consumer)
    changes, lines = [], []
    for number, cursor in sorted(cursors.items()):
        old = before.get(number)
        changes.append({"partition": number, "before": old, "cursor": cursor})
        lines.append(
            f"partition {number}: {printable('none' if old is None else old)} -> "
            f"{printable(cursor)}"
        )
    confirm(
        f"Consumer {printable(consumer)} will continue at other cursors, so that events are "
        "repeated or left out:\n" + "".join(f"  {line}\n" for line in lines),
        yes=yes,
    )
    with engine.begin() as connection:
        for number, cursor in sorted(cursors.items()):
            store.set(connection, consumer, number, cursor)
    return {"consumer": consumer, "partitions": changes}, lines


@cursors.command()
@consumer_options
@partitions_option
@click.option(
    "--to",
    "cursor",
    default="first",
    metavar="first|last|CURSOR",
    help="Start again here; a cursor needs --partition.",
)
@click.option(
    "--empty",
    "emptied",
    multiple=True,
    metavar="TABLE",
    help="Delete all rows of this table in the same transaction; repeatable.",
)
@yes_option
@answering
def reset(
    engine: Engine,
    store: CursorStore,
    *,
    consumer: str,
    chosen: tuple[int, ...],
    cursor: str,
    emptied: tuple[str, ...],
    yes: bool,
) -> Answer:
    """Let a consumer start again, with an empty inbox and without dead letters.

    --empty deletes what the consumer has written, in the same transaction, so that the consumer
    builds it anew.
    """
    if cursor not in NAMED_CURSORS and len(chosen) != 1:
        raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
    known = {status.partition for status in _statuses(engine, store, consumer)}
    if unknown := set(chosen) - known:
        raise ConfigurationError(
            f"Consumer {printable(consumer)!r} has no cursor in partition {min(unknown)}; "
            f"it has them in {', '.join(map(str, sorted(known)))}."
        )
    tables = {name: reflect(engine, name) for name in emptied}
    names = ", ".join(map(printable, tables))
    confirm(
        f"Consumer {printable(consumer)} will start again in partition "
        f"{', '.join(map(str, sorted(chosen or known)))}, and its dead letters and its inbox "
        "there are deleted"
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
    """Return the cursors of one consumer, or of all if `consumer` is None."""
    with engine.connect() as connection:
        if consumer is not None:
            expect_consumer(connection, store, consumer)
        found = store.standings(connection)
    return [status for status in found if consumer in {None, status.consumer}]


@click.command()
@feed_options
@consumer_options
@answering
def lag(engine: Engine, store: CursorStore, *, client: Client, consumer: str) -> Answer:
    """Show how many events of the feed at URL a consumer has not read, and the age of the first.

    If the feed does not count events, the command reads up to 10,000 of each partition.
    """
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
