"""`zeroeventhub ddl`: what an ordering adds to a database, to be read before it is run."""

import click

from zeroeventhub.cli.options import open_ordering, table_options

__all__ = ["ddl"]


@click.command()
@table_options
@click.option("--uninstall", is_flag=True, help="Print what takes it back.")
def ddl(
    *,
    database: str,
    table: str,
    position: str,
    ordering: str | None,
    append_only: bool,
    uninstall: bool,
) -> None:
    """Print the SQL that an ordering needs; nothing is changed."""
    engine, order = open_ordering(database, table, position, ordering, append_only=append_only)
    with engine.connect() as connection:
        statements = order.ddl(connection)
    engine.dispose()
    chosen = statements.uninstall if uninstall else statements.install
    if not chosen:
        click.echo("-- This ordering needs nothing in the database.")
        return
    click.echo("BEGIN;\n" + "".join(f"{statement};\n" for statement in chosen) + "COMMIT;")
