"""`zeroeventhub ddl`: what an ordering adds to a database, to be read before it is run."""

from typing import Any

import click

from zeroeventhub.cli.options import open_ordering, table_options
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Marks

__all__ = ["ddl"]


@click.command()
@table_options
@click.option("--uninstall", is_flag=True, help="Print what takes it back.")
@click.option(
    "--retention", is_flag=True, help="Print what a feed needs to be trimmed, which stays."
)
@click.option("--progress", is_flag=True, help="Print what lets consumers register, which stays.")
def ddl(*, uninstall: bool, retention: bool, progress: bool, **table: Any) -> None:
    """Print the SQL that an ordering needs; nothing is changed."""
    engine, order = open_ordering(**table)
    with engine.connect() as connection:
        statements = order.ddl(connection)
    parts = [statements.uninstall] if uninstall else [statements.install, statements.backfill]
    if retention and not uninstall:
        parts.append(Marks.of(order.source).statements(engine.dialect))
    if progress and not uninstall:
        parts.append((Progress.beside(order.source).statement(engine.dialect),))
    if not any(parts):
        click.echo("-- This ordering needs nothing in the database.")
        return
    show = _for_mysql if engine.dialect.name in {"mariadb", "mysql"} else _in_transaction
    for part in filter(None, parts):
        click.echo(show(part))


def _in_transaction(statements: tuple[str, ...]) -> str:
    return "BEGIN;\n" + "".join(f"{statement};\n" for statement in statements) + "COMMIT;"


def _for_mysql(statements: tuple[str, ...]) -> str:
    """Set statements apart as the server's own client reads them: some have semicolons inside."""
    return "DELIMITER $$\n" + "".join(f"{line}$$\n" for line in statements) + "DELIMITER ;"
