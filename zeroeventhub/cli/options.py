"""Options that several commands have."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click
import httpx

from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAST, TypeFilter

__all__ = [
    "NAMED_CURSORS",
    "PATIENCE",
    "age",
    "agreed",
    "as_json",
    "consumer_option",
    "consumer_options",
    "feed_options",
    "header_options",
    "moment",
    "older_than_option",
    "option_group",
    "store_option",
    "type_options",
]

PATIENCE = httpx.Timeout(30.0, connect=10.0)

NAMED_CURSORS = {"first": FIRST, "last": LAST}
"""Cursors that an operator writes by name."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>[smhdw])", re.ASCII)

_Command = Callable[..., Any]


def age(_context: click.Context, _option: Any, value: str | None) -> timedelta | None:
    """Read an age such as 30d, as a callback of an option."""
    if value is None:
        return None
    match = _AGE.fullmatch(value)
    if match is None:
        raise click.BadParameter("an age is written as 45s, 90m, 12h, 30d or 8w.")
    return timedelta(**{_UNITS[match["unit"]]: int(match["count"])})


def moment(_context: click.Context, option: Any, value: str | None) -> datetime | None:
    """Read a moment, as a callback of an option."""
    try:
        return None if value is None else datetime.fromisoformat(value)
    except ValueError:
        raise ConfigurationError(
            f"{option.opts[0]} takes a moment with its time zone, such as 2026-01-31T12:00:00Z."
        ) from None


def option_group(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options to a command, in the order of its help."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")

agreed = click.option("--yes", is_flag=True, help="Do not ask before anything is changed.")

store_option = click.option(
    "--store", "database", required=True, metavar="DATABASE_URL", help="Where the cursors are."
)

consumer_option = click.option("--consumer", required=True, help="The consumer's name.")

consumer_options = option_group(store_option, consumer_option)

older_than_option = click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only events older than this, such as 30d or 12h.",
)


class _HeaderOption(click.Option):
    """Read headers from an environment variable: one a line, as values have spaces."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        return None if text is None else tuple(filter(None, map(str.strip, text.splitlines())))


def header_options(command: _Command) -> _Command:
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


def feed_options(command: _Command) -> _Command:
    """Add the options that every command which reads a feed has; it gets a `client` of the feed."""

    @header_options
    @click.option(
        "--partitions",
        type=click.IntRange(1),
        help="How many partitions the feed has, if it only speaks ZeroEventHub v1.",
    )
    @click.argument("url")
    @wraps(command)
    def with_client(
        *, url: str, headers: list[tuple[str, str]], partitions: int | None, **options: Any
    ) -> Any:
        with httpx.Client(headers=headers, timeout=PATIENCE) as http:
            return command(client=Client(url, http, partitions=partitions), **options)

    return with_client


def type_options(command: _Command) -> _Command:
    """Add the options that choose events by their type; the command gets `types`, or None."""

    @click.option(
        "--event-type",
        "only",
        multiple=True,
        metavar="NAME",
        help="Read only events of this type; can be given several times.",
    )
    @click.option(
        "--skip-event-type",
        "skipped",
        multiple=True,
        metavar="NAME",
        help="Pass over events of this type; can be given several times.",
    )
    @wraps(command)
    def with_types(*, only: tuple[str, ...], skipped: tuple[str, ...], **options: Any) -> Any:
        if only and skipped:
            raise ConfigurationError(
                "Say which types of events to read or which to skip: --event-type or "
                "--skip-event-type, not both."
            )
        names = frozenset(only or skipped)
        return command(types=TypeFilter(names, skip=bool(skipped)) if names else None, **options)

    return with_types
