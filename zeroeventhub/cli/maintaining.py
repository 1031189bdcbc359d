"""Look after a feed's table and archive: check, horizon, ddl, trim, compact, seal and erase."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import click
from sqlalchemy import CheckConstraint, Dialect
from sqlalchemy.schema import AddConstraint, DropConstraint

from zeroeventhub.cli.cursors import agreed, go_ahead
from zeroeventhub.cli.options import (
    Meters,
    age,
    as_json,
    open_table,
    partitions_option,
    table_options,
)
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import MarkTable
from zeroeventhub.publisher.sealing import SEGMENT_EVENTS
from zeroeventhub.publisher.trimming import ROWS, TrimPlan

__all__ = [
    "check",
    "compact",
    "ddl",
    "erase",
    "horizon",
    "seal",
    "trim",
]

PATIENCE = 30.0
"""Seconds for which the horizon is waited for."""

_Answer = TypeVar("_Answer")


def patiently(ask: Callable[[], _Answer]) -> _Answer:
    """Ask something of a feed until its horizon is known.

    Raises:
        Unavailable: it is not, after some time.
    """
    ending = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > ending:
                raise
            time.sleep(0.1)


FAILED = 1
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@publish_options
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@as_json
def check(*, strict: bool, as_json: bool, **table: Any) -> None:
    """Check what a feed over a table relies on, without changing anything.

    Takes the options of `zeroeventhub serve`. Exit codes: 0 it can be published, 1 it cannot, or
    there are warnings and --strict, 2 there was nothing to check.
    """
    engine, feed = open_feed(**table)
    bound: Any = feed.bind(engine)
    try:
        findings: list[Finding] = bound.check()
    except Unavailable as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            _show(finding)
    failing = {"error", "warning"} if strict else {"error"}
    if any(finding.level in failing for finding in findings):
        sys.exit(FAILED)


def _show(finding: Finding) -> None:
    mark = click.style(f"{finding.level:7}", fg=_COLOURS[finding.level])
    click.echo(f"{mark}  {finding.subject:10}  {finding.sentence}")
    if finding.statement is not None:
        click.echo(f"{'':21}{finding.statement}")


@click.command()
@table_options
@partitions_option
@as_json
def horizon(*, as_json: bool, **table: Any) -> None:
    """Show how far a feed over a table may be read, and the open writers, the oldest first.

    It is held back for as long as the oldest number that is drawn and not settled has been drawn:
    one look sees no more of that than the age of the oldest writer, which is at least as long.
    """
    engine, feed = open_table(**table)
    order = feed.ordering(engine.dialect.name)
    settled = highest = None
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        order.check(connection)
        if (step := order.step(connection)) is not None:
            connection.exec_driver_sql(step)
        try:
            found = order.horizon(connection)
            settled, highest = found.settled, found.drawn
        except Unavailable:
            pass  # no settled number is known yet; the writers below are why
        blockers = order.blockers(connection)
    unpublished = feed.bind(engine).horizon().unpublished
    held_back = settled is None or settled < (highest or 0)
    age = max((blocker.age.total_seconds() for blocker in blockers), default=0) if held_back else 0
    if as_json:
        document = {
            "settled": settled,
            "highest": highest,
            "age": age,
            "blockers": [asdict(blocker) for blocker in blockers],
            "unpublished": unpublished,
        }
        click.echo(json.dumps(document, default=lambda age: age.total_seconds()))
        return
    known = "not known yet: it waits for the writers below" if settled is None else settled
    line = f"horizon {known}" + ("" if highest is None else f", last number drawn {highest}")
    click.echo(line + (f", held back for at most {age:.1f} s" if age else ""))
    for blocker in blockers:
        click.echo(str(blocker))
    if unpublished is not None:
        click.echo(unpublished)


@click.command()
@table_options
@partitions_option
@click.option("--uninstall", is_flag=True, help="Print what takes it back.")
@click.option(
    "--retention", is_flag=True, help="Print what a feed needs to be trimmed, which stays."
)
@click.option("--progress", is_flag=True, help="Print what lets consumers register, which stays.")
def ddl(
    *,
    uninstall: bool,
    retention: bool,
    progress: bool,
    partition: str | None,
    partitions: int | None,
    **table: Any,
) -> None:
    """Print the SQL that an ordering needs; nothing is changed.

    With --partitions it adds a constraint, so that the database refuses events of other partitions.
    """
    engine, feed = open_table(partition=partition, partitions=partitions, **table)
    order = feed.ordering(engine.dialect.name)
    with engine.connect() as connection:
        statements = order.ddl(connection)
    parts = [statements.uninstall] if uninstall else [statements.install, statements.backfill]
    if partition and partitions:
        rule = _rule(order.source, engine.dialect, partition, partitions)
        if engine.dialect.name == "sqlite":
            check = f"CHECK ({rule.sqltext})"
            click.echo(f"-- SQLite adds no constraint to a table: create it with {check}.")
        else:
            change = DropConstraint(rule) if uninstall else AddConstraint(rule)
            parts.append((str(change.compile(dialect=engine.dialect)),))
    if retention and not uninstall:
        parts.append(MarkTable.of(order.source).statements(engine.dialect))
    if progress and not uninstall:
        parts.append((Progress.beside(order.source).statement(engine.dialect),))
    if not any(parts):
        click.echo("-- This ordering needs nothing in the database.")
        return
    show = _for_mysql if engine.dialect.name in {"mariadb", "mysql"} else _in_transaction
    for part in filter(None, parts):
        click.echo(show(part))


def _rule(source: Source, dialect: Dialect, partition: str, partitions: int) -> CheckConstraint:
    """Return the constraint that events are in the partitions of their feed."""
    table: Any = source.table if source.events is None else source.events
    column = dialect.identifier_preparer.quote(partition)
    rule = CheckConstraint(f"{column} BETWEEN 0 AND {partitions - 1}", f"{table.name}_{partition}")
    table.append_constraint(rule)
    return rule


def _in_transaction(statements: tuple[str, ...]) -> str:
    return "BEGIN;\n" + "".join(f"{statement};\n" for statement in statements) + "COMMIT;"


def _for_mysql(statements: tuple[str, ...]) -> str:
    """Set statements apart as the server's own client reads them: some have semicolons inside."""
    return "DELIMITER $$\n" + "".join(f"{line}$$\n" for line in statements) + "DELIMITER ;"


