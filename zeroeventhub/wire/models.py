"""Decode the data of events as models, or by functions that take a model, by the events' type."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import EVERY_TYPE
from zeroeventhub.wire.json_schema import is_pydantic

Read: TypeAlias = Callable[[bytes], Any]
"""Takes the JSON of an event's data; returns a model, or what a function has made of it."""


def function_of(apply: Callable[..., Any]) -> Any:
    """Return the function that has a callable's annotations."""
    while isinstance(apply, partial):
        apply = apply.func
    if inspect.isroutine(apply) or isinstance(apply, type):
        return apply
    return type(apply).__call__


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union; of any other type, the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def reader_of(model: Any) -> Read:
    """Return the function that decodes JSON as a model.

    Raises:
        ConfigurationError: the model cannot be decoded.
    """
    choices = choices_of(model)
    try:
        if any(is_pydantic(get_origin(choice) or choice) for choice in choices):
            decode: Read = import_module("pydantic").TypeAdapter(model).validate_json
        else:
            decode = msgspec.json.Decoder(model).decode
    except (TypeError, NameError) as error:
        hint = " `models` says which type of events is which." if len(choices) > 1 else ""
        raise ConfigurationError(f"Events cannot be decoded as {model}: {error}.{hint}") from error

    def read(text: bytes) -> Any:
        try:
            return decode(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(
                f"An event does not fit {name_of(model)}: {_reason(error)}"
            ) from error

    return read


def reader_for(model: Any) -> tuple[Read, Any]:
    """Return what reads data by a model or a function of a model, and the type of its result."""
    if not callable(model) or isinstance(model, type) or get_origin(model) is not None:
        return reader_of(model), model
    hints = get_type_hints(function_of(model))
    parameter = next(iter(inspect.signature(model).parameters), "")
    read = reader_of(hints.get(parameter, Any))
    return lambda text: model(read(text)), hints.get("return", Any)


def reader_by_type(readers: Mapping[str, Read], kind: str) -> Read:
    """Return the function that reads the data of events of a type.

    Raises:
        ProtocolError: there is none for the type.
    """
    read = readers.get(kind) or readers.get(EVERY_TYPE)
    if read is None:
        raise ProtocolError(f"`models` has nothing for events of the type {kind!r}.")
    return read


def _reason(error: Exception) -> str:
    """Describe what does not fit, without the event's data, which pydantic's text contains."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'the event'}: {one['msg']}"
        for one in errors(include_url=False, include_context=False, include_input=False)
    )


def name_of(hint: Any) -> str:
    """Return a type's name, for an error's sentence."""
    return getattr(hint, "__name__", None) or str(hint)
