"""Options that several commands have."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
import httpx

from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.consumer.config import Failures
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.extensions import EVENT_TYPES
from zeroeventhub.protocol import FIRST, HIGHEST_PARTITION, LAST, TypeFilter
from zeroeventhub.times import FORMS, UNITS
from zeroeventhub.times import moment as read_moment

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
"""Seconds for one operation on a connection."""

NAMED_CURSORS = {"first": FIRST, "last": LAST}
"""Cursors that an operator writes by name."""

_Command = Callable[..., Any]

AGE = re.compile(r"^([0-9]{1,6})([smhdw])$", re.ASCII)
"""How an age or an interval is written."""


def age(text: str) -> timedelta:
    """Read an age, as the type of an option."""
    match = AGE.fullmatch(text)
    if match is None:
        raise click.BadParameter("an age is written as 45s, 90m, 12h, 30d or 8w.")
    found = timedelta(**{UNITS[match[2]]: int(match[1])})
    try:
        datetime.now(UTC) - found
    except OverflowError:
        raise click.BadParameter(f"{text} ago is before the first year.") from None
    return found


def written(age: timedelta) -> str:
    """Return the shortest text that is read as an age."""
    units = {unit: timedelta(**{name: 1}) for unit, name in reversed(UNITS.items())}
    return next(f"{age // one}{unit}" for unit, one in units.items() if not age % one)


age_option = partial(click.option, type=age, metavar="AGE")
"""Makes an option that takes an age such as 30d."""


def moment(text: str) -> datetime:
    """Read a moment, as the type of an option; without a time zone it is of this machine's."""
    try:
        return read_moment(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"a moment is written as {FORMS}.") from None


def option_group(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options to a command, in the order of its help."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

PARTITION = click.IntRange(0, HIGHEST_PARTITION)

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Change things without asking first.")
consumer_option = click.option("--consumer", required=True, help="The consumer's name.")
follow_option = click.option("--follow", is_flag=True, help="Wait at the head for more events.")
partition_option = click.option("--partition", type=PARTITION, help="The only partition to use.")

CONFIG = "zeroeventhub.toml"
"""The file that describes feeds and consumers."""

config_option = click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    expose_value=False,
    help=f"The file that describes feeds; by default {CONFIG} in the working directory.",
)

port_option = click.option(
    "--port",
    default=8080,
    type=click.IntRange(0, 65535),
    help="The port to listen on; 0 takes a free one.",
)
host_option = click.option("--host", default="127.0.0.1", help="The address to listen on.")
help_option = click.option(
    "--help-url",
    metavar="URL",
    default="",
    show_default=False,
    help="The address of a page of errors, which problem documents name.",
)
server_options = option_group(
    help_option,
    click.option("--metrics", metavar="PATH", help="Serve metrics for Prometheus at this path."),
    host_option,
    port_option,
    click.option(
        "--token-file",
        type=EXISTING_FILE,
        help="Let in only readers with a token of this file, which has lines of `token new`.",
    ),
    click.option(
        "--public",
        is_flag=True,
        help="Listen to other machines, and answer to any name, though the feeds need no token.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1),
        default=1,
        help="The number of processes that answer requests.",
    ),
)
ATTEMPTS = 5
"""How often a request is sent before an error is final; with --follow there is no limit."""


def run_options(command: _Command) -> _Command:
    """Add the options of a command that runs a consumer, which gets them as `running`."""

    @follow_option
    @click.option("--page", type=click.IntRange(1), help="The number of events to request at once.")
    @click.option(
        "--tries",
        type=click.IntRange(1),
        default=3,
        help="How often to try an event that is refused.",
    )
    @click.option(
        "--set-aside",
        is_flag=True,
        help="Store events that are refused as dead letters; without it their partition halts.",
    )
    @click.option(
        "--lease",
        type=click.FloatRange(0, min_open=True),
        default=10.0,
        help="Seconds after which other processes take over the partitions of a killed process.",
    )
    @click.option(
        "--register-progress",
        is_flag=True,
        help="Report the cursors to the publisher, so that it does not trim unread events.",
    )
    @wraps(command)
    def with_running(
        *,
        follow: bool,
        page: int | None,
        tries: int,
        set_aside: bool,
        lease: float,
        register_progress: bool,
        **options: Any,
    ) -> Any:
        running = {
            "follow": follow,
            "limit": page,
            "attempts": None if follow else ATTEMPTS,
            "lease": lease,
            "failures": Failures(tries, "set-aside" if set_aside else "halt"),
            "register_progress": register_progress,
        }
        return command(running=running, **options)

    return with_running


