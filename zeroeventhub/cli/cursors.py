"""`zeroeventhub cursors` and `lag`: show, move, rename, copy and forget consumers."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import wraps
from typing import Any

import click
from sqlalchemy import Connection, Engine, delete

from zeroeventhub.cli.consume import cursors_at
from zeroeventhub.cli.options import (
    NAMED_CURSORS,
    PARTITION,
    consumer_option,
    feed_option,
    feed_options,
    moment,
    option_group,
    partition_option,
    yes_option,
)
from zeroeventhub.cli.output import Answer, answering, confirm, table
from zeroeventhub.cli.table_options import open_database, reflect
from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import TWICE, about_moves, consequence, cursor_in, find_moves
from zeroeventhub.consumer.lag import lag as find_lag
from zeroeventhub.consumer.observer import place_in
from zeroeventhub.consumer.steps import choose
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store.status import CursorStatus, summaries
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import ConfigurationError, Gone, printable
from zeroeventhub.extensions import FORGET_PROGRESS, SPLITS
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.spark.offsets import committed_offsets
from zeroeventhub.times import duration

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

WIDTH = 120
"""How many characters of a key or an error are shown in a line."""

MOST = 20
"""How many names of consumers an error lists."""


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
    if store.standings(connection, consumer) or store.dead_letters.count(connection, consumer):
        return
    names = sorted({status.consumer for status in store.standings(connection)})
    known = f"it has {', '.join(map(printable, names[:MOST]))}" if names else "it has none at all"
    more = f" and {len(names) - MOST:,} more" if len(names) > MOST else ""
    raise ConfigurationError(f"This store has no consumer {printable(consumer)!r}; {known}{more}.")


partitions_option = click.option(
    "--partition", "chosen", type=PARTITION, multiple=True, help="Only this partition; repeatable."
)


@click.group()
def cursors() -> None:
    """Show, move, rename, copy and forget consumers.

    The consumer may run while you move it: it does not commit the page that it read from the old
    cursor, and continues at the new one.
    """


@cursors.command("list")
@store_option
@click.option("--consumer", help="List only this consumer.")
@answering
def list_(engine: Engine, store: CursorStore, *, consumer: str | None) -> Answer:
    """List the consumers of a store."""
    listed = summaries(_statuses(engine, store, consumer))
    lines = [
        f"{printable(one['consumer'])}: partitions {one['partitions']}, "
        f"processes {one['processes']}, moved {one['updated_at']:{TIME_FORMAT}}"
        + "".join(f", {state} {one[state]}" for state in ("halted", "retried") if one[state])
        for one in listed
    ]
    return listed, lines


@cursors.command()
@consumer_options
@answering
def show(engine: Engine, store: CursorStore, *, consumer: str) -> Answer:
    """Show a consumer's cursors, processes and last errors."""
    found = _statuses(engine, store, consumer)
    return found, map(_line, found)


def brief(error: str) -> str:
    """Shorten a stored error to its first line, and the event that it names."""
    parts = [printable(error.partition("\n")[0], longest=WIDTH), printable(place_in(error))]
    return ", at ".join(filter(None, parts))


def _line(status: CursorStatus) -> str:
    notes = [f"epoch {status.epoch}", f"moved {status.updated_at:{TIME_FORMAT}}"]
    if status.ended:
        notes.append("read to its end")
    if status.owner is not None:
        owner = printable(status.owner)
        notes.append(f"read by {owner}, whose lease ends in {status.lease_seconds:.0f} s")
    if status.error is not None:
        if status.retry_seconds is None:
            state = f"halted {status.halted_at:{TIME_FORMAT}} after {status.tries} tries"
        else:
            due = f"in {status.retry_seconds:.0f} s" if status.retry_seconds > 0 else "due"
            state = (
                f"retried since {status.retried_since:{TIME_FORMAT}}, failed tries {status.tries}, "
                f"the next one {due}"
            )
        notes.append(f"{state}: {brief(status.error)}")
    return f"partition {status.partition}: {printable(status.cursor)}; {'; '.join(notes)}"


_UNCOUNTED = ": --feed URL lets the feed count them"
"""How an operator gets to know the consequence of a move."""

counting_option = feed_option("it counts the events that are read again or left out")


