"""A visit to a feed's database, and what is the same of it for sync and async feeds."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, event

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.sealer import Sealer
from zeroeventhub.publisher.guest_connection import Guest, PassingBy, visiting
from zeroeventhub.publisher.reader import Reader

__all__ = ["expect_archive", "head_of", "on_commit", "visit"]

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


def expect_archive(sealer: Sealer | None) -> Sealer:
    """Return what seals a feed.

    Raises:
        ConfigurationError: the feed has no archive.
    """
    if sealer is None:
        raise ConfigurationError(
            "This feed has no archive to be sealed into: TableFeed(…, archive=Archive(…))."
        )
    return sealer


def on_commit(engine: Engine, told: Callable[[], None]) -> None:
    """Tell of every commit through an engine, while it is under way."""
    event.listen(engine, "commit", lambda _connection: told())


def head_of(connection: Connection, reader: Reader, guest: Guest, seconds: float) -> int:
    """Return the horizon, in passing where that can be done."""
    if not reader.may_glance:
        return visit(connection, reader, guest, reader.head)
    with reader.checks.doubting(), visiting(connection, PassingBy()):
        return reader.glance(connection, seconds)


def visit(
    connection: Connection,
    reader: Reader,
    guest: Guest,
    question: Callable[Concatenate[Connection, _Asked], _Found],
    /,
    *arguments: _Asked.args,
    **options: _Asked.kwargs,
) -> _Found:
    """Ask the database something, as a guest of its host."""
    if reader.checks.are_due:
        # Before anything is written: what writes may not be installed.
        with visiting(connection, guest):
            reader.checks.look_if_due(connection)
    with (
        reader.checks.doubting(),
        visiting(connection, guest, reader.step(connection)),
        reader.checks.looking_twice(connection),
    ):
        return question(connection, *arguments, **options)
