"""The commands that check and maintain a feed's table and its archive."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from sqlalchemy import CheckConstraint, Table, column, literal_column
from sqlalchemy.schema import AddConstraint, CreateIndex, CreateTable

from zeroeventhub.cli.configuration import FeedCommand
from zeroeventhub.cli.options import age_option, as_json, consumer_option, yes_option
from zeroeventhub.cli.output import Answer, Meter, answering, as_misuse, confirm, report
from zeroeventhub.cli.output import table as in_columns
from zeroeventhub.cli.table_options import (
    archive_of,
    compact_options,
    has_log,
    log_named,
    open_database,
    open_feed,
    open_table,
    publish_options,
    restore_options,
    seal_options,
    table_options,
    trim_options,
)
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import quoted, statement_text
from zeroeventhub.errors import ConfigurationError, Gone, TransientError, Unavailable, printable
from zeroeventhub.event_log import Capture
from zeroeventhub.protocol import Lag
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.progress import Progress, Registered
from zeroeventhub.publisher.retention import MarkTable, Retention
from zeroeventhub.times import duration

PATIENCE = 30.0
"""Seconds for which a command waits until the horizon is known."""

_log = logging.getLogger(__name__)

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}

_Answer = TypeVar("_Answer")


def _retry_until_ready(ask: Callable[[], _Answer]) -> _Answer:
    """Call a function of a feed until the feed's horizon is known."""
    ending = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > ending:
                raise
            time.sleep(0.1)


@click.command(cls=FeedCommand)
@publish_options
@click.option(
    "--capture",
    multiple=True,
    metavar="TABLE",
    help="Also check the triggers that write the changes of this table to it; repeatable.",
)
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@as_json
@click.pass_context
def check(
    context: click.Context,
    /,
    *,
    capture: tuple[str, ...],
    strict: bool,
    as_json: bool,
    **table: Any,
) -> None:
    """Check whether a table can be published; change nothing.

    Give the options that you give to `zeroeventhub serve`. Exit codes: 0 the table can be
    published; 1 it cannot, or --strict is given and there are warnings; 2 there was nothing to
    check.
    """
    with as_misuse():
        # As for `ddl`: a feed that the file lets trim is served only with a mark.
        must_have_mark = bool((context.default_map or {}).get("retention"))
        found = open_feed(**table, must_have_mark=must_have_mark).check()
        if capture:
            with open_database(table["database"]).connect() as connection:
                found += Capture(log_named(table["table"]), *capture).check(connection)
    report(found, map(_described, found), as_json=as_json, indent=2)
    failing = {"error", "warning"} if strict else {"error"}
    if any(finding.level in failing for finding in found):
        sys.exit(1)


def _described(finding: Finding) -> str:
    mark = click.style(f"{finding.level:7}", fg=_COLOURS[finding.level])
    statement = "" if finding.statement is None else f"\n{'':21}{finding.statement}"
    return f"{mark}  {finding.subject:10}  {finding.sentence}{statement}"


@click.command(cls=FeedCommand)
@table_options
@answering
def horizon(**table: Any) -> Answer:
    """Show a feed's horizon, and the writers who hold it back.

    The horizon is the position up to which a feed may be read. The command lists the open writers,
    the oldest first; the horizon has been held back for at most the age of the oldest.
    """
    engine, feed = open_table(**table)
    found = feed.bind(engine).horizon()
    with engine.connect() as connection:
        blockers = feed.ordering(engine.dialect.name).blockers(connection)
    held_back = found.settled is None or found.settled < (found.drawn or 0)
    age = max((blocker.age.total_seconds() for blocker in blockers), default=0) if held_back else 0
    known = "not known yet: it waits for the writers below"
    line = f"horizon {known if found.settled is None else found.settled}"
    line += "" if found.drawn is None else f", last number drawn {found.drawn}"
    line += f", held back for at most {age:.1f} s" if age else ""
    document = {
        "settled": found.settled,
        "highest": found.drawn,
        "age": age,
        "blockers": blockers,
        "unpublished": found.unpublished,
    }
    return document, [line, *map(str, blockers), *filter(None, [found.unpublished])]


