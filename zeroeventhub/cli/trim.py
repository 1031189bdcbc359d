"""`zeroeventhub trim`: take the oldest events out of a table, and tell its feed."""

import json
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from zeroeventhub.cli.options import age, as_json
from zeroeventhub.cli.progress import Meters
from zeroeventhub.cli.published import open_feed, publish_options
from zeroeventhub.cli.settling import patiently
from zeroeventhub.cli.store import agreed, go_ahead
from zeroeventhub.publisher.trimming import ROWS, TrimPlan

__all__ = ["trim"]


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
