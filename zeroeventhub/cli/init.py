"""Describe a table in the file of feeds: choose its columns by their usual names and types."""

import json
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from sqlalchemy import JSON, URL, DateTime, Engine, Integer, String, Table, Uuid, inspect, make_url

from zeroeventhub.cli.configuration import described, values
from zeroeventhub.cli.maintenance import check, ddl
from zeroeventhub.cli.options import CONFIG, FILE, written
from zeroeventhub.cli.table_options import (
    event_options,
    open_database,
    open_feed,
    publish_options,
    reflect,
    row_options,
)
from zeroeventhub.errors import ConfigurationError

_USUAL: dict[str, tuple[Any, str]] = {
    "data": ((JSON, String), r"data|payload|body|event|document|content"),
    "partition": (Integer, r"part|partition|shard|(part|partition|shard)_(id|no|number)"),
    "time": (
        DateTime,
        (
            r"time|timestamp|(changed|created|happened|inserted|logged|modified|occurred|placed"
            r"|published|recorded|updated)(_at)?"
        ),
    ),
    "type": (String, r"type|kind|event_?type"),
    "key": ((String, Integer, Uuid), r"key|(aggregate|entity|stream)_?id"),
    "id": ((String, Integer, Uuid), r"event_?id|uuid|guid"),
}
"""By option: the types and the names of the columns that are usually its own."""

_PASSWORDS = {"password", "passwd", "sslpassword"}
"""Options of drivers in a URL's query."""


@click.command()
@click.argument("database", metavar="DATABASE_URL")
@row_options
@event_options
@click.option(
    "--config", "file", type=FILE, default=CONFIG, help="The file to write, or to append to."
)
def init(*, database: str, table: str | None, file: Path, **options: Any) -> None:
    """Describe a table in zeroeventhub.toml.

    The command also prints the SQL and the index that the table lacks. It chooses the columns that
    no option names by their usual names and types; in a terminal it asks you. The name - stands for
    no column.
    """
    engine = open_database(database, must_exist=True)
    table = table or _table(engine)
    events = reflect(engine, table)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", events.name)
    if file.exists() and name in described("feeds", str(file)):
        raise ConfigurationError(f"{file} describes a feed {name} already.")
    texts = {key: written(one) for key, one in options.items() if isinstance(one, timedelta)}
    given = {key: value for key, value in (options | texts).items() if value}
    feed = {"table": table, **_columns(events, given), **given}
    feed = {key: value for key, value in feed.items() if value != "-"}
    open_feed(**values(publish_options, given={"database": database, **feed}))
    variable = f"{name.upper().replace('-', '_')}_DATABASE"
    # A file of the source code is no place for a password.
    has_password = not database.startswith("env:") and _has_password(make_url(database))
    feed = {"database": f"env:{variable}" if has_password else database, **feed}
    lines = [f"{key} = {_toml(value)}" for key, value in feed.items()]
    text = "\n".join([f"[feeds.{name}]", *lines, ""])
    with file.open("a", encoding="utf-8") as out:
        out.write(f"\n{text}" if out.tell() else text)
    click.echo(f"-- {file} has now:\n{text}")
    if has_password:
        click.echo(f"-- Set the environment variable {variable} to the URL of the database.\n")
    for command in (ddl, check):
        command.main([name, "--config", str(file), "--database", database], standalone_mode=False)


def _has_password(url: URL) -> bool:
    """Return whether a URL has a password, also as one of the driver's options."""
    return bool(url.password) or not url.query.keys().isdisjoint(_PASSWORDS)


def _table(engine: Engine) -> str:
    """Choose the table: the only one, or the one that the terminal says."""
    tables = inspect(engine).get_table_names()
    tables = [table for table in tables if not table.startswith("zeroeventhub_")]
    if len(tables) == 1:
        return tables[0]
    if not tables or not sys.stdin.isatty():
        known = f"it has {', '.join(tables)}" if tables else "it has none"
        raise ConfigurationError(f"Say which table of this database to publish: {known}.")
    chosen: str = click.prompt("Table", type=click.Choice(tables))
    return chosen


def _columns(events: Table, given: dict[str, Any]) -> dict[str, str]:
    """Choose the columns of options that are not given."""
    chosen: dict[str, str] = {}
    free = [column for column in events.c if not column.primary_key]
    for option, (types, names) in _USUAL.items():
        if option in given or (option == "data" and "columns" in given):
            continue
        fitting = [column for column in free if isinstance(column.type, types)]
        usual = [column.name for column in fitting if re.fullmatch(names, column.name.lower())]
        found = usual[0] if usual else ""
        if fitting and sys.stdin.isatty():
            shown = ", ".join(column.name for column in fitting)
            found = click.prompt(f"Column of {option} ({shown}; - for none)", default=found or "-")
        if found:
            chosen[option] = found
    return chosen


def _toml(value: Any) -> str:
    """Write a value of an option: text, numbers, flags and lists look in TOML as in JSON."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value, ensure_ascii=False)
