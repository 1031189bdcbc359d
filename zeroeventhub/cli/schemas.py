"""The schemas of a feed: show them, compare them with earlier ones, and write models of them."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import click

from zeroeventhub.cli.configuration import configuration
from zeroeventhub.cli.options import FILE, TIMEOUT, as_json, feed_options, http_options
from zeroeventhub.cli.output import as_misuse, report, write_file
from zeroeventhub.client import Client
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.errors import ConfigurationError, printable, require
from zeroeventhub.extensions import EXTENSIONS, SCHEMAS
from zeroeventhub.protocol import Schemas
from zeroeventhub.wire.documents import decode_answer, encode_answer
from zeroeventhub.wire.json_schema import DIALECT, Change, changes

_STYLES = {
    "dataclass": "dataclasses.dataclass",
    "msgspec": "msgspec.Struct",
    "pydantic": "pydantic_v2.BaseModel",
    "typeddict": "typing.TypedDict",
}
"""The names of these styles in datamodel-code-generator."""

_AS_NAMED = {"dataclass", "typeddict"}
"""Styles whose members cannot have another name in Python than in JSON."""


_OF_NAMES = {"properties", "patternProperties", "$defs"}
"""Keywords whose members are schemas by names that mean nothing else."""

_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}

_OF_PYTHON = re.compile(
    "Annotated|Any|AnyUrl|Base64Str|BaseModel|ConfigDict|Decimal|EmailStr|False|Field|IPv[46]Address"
    "|IPv[46]Network|Literal|MODELS|Meta|NaiveDatetime|None|NotRequired|Path|RootModel|SecretStr"
    "|Struct|True|TypeAlias|TypedDict|ULID|UNSET|UUID[145]?|UnsetType"
)
"""Match a name that means something else in a module: the generator would rename such a class."""

_LEFT_OUT = ("title", "x-", "custom", "default_factory")


@click.group()
def schema() -> None:
    """Show or compare the schemas of a feed's events.

    `configuration` prints the schema of zeroeventhub.toml instead.
    """


schema.add_command(configuration)


@schema.command()
@feed_options
def show(*, client: Client) -> None:
    """Print the schemas that the feed at URL publishes, as JSON."""
    click.echo(encode_answer(EXTENSIONS[SCHEMAS], client.schemas()), nl=False)


@schema.command()
@click.argument("old")
@click.argument("new")
@http_options
@as_json
def diff(
    *, old: str, new: str, headers: list[tuple[str, str]], partitions: int | None, as_json: bool
) -> None:
    """Show which changes from OLD to NEW break readers.

    OLD and NEW are each the URL of a feed, or a file that `schema show` wrote. The command sends
    the headers to both feeds. Exit codes: 0 no change breaks a reader, 1 a change does, 2 there was
    nothing to compare.
    """
    with as_misuse():
        before, after = (_schemas(place, headers, partitions) for place in (old, new))
    found = changes(before, after)
    report([one._asdict() for one in found], map(_line, found), as_json=as_json)
    if any(one.breaks for one in found):
        sys.exit(1)


def _schemas(place: str, headers: list[tuple[str, str]], partitions: int | None) -> Schemas:
    if place.startswith(("http://", "https://")):
        with open_http(headers, timeout=TIMEOUT) as http:
            return Client(place, http, partitions=partitions).schemas()
    try:
        body = Path(place).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{place} cannot be read: {error.strerror}.") from None
    found: Schemas = decode_answer(EXTENSIONS[SCHEMAS], body)
    return found


def _line(change: Change) -> str:
    where = " ".join(filter(None, (change.type, change.place))) or "all events"
    return printable(f"{'breaks' if change.breaks else 'fits  '}  {where}: {change.change}")


@click.command()
@feed_options
@click.option(
    "--style",
    type=click.Choice([*_STYLES]),
    default="dataclass",
    help="The kind of classes to write.",
)
@click.option("--output", type=FILE, help="The file to write; by default standard output.")
def codegen(*, client: Client, style: str, output: Path | None) -> None:
    """Write Python classes for the events of the feed at URL.

    The written module ends with MODELS, which maps each type of events to its class. If the events
    are CloudEvents, give it to the consumer: `Consumer(models=MODELS)`.
    """
    code = _code(client.schemas(), style)
    if output is None:
        click.echo(code, nl=False)
    else:
        write_file(output, code.encode())


def _code(found: Schemas, style: str) -> str:
    require("datamodel_code_generator", extra="codegen", user="zeroeventhub codegen")
    generator: Any = import_module("datamodel_code_generator")
    formats: Any = import_module("datamodel_code_generator.format")

    definitions, models = _definitions(found)
    if not definitions:
        raise ConfigurationError("The feed shows no schemas to this reader.")
    config = generator.GenerateConfig(
        input_file_type=generator.InputFileType.JsonSchema,
        output_model_type=generator.DataModelType(_STYLES[style]),
        target_python_version=formats.PythonVersion.PY_311,
        custom_file_header='"""Models of the events of a feed, written by zeroeventhub codegen."""',
        disable_timestamp=True,
        enum_field_as_literal=generator.LiteralType.All,
        formatters=[formats.Formatter.BUILTIN],
        keyword_only=True,
        output_date_class=formats.DateClassType.Date,
        output_datetime_class=formats.DatetimeClassType.Datetime,
        skip_root_model=True,
        use_schema_description=True,
        use_single_line_docstring=True,
        use_standard_collections=True,
        use_union_operator=True,
    )
    try:
        document = {"$schema": DIALECT, "$defs": definitions}
        code = str(generator.generate(document, config=config)).rstrip()
    except (
        generator.Error,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise ConfigurationError(f"A schema cannot be written as Python: {error}") from error
    if style in _AS_NAMED:
        classes = (one for one in ast.parse(code).body if isinstance(one, ast.ClassDef))
        lines = (line for one in classes for line in one.body)
        fields = (line.target for line in lines if isinstance(line, ast.AnnAssign))
        renamed = {ast.unparse(one) for one in fields}.difference(_members(definitions))
        if renamed:
            raise ConfigurationError(
                f"A {style} has the names of its event, and {', '.join(sorted(renamed))} would be "
                "none of them: choose --style msgspec or pydantic."
            )
    members = "".join(f"    {name!r}: {model},\n" for name, model in models.items())
    return f"{code}\n\n\nMODELS = {{\n{members}}}\n"


def _members(schema: Any) -> Iterator[str]:
    """Yield the names of the members of all objects in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    for below in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(below, dict | list):
            yield from _members(below)