@click.command(cls=FeedCommand)
@table_options
@click.option("--uninstall", is_flag=True, help="Print the SQL that removes the ordering.")
@click.option("--retention", is_flag=True, help="Also print the table that trimming needs.")
@click.option("--progress", is_flag=True, help="Also print the table in which consumers register.")
@click.option(
    "--capture",
    multiple=True,
    metavar="TABLE",
    help="Print the triggers that write the changes of this table to a log instead; repeatable.",
)
@click.option(
    "--into",
    metavar="NAME",
    default="changes",
    help="The log of --capture; the SQL creates it unless it exists.",
)
def ddl(
    *,
    capture: tuple[str, ...],
    into: str,
    uninstall: bool,
    retention: bool,
    progress: bool,
    partition: str | None,
    partitions: int | None,
    **options: Any,
) -> None:
    """Print the SQL that an ordering needs; change nothing.

    With --partitions the SQL adds a constraint that refuses events of other partitions. The SQL of
    --uninstall keeps the tables of --retention and --progress, and the log of --capture.
    """
    if capture:
        click.echo(_capture_script(options["database"], capture, into, uninstall=uninstall))
        return
    engine, feed = open_table(partition=partition, partitions=partitions, **options)
    order = feed.ordering(engine.dialect.name)
    with engine.connect() as connection:
        statements = order.ddl(connection)
    parts = [statements.uninstall] if uninstall else [statements.install, statements.backfill]
    table: Any = order.source.table if order.source.events is None else order.source.events
    if partition and partitions:
        rule = _rule(table, partition, partitions)
        if not database_of(engine).adds_constraints:
            check = f"CHECK ({rule.sqltext})"
            click.echo(f"-- SQLite adds no constraint to a table: create it with {check}.")
        else:
            change = statement_text(engine.dialect, AddConstraint(rule))
            if uninstall:  # SQLAlchemy writes what either MySQL or MariaDB does not understand
                names = map(quoted(engine.dialect), filter(None, (table.schema, table.name)))
                drop = f"DROP CONSTRAINT {quoted(engine.dialect)(str(rule.name))}"
                change = f"ALTER TABLE {'.'.join(names)} {drop}"
            parts.append((change,))
    if retention and not uninstall:
        parts.append(
            MarkTable(Retention(schema=table.schema), order.source, ()).statements(engine.dialect)
        )
    if progress and not uninstall:
        parts.append((Progress(schema=table.schema).statement(engine.dialect),))
    if not any(parts):
        click.echo("-- This ordering needs nothing in the database.")
        return
    for part in filter(None, parts):
        click.echo(database_of(engine).script(part))


def _capture_script(url: str | None, tables: tuple[str, ...], into: str, *, uninstall: bool) -> str:
    """Return the SQL that captures the changes of tables, or no longer does."""
    if not url:
        raise ConfigurationError("Name the database of the tables by --database.")
    engine, log = open_database(url, must_exist=True), log_named(into)
    with engine.connect() as connection:
        found = Capture(log, *tables).ddl(connection, removing=uninstall).values()
        statements = [each for ddl in found for each in (*ddl.install, *ddl.release)]
        if uninstall:
            statements = [each for ddl in found for each in ddl.uninstall]
        elif not has_log(engine, log):
            made: list[Any] = [CreateTable(log.table), *map(CreateIndex, log.table.indexes)]
            statements[:0] = [statement_text(engine.dialect, one).strip() for one in made]
    return database_of(engine).script(tuple(statements))


def _rule(table: Table, partition: str, partitions: int) -> CheckConstraint:
    """Return the constraint that limits events to the partitions of the feed."""
    known = column(partition).between(literal_column("0"), literal_column(str(partitions - 1)))
    rule = CheckConstraint(known, f"{table.name}_{partition}")
    table.append_constraint(rule)
    return rule


@click.command(cls=FeedCommand)
@publish_options
@trim_options
@click.option(
    "--below",
    type=click.IntRange(1),
    metavar="POSITION",
    help="Select only events below this position.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and exit.")
