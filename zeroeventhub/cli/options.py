"""Options that several commands have, and progress bars."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
import httpx
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from sqlalchemy import Engine, MetaData, Table, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, NoSuchTableError

from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.ordering import ORDERINGS

__all__ = [
    "FeedAddress",
    "Meters",
    "age",
    "as_json",
    "feed_options",
    "header_options",
    "open_client",
    "open_database",
    "open_table",
    "partitions_option",
    "reflect",
    "table_options",
]

_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mariadb+pymysql",
    "mysql": "mysql+pymysql",
}

PATIENCE = httpx.Timeout(30.0, connect=10.0)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[smhdw])", re.ASCII)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")


def age(_context: click.Context, _option: Any, value: str | None) -> timedelta | None:
    """Read an age such as 30d, as a callback of an option."""
    if value is None:
        return None
    match = _AGE.fullmatch(value)
    if match is None:
        raise click.BadParameter("an age is written as 45s, 90m, 12h, 30d or 8w.")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})


@dataclass(frozen=True)
class FeedAddress:
    """Say where a feed is and what a command sends with each request.

    Attributes:
        url: the feed's address.
        headers: pairs of name and value.
        partitions: how many partitions the feed has, if it only speaks ZeroEventHub v1.
    """

    url: str
    headers: list[tuple[str, str]]
    partitions: int | None


class _HeaderOption(click.Option):
    """Read headers from an environment variable: one a line, as values have spaces."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        return None if text is None else tuple(filter(None, map(str.strip, text.splitlines())))


def header_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which headers to send; the command gets `headers`, as pairs."""

    @click.option(
        "-H",
        "--header",
        "headers",
        cls=_HeaderOption,
        multiple=True,
        metavar="'NAME: VALUE'",
        envvar="ZEROEVENTHUB_HEADER",
        show_envvar=True,
        help="Send a header, such as Authorization. In the variable: one header a line.",
    )
    @click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="ZEROEVENTHUB_TOKEN_FILE",
        show_envvar=True,
        help="Send the token in this file, as Authorization: Bearer.",
    )
    @wraps(command)
    def with_headers(*, headers: tuple[str, ...], token_file: Path | None, **options: Any) -> Any:
        pairs = [_pair(header) for header in headers]
        if token_file is not None:
            pairs.append(("Authorization", f"Bearer {_token(token_file)}"))
        return command(headers=pairs, **options)

    return with_headers


def _pair(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    if not colon:
        raise ConfigurationError("A header is written as 'Name: value'.")
    return name.strip(), value.strip()


def _token(file: Path) -> str:
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if not token.isprintable() or not token or " " in token:
        raise ConfigurationError(f"{file} does not hold a token: one word of ASCII.")
    return token


def feed_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command which reads a feed has; it gets them as `feed`."""

    @header_options
    @click.option(
        "--partitions",
        type=click.IntRange(1),
        help="How many partitions the feed has, if it only speaks ZeroEventHub v1.",
    )
    @click.argument("url")
    @wraps(command)
    def with_feed(
        *, url: str, headers: list[tuple[str, str]], partitions: int | None, **options: Any
    ) -> Any:
        return command(feed=FeedAddress(url, headers, partitions), **options)

    return with_feed


partitions_option = click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="How many partitions; by default as many as the table has, also later.",
)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a table of events and its order."""
    for option in (
        click.option("--append-only", is_flag=True, help="No row is ever deleted (SQLite)."),
        click.option("--ordering", type=click.Choice(ORDERINGS), help="How events are ordered."),
        click.option("--time", metavar="COL", help="The column of the event's time."),
        click.option(
            "--partition", metavar="COL", help="The column with an event's partition, from 0."
        ),
        click.option(
            "--position",
            metavar="COL",
            help="The column that orders events; by default the primary key.",
        ),
        click.option(
            "--table", required=True, metavar="NAME", help="The table; schema.table if needed."
        ),
        click.option("--database", required=True, metavar="URL", help="Where the table is."),
    ):
        command = option(command)
    return command


def reflect(engine: Engine, name: str) -> Table:
    """Read a table's columns from its database."""
    schema, _, table = name.rpartition(".")
    try:
        return Table(table, MetaData(), schema=schema or None, autoload_with=engine)
    except NoSuchTableError:
        raise ConfigurationError(f"There is no table {name!r} in this database.") from None


def open_table(database: str, table: str, **options: Any) -> tuple[Engine, TableFeed]:
    """Open a database and make the feed of one of its tables, for what its ordering says.

    Args:
        database: its URL.
        table: the table's name.
        options: the other options that name a table of events and its order.
    """
    engine = open_database(database, must_exist=True)
    return engine, TableFeed(reflect(engine, table), **options)


@contextmanager
def open_client(feed: FeedAddress) -> Iterator[Client]:
    """Open a client for as long as a command runs."""
    with httpx.Client(headers=feed.headers, timeout=PATIENCE) as http:
        yield Client(feed.url, http, partitions=feed.partitions)


def open_database(url: str, *, must_exist: bool = False) -> Engine:
    """Make the engine of a database, with the drivers that come with the command line.

    Its connections are closed when the command ends, however it ends.

    Args:
        url: as SQLAlchemy has it.
        must_exist: refuse an SQLite file that is not there, which would be created otherwise.
    """
    try:
        parsed = make_url(url)
        driver = _DRIVERS.get(parsed.drivername, parsed.drivername)
        parsed = parsed.set(drivername=driver)
        engine = create_engine(parsed)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "This is not a database URL, such as sqlite:///events.db "
            "or postgresql://user:password@host/database."
        ) from None
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"There is no driver for this database: {error}") from None
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{engine.url.drivername} is a driver for asynchronous code: name the database by "
            f"{engine.url.get_backend_name()}:// alone."
        )
    file = engine.url.database
    if must_exist and engine.dialect.name == "sqlite" and file and not Path(file).exists():
        raise ConfigurationError(f"There is no database file {file}.")
    if (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(engine.dispose)
    return engine


PLAIN_INTERVAL = 5.0


class Meters:
    """Show counters that grow, each under its name.

    Args:
        totals: where each counter ends; None where nobody knows.
    """

    def __init__(self, totals: dict[str, int | None]) -> None:
        self._totals = totals
        self._counts = dict.fromkeys(totals, 0)
        self._started = time.monotonic()
        self._last_line = self._started
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Start showing."""
        if sys.stderr.isatty():
            known = all(total is not None for total in self._totals.values())
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                *((BarColumn(), MofNCompleteColumn()) if known else ()),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
            self._tasks = {
                name: self._bars.add_task(name, total=total, rate="")
                for name, total in self._totals.items()
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, count: int) -> None:
        """Move a counter."""
        self._counts[name] = count
        elapsed = time.monotonic() - self._started
        if self._bars is not None:
            rate = f"{count:,} events, {count / max(elapsed, 0.001):,.0f}/s"
            self._bars.update(self._tasks[name], completed=count, rate=rate)
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL:
            self._last_line = time.monotonic()
            self.say(", ".join(f"{name} {count:,}" for name, count in self._counts.items()))

    def say(self, line: str) -> None:
        """Write a line beside the counters."""
        if self._bars is not None:
            self._bars.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
