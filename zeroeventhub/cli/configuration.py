"""The file that describes feeds and consumers: its keys are the names of the commands' options."""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal

import click
import msgspec
from click.core import ParameterSource
from msgspec import UNSET, Meta, UnsetType

from zeroeventhub.cli.options import (
    AGE,
    CONFIG,
    age,
    http_options,
    landing_options,
    option_group,
    run_options,
    server_options,
    type_options,
)
from zeroeventhub.cli.table_options import (
    LOG_COLUMNS,
    OF_LOG,
    columns,
    compact_options,
    mount_options,
    publish_options,
    seal_options,
    trim_options,
)
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.wire.documents import encode_document

_Group = Callable[[Callable[..., Any]], Callable[..., Any]]

_Age = Annotated[str, Meta(pattern=AGE.pattern)]
_NAME = "^[A-Za-z0-9_-]+$"
_Name = Annotated[str, Meta(pattern=_NAME)]


def _command(*groups: _Group) -> click.Command:
    """Return a command that has these options and does nothing."""
    return click.command()(option_group(*groups)(lambda **_: None))


def keys(*groups: _Group) -> list[str]:
    """Return the names of options, which are their keys in the file."""
    return [str(option.name) for option in _command(*groups).params if option.expose_value]


def values(*groups: _Group, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options are if a table of the file gives them."""
    return _command(*groups).make_context("", [], default_map=defaults(given)).params


def defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a table of the file to defaults of options."""
    attributes = [f"{name}={column}" for name, column in table.get("attributes", {}).items()]
    return {**table, "attributes": attributes}


def _type(option: click.Option) -> Any:
    """Return the type of the key that stands for an option."""
    kind: Any = str
    match option.type:
        case click.IntRange() as bounds:
            kind = Annotated[int, Meta(ge=bounds.min, le=bounds.max)]
        case click.FloatRange() as bounds:
            kind = Annotated[float, Meta(gt=bounds.min)]
        case click.Choice(choices=choices):
            kind = Literal[tuple(choices)]
        case click.types.FuncParamType(func=function):
            kind = {age: _Age, columns: list[str]}[function]
    if option.is_flag:
        kind = bool
    elif option.name == "attributes":
        kind = dict[str, str]
    elif option.multiple:
        kind = list[str]
    return Annotated[kind, Meta(description=option.help)]


def _struct(name: str, *groups: _Group, needs: Iterable[str] = (), **more: Any) -> Any:
    """Make the type of a table whose keys are options, of which some are needed, and more keys."""
    kinds = {
        str(option.name): _type(option)
        for option in _command(*groups).params
        if isinstance(option, click.Option) and option.expose_value
    }
    fields = [
        (key, kind) if key in needs else (key, kind | UnsetType, UNSET)
        for key, kind in (kinds | more).items()
    ]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


_Every = Annotated[_Age, Meta(description="Let `zeroeventhub serve` do it at this interval.")]


class Reader(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a reader may see of a feed, and its quota."""

    partitions: Annotated[list[int], Meta(description="The only partitions.")] | None = None
    types: Annotated[list[str], Meta(description="The only types of events.")] | None = None
    skip_types: Annotated[list[str], Meta(description="Types that it may not see.")] | None = None
    in_flight: Annotated[int, Meta(ge=1, description="Requests in flight at once.")] | None = None
    waiters: Annotated[int, Meta(ge=1, description="Requests that wait at the head.")] | None = None
    rate: Annotated[float, Meta(gt=0, description="Requests per second.")] | None = None
    burst: Annotated[int, Meta(ge=1, description="Requests at once after a pause.")] | None = None
    append: Annotated[bool, Meta(description="Whether it may append to a log.")] = False


_Feed = _struct(
    "Feed",
    *(publish_options, mount_options),
    needs={"database", "table"},
    log=Annotated[
        bool, Meta(description="Make the table unless it exists, as a log that others append to.")
    ],
    readers=Annotated[
        dict[str, Reader],
        Meta(description="Who may read the feed, by the names of tokens; by default all of them."),
    ],
    trim=_struct("Trim", trim_options, every=_Every),
    compact=_struct("Compact", compact_options, every=_Every),
    seal=_struct("Seal", seal_options, every=_Every),
    tidy=_struct("Tidy", every=_Every),
)
_Consumer = _struct(
    "Consumer",
    *(landing_options, http_options, run_options, type_options),
    needs={"url", "into", "table"},
    url=Annotated[str, Meta(description="The feed.")],
)
File = _struct(
    "File",
    serve=_struct("Serve", server_options),
    feeds=GenericAlias(dict, (_Name, _Feed)),
    consumers=GenericAlias(dict, (_Name, _Consumer)),
)
"""The whole file."""


class FileError(ConfigurationError):
    """Say what is wrong with a file, with the line and the key."""


def read_toml(file: Path, kind: Any) -> dict[str, Any]:
    """Read a file of TOML; an error names the file, the line and the key, and shows no value."""
    try:
        text = file.read_text("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"Cannot read {file}: {error.strerror}.") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigurationError(f"{file} is not TOML: {error}.") from None
    if complaint := _complaint(document, kind):
        raise FileError(f"{file}, {_explained(complaint, text, document, kind)}")
    return document


def _complaint(document: Any, kind: Any) -> str:
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _explained(complaint: str, text: str, document: Any, kind: Any) -> str:
    """Return what is wrong with a document, after its line and its key."""
    sentence, _, where = complaint.partition(" - at `")
    steps = re.findall(r"\[\.\.\.\]|\w+", where.partition("$")[2])
    if where.startswith("key"):
        steps.append("[...]")
    keys = _keys(complaint, steps, document, kind)
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", sentence):
        keys.append(unknown[1])
        tables = msgspec.json.schema(kind).get("$defs", {}).values()
        known = {key for table in tables for key in table.get("properties", ())}
        close = get_close_matches(unknown[1], known, 1)
        sentence = f"There is no such key{', but ' if close else ''}{''.join(close)}"
    return f"line {_line(text, keys)}, {'.'.join(keys)}: {sentence}."


def _keys(complaint: str, steps: list[str], document: Any, kind: Any) -> list[str]:
    """Return the keys that lead to a mistake; a complaint has [...] for the keys of mappings."""
    place = document = deepcopy(document)
    keys = []
    for step in steps:
        if not isinstance(place, dict):
            break  # in a list
        key = step
        if step == "[...]":  # the one without whose neighbours the complaint is the same
            for key, value in dict(place).items():
                place.clear()
                place[key] = value
                if _complaint(document, kind) == complaint:
                    break
        keys.append(key)
        place = place[key]
    return keys


def _line(text: str, keys: list[str]) -> int:
    """Return the line on which a key begins, after the longest beginning that lacks it."""
    lines = text.split("\n")
    # The first `low` lines are such a beginning, and no longer one is shorter than `high`.
    low, high = 0, len(lines) + 1
    while high - low > 1:
        middle = (low + high) // 2
        for end in range(middle, high):
            try:
                place: Any = tomllib.loads("\n".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue  # it ends within a value
            for key in keys:
                place = place.get(key) if isinstance(place, dict) else None
            if place is None:
                low = end
            break
        if low < middle:
            high = middle
    return low + 1


def described(section: str, file: str | None) -> dict[str, Any]:
    """Return what a file describes in one of its sections, by name."""
    path = Path(file or CONFIG)
    if not path.exists():
        raise ConfigurationError(
            f"There is no file {path}: `zeroeventhub init` begins one, or give the options."
        )
    found: dict[str, Any] = read_toml(path, File).get(section, {})
    return found


def entry(section: str, name: str, file: str | None) -> dict[str, Any]:
    """Return what a file says of a feed or a consumer."""
    if not re.fullmatch(_NAME, name):
        # It is not repeated: it may be a URL with a password.
        raise ConfigurationError(f"Name one of the {section} of {file or CONFIG}.")
    entries = described(section, file)
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise ConfigurationError(f"{file or CONFIG} has no {name!r} among its {section}: {known}.")
    found: dict[str, Any] = entries[name]
    return found


@contextmanager
def located(context: click.Context, file: str | None, *place: str) -> Iterator[None]:
    """Name the file, the line and the key in an error about what a table of the file says.

    An error without an option of the table has the line of the feed or the consumer, but none if it
    is about the server. An error about what the command line gives is left as it is, and so is
    every error if no keys lead to a table.
    """
    try:
        yield
    except (ConfigurationError, click.BadParameter) as error:
        if not place or isinstance(error, FileError):
            raise
        sentence, option = str(error), getattr(error, "option", "")
        if isinstance(error, click.BadParameter):
            sentence, option = error.format_message(), str(error.param and error.param.name)
        text = (path := Path(file or CONFIG)).read_text("utf-8")
        table: Any = tomllib.loads(text)
        for key in place:
            table = table.get(key, {})
        named = [option] if option in table else []
        is_of_feed = place != ("serve",) and isinstance(error, ConfigurationError)
        if context.get_parameter_source(option) in _GIVEN or not (named or is_of_feed):
            raise
        keys = [*place, *named]
        where = f"line {_line(text, keys)}, {'.'.join(keys)}"
        raise FileError(f"{path}, {where}: {sentence}") from error


_GIVEN = {ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT}


class FileCommand(click.Command):
    """A command that takes a table of the file as the defaults of its options.

    An error about the table names its place in the file.
    """

    def look_up(self, ctx: click.Context, words: dict[str, Any]) -> tuple[str, ...]:
        """Set the defaults of a command line, whose words are parsed.

        Return the keys that lead to their table; none if the file has no part in the command.
        """
        raise NotImplementedError

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look the table up first."""
        words = self.make_parser(ctx).parse_args([*args])[0]
        wants_help = not {*args}.isdisjoint(ctx.help_option_names)
        place = () if wants_help else self.look_up(ctx, words)
        ctx.meta[__name__] = (words.get("config"), *place)
        with located(ctx, *ctx.meta[__name__]):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with located(ctx, *ctx.meta[__name__]):
            return super().invoke(ctx)


class FeedCommand(FileCommand):
    """A command that takes what FEED is in the file as the defaults of its options."""

    def look_up(self, ctx: click.Context, words: dict[str, Any]) -> tuple[str, ...]:
        """Look FEED up."""
        if not isinstance(name := words.get("feed"), str):
            return ()
        feed = entry("feeds", name, words.get("config"))
        if feed.get("log"):
            feed, ctx.meta[OF_LOG] = LOG_COLUMNS | feed, True
        loses_events = not feed.keys().isdisjoint({"trim", "compact", "compacted", "archive"})
        own = feed.get(str(self.name), {})
        ctx.default_map = defaults({"retention": loses_events, **feed, **own})
        return "feeds", name


@click.command()
def configuration() -> None:
    """Print the JSON Schema of zeroeventhub.toml, for editors."""
    click.echo(encode_document(msgspec.json.schema(File)), nl=False)
