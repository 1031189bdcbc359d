"""What the commands share that look into a consumer's own database."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Connection, Engine

from zeroeventhub.cli.options import open_database
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError, printable

__all__ = [
    "agreed",
    "consumer_option",
    "document",
    "expect_consumer",
    "go_ahead",
    "open_store",
    "store_option",
]

store_option = click.option(
    "--store", "database", required=True, metavar="DATABASE_URL", help="Where the cursors are."
)

consumer_option = click.option("--consumer", required=True, help="The consumer's name.")

agreed = click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")


@contextmanager
def open_store(url: str) -> Iterator[tuple[Engine, CursorStore]]:
    """Open a store, and its database, for as long as a command runs.

    Raises:
        ConfigurationError: there is none at this address, or one of another version.
    """
    engine = open_database(url, must_exist=True)
    store = CursorStore(engine)
    with engine.connect() as connection:
        store.check_tables(connection)
    yield engine, store


def expect_consumer(connection: Connection, store: CursorStore, consumer: str) -> None:
    """Refuse the name of a consumer that the store does not know.

    Raises:
        ConfigurationError: it has no cursor and no dead letter of this name; it says whose it has.
    """
    names = sorted({place.consumer for place in store.standings(connection)})
    if consumer not in names and not store.dead_letters.count(connection, consumer):
        others = f"it has {', '.join(map(printable, names))}" if names else "it has none at all"
        raise ConfigurationError(f"This store has no consumer {printable(consumer)!r}; {others}.")


def go_ahead(question: str, *, yes: bool) -> None:
    """End the command unless its user agrees; what is asked is not part of the output."""
    if not yes:
        click.confirm(f"{question} Go on?", abort=True, err=True)


def document(value: Any) -> str:
    """Write a dataclass, or a list of them, as JSON."""
    found = [asdict(one) for one in value] if isinstance(value, list) else asdict(value)
    return json.dumps(found, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(type(value).__name__)
