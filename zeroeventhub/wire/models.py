"""Models of the data of events: their schemas, checks against them, and reading by the type."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from zeroeventhub.errors import ConfigurationError, InvalidEvent, ProtocolError
from zeroeventhub.new_events import Batch
from zeroeventhub.protocol import EVERY_TYPE, folded
from zeroeventhub.wire.json_schema import DIALECT


def is_pydantic(kind: Any) -> bool:
    """Return whether a class is a pydantic model or dataclass."""
    return hasattr(kind, "__pydantic_validator__")


def _has_pydantic(model: Any) -> bool:
    """Return whether a type or one of its arguments is of pydantic."""
    return is_pydantic(get_origin(model) or model) or any(map(_has_pydantic, get_args(model)))


def _adapter_of(model: Any) -> Any:
    """Return the adapter of a type that pydantic decodes; None for one that msgspec decodes."""
    return import_module("pydantic").TypeAdapter(model) if _has_pydantic(model) else None


def schema_of(model: Any) -> dict[str, Any]:
    """Return the JSON Schema of events as a model writes them.

    That is a pydantic model, msgspec.Struct, dataclass, TypedDict, or a union of these; or a
    schema, which is returned as it is.
    """
    if isinstance(model, Mapping):
        return {"$schema": DIALECT, **model}
    try:
        if adapter := _adapter_of(model):
            found = adapter.json_schema(mode="serialization")
        else:
            found = msgspec.json.schema(model)
    except (TypeError, NameError, RuntimeError) as error:
        raise ConfigurationError(f"{model!r} has no JSON Schema: {error}") from error
    return {"$schema": DIALECT, **found}


Check: TypeAlias = Callable[[bytes], object]
"""Raises InvalidEvent for JSON that is not of a model."""


def check_of(model: Any) -> Check | None:
    """Return the function that compares JSON with a model.

    None for a model that is a schema: this library does not compare values with schemas.
    """
    if isinstance(model, Mapping):
        return None
    try:
        if adapter := _adapter_of(model):
            decode: Read = partial(adapter.validate_json, strict=True)
        else:
            decode = msgspec.json.Decoder(model).decode
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"Events cannot be compared with {model!r}: {error}") from error

    def check(text: bytes) -> None:
        try:
            decode(text)
        except (ValueError, RecursionError) as error:
            path, reason = _place(error)
            raise InvalidEvent(reason, path=path) from None
        except Exception as error:  # the host's own, which would meet the batches of others
            raise InvalidEvent(f"Its model raised {type(error).__name__}", path="$") from error

    return check


def misfit(batch: Batch, checks: Mapping[str, Check | None]) -> InvalidEvent | None:
    """Return the error of a batch with an event that does not fit the model of its type."""
    for number, one in enumerate(batch.events if checks else ()):
        # A filter finds a type in any case, so that no case leads past its schema.
        known = (one.type, folded(one.type), EVERY_TYPE)
        check = next((checks[name] for name in known if name in checks), None)
        if check is None:
            continue
        try:
            check(one.text.encode())
        except InvalidEvent as error:
            path = f"$[{number}].data{error.path[1:]}"
            text = f"Event {number + 1} does not fit the schema of its type at {path}: {error}"
            return InvalidEvent(text, path=path)
    return None


_PLACE = re.compile(r" - at `(\$.*)`$")


def _place(error: Exception) -> tuple[str, str]:
    """Return the JSONPath of the value that does not fit, and the reason, without the value."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        found = _PLACE.search(str(error))
        return (found[1], str(error)[: found.start()]) if found else ("$", str(error))
    first = errors(include_url=False, include_context=False, include_input=False)[0]
    parts = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
    return "$" + "".join(parts), first["msg"]


Read: TypeAlias = Callable[[bytes], Any]
"""Takes the JSON of an event's data; returns a model, or what a function has made of it."""


def function_of(apply: Callable[..., Any]) -> Any:
    """Return the function that has a callable's annotations."""
    while isinstance(apply, partial):
        apply = apply.func
    if inspect.isroutine(apply) or isinstance(apply, type):
        return apply
    return type(apply).__call__


def bare(hint: Any) -> Any:
    """Return a type without what an Annotated adds to it."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the bare members of a union; of any other type, the bare type itself."""
    hint = bare(hint)
    return tuple(map(bare, get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)))


def reader_of(model: Any) -> Read:
    """Return the function that decodes JSON as a model."""
    try:
        adapter = _adapter_of(model)
        decode: Read = adapter.validate_json if adapter else msgspec.json.Decoder(model).decode
    except (TypeError, NameError) as error:
        is_union = len(choices_of(model)) > 1
        hint = " `models` says which type of events is which." if is_union else ""
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
    hints = get_type_hints(function_of(model), include_extras=True)
    parameter = next(iter(inspect.signature(model).parameters), "")
    read = reader_of(hints.get(parameter, Any))
    return lambda text: model(read(text)), hints.get("return", Any)


def reader_by_type(readers: Mapping[str, Read], kind: str) -> Read:
    """Return the function that reads the data of events of a type."""
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
    hint = bare(hint)
    return getattr(hint, "__name__", None) or str(hint)