@yes_option
@as_json
def trim(
    *,
    older_than: timedelta | None,
    below: int | None,
    silence: timedelta,
    rows: int,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **table: Any,
) -> None:
    """Delete the oldest events of a table, in small transactions.

    Give the options that you give to `zeroeventhub serve`. The command records for the feed what it
    deleted, in the table that `zeroeventhub ddl --retention` prints. If the command is stopped, run
    it again.
    """
    feed = open_feed(**table, must_have_mark=True)
    plan = _retry_until_ready(
        partial(feed.plan_trim, older_than=older_than, below=below, silence=silence)
    )
    if not as_json:
        click.echo(str(plan))
    trimmed = None
    if not dry_run and plan.first is not None:
        confirm("These events will be deleted.", yes=yes)
        with Meter("trimmed", plan.events if plan.exact else None) as meter:
            trimmed = feed.trim(plan, rows=rows, on_progress=lambda events, _: meter.show(events))
    done = [] if trimmed is None else [f"{trimmed:,} events are gone."]
    shown = {name: value for name, value in vars(plan).items() if not name.startswith("_")}
    report({**shown, "trimmed": trimmed}, done, as_json=as_json)


@click.command(cls=FeedCommand)
@publish_options
@compact_options
@yes_option
@answering
def compact(*, older_than: timedelta | None, yes: bool, **table: Any) -> Answer:
    """Delete events that have a later event of the same key.

    Give the options that you give to `zeroeventhub serve`, with --key. The command needs the table
    that `zeroeventhub ddl --retention` prints. Before the first run, serve the feed with
    --compacted; otherwise caches keep pages that this command changes. If the command is stopped,
    run it again.
    """
    feed = open_feed(**{**table, "compacted": True})
    _retry_until_ready(feed.head)
    confirm("Events that are followed by a later one of their key will be deleted.", yes=yes)
    with Meter("deleted") as meter:
        events = feed.compact(
            older_than=older_than, on_progress=lambda events, _: meter.show(events)
        )
    return {"deleted": events}, [f"{events:,} events are gone."]


def _expect_archive(table: dict[str, Any], use: str) -> str:
    """Return where the archive is that a command uses."""
    if not (place := table["archive"]):
        raise ConfigurationError(f"Give the archive to {use}: --archive with a folder or a URL.")
    return str(place)


def _exit_at_end_of_input() -> None:
    """End the process with the server that holds its input, also if that was killed."""
    sys.stdin.read()
    os._exit(0)  # sealing may stop at any step


@click.command(cls=FeedCommand)
@publish_options
@seal_options
@age_option("--repeat", help="Seal again at this interval, such as 10s, until it is stopped.")
@click.option("--until-input-ends", is_flag=True, hidden=True)
@answering
def seal(
    *,
    older_than: timedelta | None,
    segment_events: int,
    least: int,
    repeat: timedelta | None,
    until_input_ends: bool,
    **table: Any,
) -> Answer:
    """Copy settled events of a table into its archive.

    Give the options that you give to `zeroeventhub serve`, with --archive. The table does not
    change; `zeroeventhub trim --archive …` deletes the events that the archive has. If the command
    is stopped, run it again.
    """
    _expect_archive(table, "seal into")
    if repeat is not None and not repeat:
        raise ConfigurationError("--repeat has to be more than zero.")
    if until_input_ends:
        threading.Thread(target=_exit_at_end_of_input, daemon=True).start()
    feed = open_feed(**table)
    _retry_until_ready(feed.head)
    options: dict[str, Any] = {
        "older_than": older_than,
        "segment_events": segment_events,
        "least": least,
    }
    while repeat is not None:
        try:
            feed.seal(**options)
        except TransientError as error:
            _log.warning("The feed is not sealed just now: %s", error)
        time.sleep(repeat.total_seconds())
    with Meter("sealed") as meter:
        found = feed.seal(**options, on_progress=meter.show)
    line = (
        f"{found.events:,} events in {found.segments:,} new segments of {found.size:,} bytes; "
        f"sealed up to position {found.position}."
    )
    return found, [line]


@click.command(cls=FeedCommand)
@publish_options
@answering
def tidy(**table: Any) -> Answer:
    """Delete the files that are no longer a part of an archive.

    Give --archive, or FEED. The archive has replaced these files, or a killed command left them.
    They stay for a day, for processes that still read or write them.
    """
    place, archive = _expect_archive(table, "tidy"), archive_of(table)
    files = archive.tidy()
    line = f"{len(files):,} files are gone."
    if not archive.manifest.generation:  # a server tidies also before the first event is sealed
        line = f"There is no archive {place} yet, so no file is gone."
    return {"deleted": files}, [line]


