"""`zeroeventhub ddl`: what an ordering adds to a database, to be read before it is run."""

from typing import Any

import click
from sqlalchemy import CheckConstraint, Dialect
from sqlalchemy.schema import AddConstraint, DropConstraint

from zeroeventhub.cli.options import open_table, partitions_option, table_options
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Marks

__all__ = ["ddl"]


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
        parts.append(Marks.of(order.source).statements(engine.dialect))
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