@click.command()
@publish_options
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Events older than this, such as 30d or 12h.",
)
@click.option(
    "--below", type=click.IntRange(1), metavar="POSITION", help="Events below this position."
)
@click.option(
    "--silence",
    callback=age,
    default="7d",
    show_default=True,
    metavar="AGE",
    help="How long a consumer that registers may not be heard of, and is waited for.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 100_000),
    default=ROWS,
    show_default=True,
    help="How many events a transaction deletes, at most.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and end.")
@agreed
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
    """Delete the oldest events of a table, in small transactions, and tell the feed over it.

    Takes the options of `zeroeventhub serve`: give those that the feed has. It has to know its
    mark, by what `zeroeventhub ddl --retention` prints. Stopped anywhere, it goes on next time.
    """
    engine, feed = open_feed(**table, must_have_mark=True)
    bound = feed.bind(engine)
    plan = patiently(partial(bound.plan_trim, older_than=older_than, below=below, silence=silence))
    if not as_json:
        click.echo(str(plan))
    trimmed = None
    if not dry_run and plan.first is not None:
        go_ahead("These events will be deleted.", yes=yes)
        trimmed = _carried_out(bound, plan, rows)
    if as_json:
        click.echo(json.dumps({**asdict(plan), "trimmed": trimmed}, default=datetime.isoformat))
    elif trimmed is not None:
        click.echo(f"{trimmed:,} events are gone.")