@click.command(cls=FeedCommand)
@publish_options
@restore_options
@answering
def restore(*, newer_than: timedelta | None, skipped: int, workers: int, **table: Any) -> Answer:
    """Write the events of an archive back into its empty table.

    Give the options that you give to `zeroeventhub serve`, with --archive. As soon as the command
    has begun, you can serve the feed and write to the table. If the command is stopped, run it
    again.
    """
    _expect_archive(table, "restore")
    feed = open_feed(**table)
    with Meter("restored") as meter:
        found = feed.restore(
            newer_than=newer_than, skipped=skipped, workers=workers, on_progress=meter.show
        )
    line = (
        f"{found.events:,} events from position {found.after + 1} to {found.until} are in the "
        f"table, {found.written:,} of them written now. They are as they were sealed, and so are "
        f"the {found.cursors:,} cursors that the archive holds."
    )
    return found, [line]


@click.command(cls=FeedCommand)
@publish_options
@click.option(
    "--event-id", "ids", multiple=True, metavar="ID", help="Erase the event of this id; repeatable."
)
@click.option(
    "--event-key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Erase the events of this key; repeatable.",
)
@yes_option
@answering
def erase(*, ids: tuple[str, ...], keys: tuple[str, ...], yes: bool, **table: Any) -> Answer:
    """Erase events from an archive for good, by their ids or keys.

    Give the options that you give to `zeroeventhub serve`, with --archive and --erasable. Events
    that are still in the table stay there. If the command is stopped, run it again.
    """
    archive = _expect_archive(table, "erase from")
    if not ids and not keys:
        raise click.UsageError("Give the events to erase: --event-id or --event-key.")
    if "://" not in archive and not Path(archive).exists():
        raise ConfigurationError(f"There is no archive {archive}.")
    feed = open_feed(**table)
    confirm("These events will be erased for good.", yes=yes)
    events = feed.erase(ids=ids, keys=keys)
    return {"erased": events}, [f"{events:,} events were erased."]


@click.group()
def progress() -> None:
    """List or forget the consumers that register progress.

    `zeroeventhub trim` keeps the events that these consumers have not read. They register in the
    table that `zeroeventhub ddl --progress` prints.
    """


@progress.command("list", cls=FeedCommand)
@publish_options
@answering
def list_(**table: Any) -> Answer:
    """List each consumer's lag, and when it last registered.

    Give the options that you give to `zeroeventhub serve`.
    """
    feed = open_feed(**table)
    found = [(one, _lag(feed, one)) for one in feed.registered()]
    rows = [("consumer", "principal", "partition", "events", "behind", "heard")]
    rows += [
        (
            printable(one.consumer),
            printable(one.principal) or "-",
            str(one.partition),
            "lost some" if lag is None else f"{lag.events:,}{'' if lag.exact else '+'}",
            duration(None if lag is None else lag.seconds),
            f"{duration(one.heard)} ago",
        )
        for one, lag in found
    ]
    return [{**vars(one), "lag": lag} for one, lag in found], in_columns(rows)


@progress.command(cls=FeedCommand)
@publish_options
@consumer_option
@click.option(
    "--principal", help="Forget only what this principal registered; by default of all principals."
)
@yes_option
@answering
def forget(*, consumer: str, principal: str | None, yes: bool, **table: Any) -> Answer:
    """Forget a consumer, so that `trim` does not wait for it."""
    feed = open_feed(**table)
    confirm(f"Trimming will no longer wait for consumer {printable(consumer)}.", yes=yes)
    places = feed.forget_progress(consumer, principal=principal)
    return {"consumer": consumer, "places": places}, [f"Registered cursors forgotten: {places}"]


def _lag(feed: BoundFeed, one: Registered) -> Lag | None:
    """Count the events after a consumer's cursor; None if some of them are gone."""
    try:
        return feed.lag(one.partition, one.cursor)
    except Gone:
        return None
