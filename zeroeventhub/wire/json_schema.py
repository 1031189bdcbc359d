"""JSON Schema of events: made of models, and read."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, get_args

import msgspec

from zeroeventhub.errors import ConfigurationError, InvalidEvent

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_KINDS: dict[type[Any], str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}
"""The types of JSON Schema, by those of decoded JSON."""

ANYTHING = "anything"
"""The kind of a value that a schema does not bound."""


def is_pydantic(kind: Any) -> bool:
    """Return whether a class is a pydantic model or dataclass."""
    return hasattr(kind, "__pydantic_validator__")


def schema_of(model: Any) -> dict[str, Any]:
    """Return the JSON Schema of events as a model writes them.

    Args:
        model: a pydantic model, msgspec.Struct, dataclass, TypedDict, or a union of these; or a
            schema, which is returned as it is.

    Raises:
        ConfigurationError: the model has no JSON Schema.
    """
    if isinstance(model, Mapping):
        return {"$schema": DIALECT, **model}
    try:
        if any(map(is_pydantic, get_args(model) or (model,))):
            adapter = import_module("pydantic").TypeAdapter(model)
            found = adapter.json_schema(mode="serialization")
        else:
            found = msgspec.json.schema(model)
    except (TypeError, NameError, RuntimeError) as error:
        raise ConfigurationError(f"{model!r} has no JSON Schema: {error}") from error
    return {"$schema": DIALECT, **found}


def check_of(model: Any) -> Callable[[bytes], object] | None:
    """Return the function that raises InvalidEvent for JSON that is not of a model.

    None for a model that is a schema: this library does not compare values with schemas.

    Raises:
        ConfigurationError: values cannot be compared with the model.
    """
    if isinstance(model, Mapping):
        return None
    try:
        if any(map(is_pydantic, get_args(model) or (model,))):
            adapter = import_module("pydantic").TypeAdapter(model)
            decode: Callable[[bytes], object] = partial(adapter.validate_json, strict=True)
        else:
            decode = msgspec.json.Decoder(model).decode
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"Events cannot be compared with {model!r}: {error}") from error

    def check(text: bytes) -> None:
        try:
            decode(text)
        except (ValueError, RecursionError) as error:
            path, reason = _misfit(error)
            raise InvalidEvent(reason, path=path) from None

    return check


_PLACE = re.compile(r" - at `(\$.*)`$")


def _misfit(error: Exception) -> tuple[str, str]:
    """Return the JSONPath of the value that does not fit, and the reason, without the value."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        found = _PLACE.search(str(error))
        return (found[1], str(error)[: found.start()]) if found else ("$", str(error))
    first = errors(include_url=False, include_context=False, include_input=False)[0]
    parts = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
    return "$" + "".join(parts), first["msg"]


def resolve(schema: Any, root: Any) -> dict[str, Any]:
    """Return a schema whose `$ref` within the document and whose `allOf` are merged into it.

    A reference to another document is ignored.
    """
    if not isinstance(schema, dict):
        return {}
    merged, seen = {**schema}, set()
    while "$ref" in merged or "allOf" in merged:
        parts = merged.pop("allOf", [])
        if (reference := merged.pop("$ref", None)) is not None and reference not in seen:
            seen.add(reference)
            parts = [_at(reference, root), *parts]
        for part in parts:
            below = part if isinstance(part, dict) else {}
            properties = {**below.get("properties", {}), **merged.get("properties", {})}
            required = [*below.get("required", []), *merged.get("required", [])]
            several = "properties" in below and "properties" in merged
            merged = {**below, **merged}
            if several:
                merged |= {"properties": properties, "required": required}
    return merged


def _at(reference: Any, root: Any) -> Any:
    """Return what a JSON Pointer in a fragment refers to (RFC 6901)."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    found = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def alternatives(schema: Any, root: Any) -> dict[str, dict[str, Any]]:
    """Return what a value may be: by kind, the schema of values of that kind.

    A kind is a type of JSON Schema with its format, ANYTHING, or, where a value may be one of
    several objects, "object" and its title.
    """
    choices = [*_choices(resolve(schema, root), root)]
    objects = sum(kind == "object" for kind, _ in choices)
    found: dict[str, dict[str, Any]] = {}
    for number, (kind, one) in enumerate(choices, 1):
        name = f"object {one.get('title', number)}" if kind == "object" and objects > 1 else kind
        known = found.setdefault(name, one)
        if known is not one and "enum" in known:
            values = [*known["enum"], *one["enum"]] if "enum" in one else None
            found[name] = {**known, "enum": values}
    return found


def contents_of(schema: dict[str, Any]) -> int:
    """Return a number for the contents of a schema; a schema that contains itself has it twice."""
    parts = ("properties", "items", "additionalProperties")
    return id(next(filter(None, map(schema.get, parts)), None))


def _choices(schema: dict[str, Any], root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    among = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    if among:
        for one in among:
            yield from _choices(resolve(one, root), root)
        return
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if values is not None:
        kinds = dict.fromkeys(map(_kind, values))
    elif kinds is None:
        signs = {"object": ("properties", "additionalProperties"), "array": ("items",)}
        kinds = [kind for kind, names in signs.items() if any(one in schema for one in names)]
    for kind in kinds or [ANYTHING]:
        if kind == "null":
            yield kind, {}
        elif values is not None:
            yield kind, {**schema, "enum": [value for value in values if _kind(value) == kind]}
        elif kind == "string" and "format" in schema:
            yield f"{kind} ({schema['format']})", schema
        else:
            yield kind, schema


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), ANYTHING)