@cursors.command("set")
@counting_option
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
    client: Client | None,
    consumer: str,
    partition: int | None,
    cursor: str | None,
    checkpoint: str | None,
    source: str | None,
    yes: bool,
) -> Answer:
    """Set the cursor of a partition, or all by a Spark stream.

    CURSOR is a cursor that the feed gave for this partition. A consumer with an inbox still skips
    the events that it has applied, unless `cursors reset` empties the inbox.

    DIR is the stream's checkpointLocation. First let the query end by Trigger.AvailableNow.
    """
    match partition, cursor, checkpoint, source:
        case int(), str(), None, None:
            found = {partition: NAMED_CURSORS.get(cursor, cursor)}
            if client is not None:
                choose(client.discover(), [partition])  # refuses one that the feed does not have
        case None, None, str(), _:
            with engine.connect() as connection:
                before = store.cursors(connection, consumer)
            found = _stream_cursors(before, consumer, checkpoint, source)
        case _:
            raise ConfigurationError(
                "Give --partition and a cursor, or --from-spark-checkpoint instead."
            )
    return _set_cursors(engine, store, client, consumer, found, yes=yes)


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
    help="The time: 2026-01-31T12:00:00Z, 2026-01-31, 14:30, yesterday, 2h or '3 days ago'; "
    "without a time zone it is this machine's.",
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
    """Set a consumer's cursors by a time.

    The consumer continues before all events of this time or later. The feed at URL finds the
    cursors, and counts the events between the old ones and the new ones. A consumer with an inbox
    still skips the events that it has applied.
    """
    return _set_cursors(engine, store, client, consumer, cursors_at(client, time, chosen), yes=yes)


def _set_cursors(
    engine: Engine,
    store: CursorStore,
    client: Client | None,
    consumer: str,
    cursors: Mapping[int, str],
    *,
    yes: bool,
) -> Answer:
    """Set the cursors of some partitions once the operator agrees, and report the old ones."""
    with engine.connect() as connection:
        before = store.cursors(connection, consumer)
        holdings = store.holdings(connection, consumer)
    moves = blocking(find_moves(client, before, cursors))
    lines = [*map(str, moves)]
    confirm(
        f"Consumer {printable(consumer)} will continue at other cursors:\n"
        + "".join(f"  {line}\n" for line in lines)
        + about_moves(moves, holdings, _UNCOUNTED),
        yes=yes,
    )
    with engine.begin() as connection:
        for number, cursor in sorted(cursors.items()):
            store.set(connection, consumer, number, cursor)
    return {"consumer": consumer, "partitions": moves}, lines


@cursors.command()
@counting_option
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
    client: Client | None,
    consumer: str,
    chosen: tuple[int, ...],
    cursor: str,
    emptied: tuple[str, ...],
    yes: bool,
) -> Answer:
    """Let a consumer start again, by default at the first event.

    The command also empties the consumer's inbox and deletes its dead letters. --empty deletes what
    the consumer has written, in the same transaction; the consumer then writes it again.
    """
    if cursor not in NAMED_CURSORS and len(chosen) != 1:
        raise ConfigurationError("A cursor belongs to one partition: say --partition as well.")
    before = {one.partition: one.cursor for one in _statuses(engine, store, consumer)}
    if unknown := set(chosen) - set(before):
        raise ConfigurationError(
            f"Consumer {printable(consumer)!r} has no cursor in partition {min(unknown)}; "
            f"it has them in {', '.join(map(str, before))}."
        )
    if emptied and chosen and set(before) - set(chosen):
        raise ConfigurationError(
            "--empty deletes the rows of all partitions, and only those of --partition would come "
            "again: leave out one of the two."
        )
    tables = {name: reflect(engine, name) for name in emptied}
    names = ", ".join(map(printable, tables))
    start = NAMED_CURSORS.get(cursor, cursor)
    moves = blocking(find_moves(client, before, dict.fromkeys(chosen or before, start)))
    rows_go = f"All rows of {names} are deleted. " if names else ""
    repeated = "their rows are written anew." if names else TWICE
    confirm(
        f"Consumer {printable(consumer)} will start again in partition "
        f"{', '.join(map(str, sorted(chosen or before)))}, and its dead letters and its inbox "
        f"there are deleted. {rows_go}{consequence(moves, repeated, _UNCOUNTED)}",
        yes=yes,
    )
    with engine.begin() as connection:
        count = store.reset(connection, consumer, chosen or None, start)
        deleted = {
            name: connection.execute(delete(table)).rowcount for name, table in tables.items()
        }
    document = {"consumer": consumer, "partitions": count, "moves": moves, "deleted": deleted}
    rows = (f"Rows deleted from {printable(name)}: {rows:,}" for name, rows in deleted.items())
    return document, [f"Partitions that start again: {count}", *map(str, moves), *rows]


name_argument = click.argument("name", metavar="NEW-NAME")


@cursors.command()
@name_argument
@feed_option("its publisher waits for the new name instead of the old one")
@consumer_options
@answering
def rename(
    engine: Engine, store: CursorStore, *, client: Client | None, consumer: str, name: str
) -> Answer:
    """Give a consumer that does not run another name.

    When you start the consumer with the new name, it continues where it was, with its inbox and
    its dead letters. If the publisher does not answer, repeat the command.
    """
    _expect_registrations(client)
    with engine.begin() as connection:
        is_gone = client is not None and not store.cursors(connection, consumer)
        is_repeated = is_gone and bool(store.cursors(connection, name))
        if not is_repeated:
            expect_consumer(connection, store, consumer)
            store.rename(connection, consumer, name)
        found = store.cursors(connection, name)
    registered = None
    if client is not None:
        registered = _register_instead(client, consumer, name, found, is_repeated=is_repeated)
    document = {"consumer": name, "partitions": len(found), "registered": registered}
    return document, [
        f"Consumer {printable(consumer)} is now {printable(name)}, in {len(found)} partitions.",
        *_about_registered(registered),
    ]