def _carried_out(bound: Any, plan: TrimPlan, rows: int) -> int:
    with Meters({"trimmed": plan.events if plan.exact else None}) as meters:
        return int(
            bound.trim(plan, rows=rows, told=lambda events, _: meters.show("trimmed", events))
        )


@click.command()
@publish_options
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only events older than this, such as 30d or 12h.",
)
@agreed
@as_json
def compact(*, older_than: timedelta | None, yes: bool, as_json: bool, **table: Any) -> None:
    """Delete the events of a table behind which there is a later one of the same key.

    Takes the options of `zeroeventhub serve`: give those that the feed has, and --key. It has to
    know its mark, by what `zeroeventhub ddl --retention` prints. Whoever serves the table has to
    say --compacted from before the first time on, or caches keep pages for ever that change here.
    Stopped anywhere, it begins anew.
    """
    engine, feed = open_feed(**{**table, "compacted": True})
    bound = feed.bind(engine)
    patiently(bound.head)
    go_ahead("Events behind which there is a later one of their key will go.", yes=yes)
    with Meters({"deleted": None}) as meters:
        events = bound.compact(
            older_than=older_than, told=lambda events, _: meters.show("deleted", events)
        )
    click.echo(json.dumps({"deleted": events}) if as_json else f"{events:,} events are gone.")


@click.command()
@publish_options
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only events older than this, such as 30d or 12h.",
)
@click.option(
    "--segment-events",
    type=click.IntRange(1),
    default=SEGMENT_EVENTS,
    show_default=True,
    help="How many events a segment has, at most.",
)
@click.option(
    "--least",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many events are worth a segment.",
)
@as_json
def seal(
    *,
    older_than: timedelta | None,
    segment_events: int,
    least: int,
    as_json: bool,
    **table: Any,
) -> None:
    """Write what is settled in a table, and not in its archive yet, into the archive.

    Takes the options of `zeroeventhub serve`: give those that the feed has, and --archive. The
    table stays as it is; `zeroeventhub trim --archive …` takes out of it what is in the archive.
    Stopped anywhere, it goes on next time.
    """
    if not table["archive"]:
        raise ConfigurationError("Say where to seal it: --archive with a folder, or a URL.")
    engine, feed = open_feed(**table)
    bound = feed.bind(engine)
    patiently(bound.head)
    with Meters({"sealed": None}) as meters:
        found = bound.seal(
            older_than=older_than,
            segment_events=segment_events,
            least=least,
            told=lambda events: meters.show("sealed", events),
        )
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(
        f"{found.events:,} events in {found.segments:,} new segments of {found.size:,} bytes; "
        f"sealed up to position {found.position}."
    )


@click.command()
@publish_options
@click.option("--event-id", "ids", multiple=True, metavar="ID", help="The id of an event; several.")
@click.option("--event-key", "keys", multiple=True, metavar="KEY", help="A key; several.")
@agreed
@as_json
def erase(
    *, ids: tuple[str, ...], keys: tuple[str, ...], yes: bool, as_json: bool, **table: Any
) -> None:
    """Erase events from the archive of a table's feed, by their ids or keys, for good.

    Takes the options of `zeroeventhub serve`: give those that the feed has, --archive and
    --erasable. What is still in the table stays there. Stopped anywhere, do it again.
    """
    if not table["archive"]:
        raise ConfigurationError("Say from where: --archive with a folder, or a URL.")
    if not ids and not keys:
        raise ConfigurationError("Say which events: --event-id or --event-key, once or more.")
    engine, feed = open_feed(**table)
    bound = feed.bind(engine)
    go_ahead("These events will be erased for good.", yes=yes)
    events = bound.erase(ids=ids, keys=keys)
    click.echo(json.dumps({"erased": events}) if as_json else f"{events:,} events were erased.")