landing_options = option_group(
    click.option(
        "--into",
        required=True,
        metavar="DATABASE_URL",
        help="The database to write the events to; env:NAME takes it from the environment.",
    ),
    click.option("--table", required=True, help="The table; it is created if it does not exist."),
    click.option(
        "--consumer",
        required=True,
        help="The consumer's name, the key of its cursors: use one name per feed and table.",
    ),
)
"""The options of where events are written to."""


class _Header(click.ParamType):  # type: ignore[type-arg] # click 8.2 has no generic type
    """A header of requests, as a pair; an environment variable holds one a line."""

    name = "header"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [line for line in map(str.strip, rv.splitlines()) if line]

    def convert(self, value: Any, *_: object) -> tuple[str, str]:
        name, colon, content = value.partition(":")
        if not colon or not (value.isascii() and value.isprintable()):
            raise ConfigurationError("A header is written as 'Name: value', in printable ASCII.")
        return name.strip(), content.strip()


def _token(file: Path) -> str:
    try:
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if not token.isprintable() or not token or " " in token:
        raise ConfigurationError(f"{file} does not hold a token: one word of ASCII.")
    return token


def http_options(command: _Command) -> _Command:
    """Add the options of requests; the command gets `headers` and `partitions`."""

    @click.option(
        "-H",
        "--header",
        "headers",
        type=_Header(),
        multiple=True,
        metavar="'NAME: VALUE'",
        envvar="ZEROEVENTHUB_HEADER",
        show_envvar=True,
        help="Send a header, such as Authorization; the variable holds one header a line.",
    )
    @click.option(
        "--token-file",
        type=EXISTING_FILE,
        envvar="ZEROEVENTHUB_TOKEN_FILE",
        show_envvar=True,
        help="Send the token in this file as Authorization: Bearer.",
    )
    @click.option(
        "--partitions",
        type=click.IntRange(1),
        help="The number of partitions of a feed that only speaks ZeroEventHub v1.",
    )
    @wraps(command)
    def with_http(
        *, headers: tuple[tuple[str, str], ...], token_file: Path | None, **options: Any
    ) -> Any:
        sent = [*headers]
        if token_file is not None:
            sent.append(("Authorization", f"Bearer {_token(token_file)}"))
        return command(headers=sent, **options)

    return with_http


def feed_options(command: _Command, **of_client: Any) -> _Command:
    """Add the argument URL and the options of requests; the command gets `client`."""
    return http_options(click.argument("url")(_with_client(command, **of_client)))


def feed_option(purpose: str) -> Callable[[_Command], _Command]:
    """Return what adds --feed and the options of requests; the command gets `client`, or None."""
    option = click.option("--feed", "url", metavar="URL", help=f"The feed: {purpose}.")
    return lambda command: option(http_options(_with_client(command)))


def _with_client(command: _Command, **of_client: Any) -> _Command:
    """Give a command the client of the feed at `url`; None without a URL."""

    @wraps(command)
    def with_client(
        *, url: str | None, headers: list[tuple[str, str]], partitions: int | None, **options: Any
    ) -> Any:
        if url is None:
            return command(client=None, **options)
        with open_http(headers, timeout=TIMEOUT) as http:
            client = Client(url, http, partitions=partitions, **of_client)
            return command(client=client, **options)

    return with_client


def type_options(command: _Command) -> _Command:
    """Add the options that select events of a client's feed; the command gets `types`, or None."""

    @click.option(
        "--event-type",
        "event_types",
        multiple=True,
        metavar="NAME",
        help="Read only events of this type; repeatable.",
    )
    @click.option(
        "--skip-event-type",
        "skip_event_types",
        multiple=True,
        metavar="NAME",
        help="Skip events of this type; repeatable.",
    )
    @wraps(command)
    def with_types(
        *,
        client: Client,
        event_types: tuple[str, ...],
        skip_event_types: tuple[str, ...],
        **options: Any,
    ) -> Any:
        if event_types and skip_event_types:
            raise ConfigurationError(
                "Say which types of events to read or which to skip: --event-type or "
                "--skip-event-type, not both."
            )
        names = frozenset(event_types or skip_event_types)
        types = TypeFilter(names, skip=bool(skip_event_types)) if names else None
        if names and EVENT_TYPES not in client.discover().extensions:  # it would ignore them
            raise ConfigurationError(
                "This feed does not have the extension event-types: leave out the options of types."
            )
        return command(client=client, types=types, **options)

    return with_types
