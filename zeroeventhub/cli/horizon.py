"""`zeroeventhub horizon`: how far a table may be read, and who holds it back."""

import json
from dataclasses import asdict
from typing import Any

import click

from zeroeventhub.cli.options import as_json, open_table, partitions_option, table_options
from zeroeventhub.errors import Unavailable

__all__ = ["horizon"]


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