def _expect_registrations(client: Client | None) -> None:
    """Refuse a feed at which no consumer can have registered, before anything is changed."""
    if client is not None and FORGET_PROGRESS not in client.discover().extensions:
        raise ConfigurationError(
            f"No consumer registers at this feed, which does not have the extension "
            f"{FORGET_PROGRESS}: leave out --feed."
        )


def _register_instead(
    client: Client, consumer: str, name: str, cursors: Mapping[int, str], *, is_repeated: bool
) -> int:
    """Register a new name before the old one is withdrawn, so that trimming waits all the time."""
    info = client.discover()
    for partition in info.partitions:
        cursor = cursor_in(partition, cursors) or LAST
        if cursor == FIRST and SPLITS in info.extensions:
            (cursor, *_) = client.splits(partition.id, 1)
        if cursor not in {FIRST, LAST}:
            # Of a partition whose events are gone, trimming can keep none.
            with suppress(Gone):
                client.register_progress(name, partition.id, cursor)
    registered = client.forget_progress(consumer)
    # An earlier run of this command may have withdrawn the old name.
    if not registered and not is_repeated:
        client.forget_progress(name)
    return registered


def _about_registered(registered: int | None) -> list[str]:
    """Return a line for people about what a consumer had registered at the publisher, if asked."""
    return [] if registered is None else [f"Withdrawn at the publisher: {registered} cursors"]


@cursors.command()
@name_argument
@consumer_options
@answering
def copy(engine: Engine, store: CursorStore, *, consumer: str, name: str) -> Answer:
    """Add a consumer that continues where another one is.

    The other consumer may run meanwhile. The command also copies the inbox and the dead letters,
    but not what the consumer has written. To copy that in the same transaction, call
    CursorStore.copy in code of your own.
    """
    with engine.begin() as connection:
        expect_consumer(connection, store, consumer)
        store.copy(connection, consumer, name)
        found = store.holdings(connection, name)
    document = {"consumer": name, "copied": {one: count for one, count in found.items() if count}}
    line = (
        f"Consumer {printable(name)} continues where {printable(consumer)} is, in "
        f"{found['cursors']} partitions."
    )
    return document, [line]


@cursors.command()
@feed_option("what the consumer has registered there is withdrawn as well")
@consumer_options
@yes_option
@answering
def forget(
    engine: Engine, store: CursorStore, *, client: Client | None, consumer: str, yes: bool
) -> Answer:
    """Delete all that a store has of a consumer that no longer runs.

    What the consumer has written stays. If the consumer registers its progress, give --feed:
    otherwise the publisher keeps events for it until `trim --silence` has passed. If the publisher
    does not answer, repeat the command.
    """
    _expect_registrations(client)
    with engine.connect() as connection:
        found = store.holdings(connection, consumer)
        if client is None:
            expect_consumer(connection, store, consumer)
    confirm(
        f"Consumer {printable(consumer)} is forgotten: its cursors in {found['cursors']} "
        f"partitions, {found['dead_letters']:,} dead letters, which never take effect then, and "
        f"{found['inbox']:,} ids of its inbox. One that is started by this name begins as a new "
        "one, and repeats the effects that are there.",
        yes=yes,
    )
    with engine.begin() as connection:
        found = store.forget(connection, consumer)
    registered = None if client is None else client.forget_progress(consumer)
    document = {"consumer": consumer, "deleted": found, "registered": registered}
    rows = [f"{name.replace('_', ' ')}: {count:,}" for name, count in found.items() if count]
    line = f"Deleted: {', '.join(rows) or 'nothing, as there was nothing'}"
    return document, [line, *_about_registered(registered)]


def _statuses(engine: Engine, store: CursorStore, consumer: str | None) -> list[CursorStatus]:
    """Return the cursors of one consumer, or of all if `consumer` is None."""
    with engine.connect() as connection:
        if consumer is not None:
            expect_consumer(connection, store, consumer)
        return store.standings(connection, consumer)


@click.command()
@feed_options
@consumer_options
@answering
def lag(engine: Engine, store: CursorStore, *, client: Client, consumer: str) -> Answer:
    """Show how many events of a feed a consumer has not read yet.

    The column `behind` is the age of the first of them. If the feed at URL does not count events,
    the command reads up to 10,000 events of each partition.
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
