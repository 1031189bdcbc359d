"""`zeroeventhub ddl`: what an ordering adds to a database, to be read before it is run."""

import click

from zeroeventhub.cli.options import open_database, reflect, table_options
from zeroeventhub.publisher import TableFeed

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
    engine = open_database(database, must_exist=True)
    feed = TableFeed(
        reflect(engine, table), position=position, ordering=ordering, append_only=append_only
    )
    with engine.connect() as connection:
        statements = feed.ordering(engine.dialect.name).ddl(connection)
    engine.dispose()
    chosen = statements.uninstall if uninstall else statements.install
    if not chosen:
        click.echo("-- This ordering needs nothing in the database.")
        return
    click.echo("BEGIN;\n" + "".join(f"{statement};\n" for statement in chosen) + "COMMIT;")
