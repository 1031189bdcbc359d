"""`zeroeventhub horizon`: how far a table may be read, and who holds it back."""

import json
from dataclasses import asdict
from typing import Any

import click

from zeroeventhub.cli.options import as_json, open_ordering, table_options
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering import Blocker

__all__ = ["horizon"]


@click.command()
@table_options
@as_json
def horizon(*, as_json: bool, **table: Any) -> None:
    """Show how far a feed over a table may be read, and the open writers, the oldest first.

    The horizon is as old as the oldest writer that holds it back.
    """
    engine, order = open_ordering(**table)
    settled = highest = None
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        order.check(connection)
        try:
            found = order.horizon(connection)
            settled, highest = found.settled, found.highest
        except Unavailable:
            pass  # no settled number is known yet; the writers below are why
        blockers = order.blockers(connection)
    engine.dispose()
    held_back = settled is None or settled < (highest or 0)
    age = max((blocker.age.total_seconds() for blocker in blockers), default=0) if held_back else 0
    if as_json:
        document = {
            "settled": settled,
            "highest": highest,
            "age": age,
            "blockers": [asdict(blocker) for blocker in blockers],
        }
        click.echo(json.dumps(document, default=lambda age: age.total_seconds()))
        return
    known = "not known yet: it waits for the writers below" if settled is None else settled
    line = f"horizon {known}" + ("" if highest is None else f", last number drawn {highest}")
    click.echo(line + (f", held back for {age:.1f} s" if age else ""))
    for blocker in blockers:
        click.echo(_describe(blocker))


def _describe(blocker: Blocker) -> str:
    who = "prepared transaction" if blocker.pid is None else f"pid {blocker.pid}"
    line = f"{who} of {blocker.user}, open for {blocker.age.total_seconds():.1f} s"
    if blocker.query_age is not None:
        line += f", last statement {blocker.query_age.total_seconds():.1f} s ago"
    return line + (f" ({blocker.application})" if blocker.application else "")