def _definitions(found: Schemas) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the definitions of all types in one document, and the name of each type's own."""
    definitions: dict[str, Any] = {}
    models: dict[str, str] = {}
    for kind, schema in found.types.items():
        own = {name: value for name, value in schema.items() if name not in {"$schema", "$defs"}}
        parts: dict[str, Any] = {**schema.get("$defs", {})}
        reference = own.get("$ref", "") if len(own) == 1 else ""
        if (name := str(reference).removeprefix("#/$defs/")) not in parts:
            name = str(own.get("title", "")) or kind
            parts[name] = own
        # Types may use one name for different things.
        taken = any(definitions.get(_camel_case(one), part) != part for one, part in parts.items())
        prefix = _camel_case(kind) if taken else ""
        names: dict[str, str] = {}
        for one, part in parts.items():
            wanted = free = prefix + _camel_case(one)
            numbers = count(1)
            while (
                _OF_PYTHON.fullmatch(free)
                or free in names.values()
                or definitions.get(free, part) != part
            ):
                free = f"{wanted}{next(numbers)}"
            names[one] = free
        models[kind] = names[name]
        definitions |= {names[one]: _renamed(part, names) for one, part in parts.items()}
    return definitions, models


def _camel_case(name: str) -> str:
    words = "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z0-9]+", name))
    return words if words and not words[0].isdigit() else f"Event{words}"


def _renamed(schema: Any, names: dict[str, str], *, of_names: bool = False) -> Any:
    """Return a schema whose references have the definitions' new names, without titles.

    Keywords that are the generator's own are left out as well: by `customTypePath` and others, a
    publisher chooses what the module imports. `of_names` is for a mapping of schemas by names.
    """
    if isinstance(schema, list):
        return [_renamed(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {
        name: _renamed(value, names, of_names=name in _OF_NAMES and not of_names)
        for name, value in schema.items()
        if of_names or not name.startswith(_LEFT_OUT)
    }
    for keyword in () if of_names else _REFERENCES & schema.keys():
        reference = str(schema[keyword])
        name = reference.removeprefix("#/$defs/")
        if name not in names:
            # The generator would read files and addresses of the publisher's choice.
            raise ConfigurationError(f"A schema refers to {printable(reference)}, outside of it.")
        renamed[keyword] = f"#/$defs/{names[name]}"
    return renamed
