"""Events decoded as the type that a caller has for them."""

from collections.abc import Callable
from dataclasses import is_dataclass
from importlib import import_module
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, is_typeddict

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import Event

__all__ = ["Decode", "decoder"]

Decode: TypeAlias = Callable[[Event], Any]


def decoder(model: Any) -> Decode | None:
    """Return what makes of an event a value of a model; None of what is no model.

    The value is made by pydantic if the model is pydantic's, and by msgspec otherwise.

    Args:
        model: a dataclass, TypedDict, msgspec.Struct, or pydantic model; dict; or a union of these.

    Raises:
        ConfigurationError: the model cannot be decoded.
    """
    choices = get_args(model) if get_origin(model) in (Union, UnionType) else (model,)
    kinds = [get_origin(choice) or choice for choice in choices]
    if not all(_is_model(kind) for kind in kinds):
        return None
    try:
        if any(_is_pydantic(kind) for kind in kinds):
            decode = import_module("pydantic").TypeAdapter(model).validate_json
        else:
            decode = msgspec.json.Decoder(model).decode
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"Events cannot be decoded as {model}: {error}") from error

    def decode_event(event: Event) -> Any:
        try:
            return decode(event.raw)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(
                f"An event does not fit {getattr(model, '__name__', model)}: {_reason(error)}"
            ) from error

    return decode_event


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (
        kind is dict
        or is_dataclass(kind)
        or is_typeddict(kind)
        or issubclass(kind, msgspec.Struct)
        or _is_pydantic(kind)
    )


def _is_pydantic(kind: Any) -> bool:
    """Tell whether a class is a model or a dataclass of pydantic's."""
    return hasattr(kind, "__pydantic_validator__")


def _reason(error: Exception) -> str:
    """Say what does not fit, without the event's data, which pydantic would repeat."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'the event'}: {one['msg']}"
        for one in errors(include_url=False, include_context=False, include_input=False)
    )
