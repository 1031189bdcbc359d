"""`zeroeventhub horizon`: how far a table may be read, and who holds it back."""

import json
from dataclasses import asdict

import click

from zeroeventhub.cli.options import as_json, open_ordering, table_options
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering import Blocker

__all__ = ["horizon"]


@click.command()
@table_options
@as_json
def horizon(
    *,
    database: str,
    table: str,
    position: str,
    ordering: str | None,
    append_only: bool,
    as_json: bool,
) -> None:
    """Show how far a feed over a table may be read, and the open writers, the oldest first."""
    engine, order = open_ordering(database, table, position, ordering, append_only=append_only)
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
    if as_json:
        document = {
            "settled": settled,
            "highest": highest,
            "blockers": [asdict(blocker) for blocker in blockers],
        }
        click.echo(json.dumps(document, default=lambda age: age.total_seconds()))
        return
    known = "not known yet: it waits for the writers below" if settled is None else settled
    click.echo(f"horizon {known}" + ("" if highest is None else f", last number drawn {highest}"))
    for blocker in blockers:
        click.echo(_describe(blocker))


def _describe(blocker: Blocker) -> str:
    who = "prepared transaction" if blocker.pid is None else f"pid {blocker.pid}"
    line = f"{who} of {blocker.user}, open for {blocker.age.total_seconds():.1f} s"
    if blocker.query_age is not None:
        line += f", last statement {blocker.query_age.total_seconds():.1f} s ago"
    return line + (f" ({blocker.application})" if blocker.application else "")
