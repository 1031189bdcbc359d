"""What a caller's `apply` takes: its transaction and its argument, by its annotations."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.consumer.page import AsyncPendingPage, PendingPage
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EVERY_TYPE, Event, Page
from zeroeventhub.wire.cloud_event import CloudEvent
from zeroeventhub.wire.models import (
    Read,
    bare,
    choices_of,
    function_of,
    is_pydantic,
    name_of,
    reader_by_type,
    reader_for,
    reader_of,
)

_ANYTHING = (inspect.Parameter.empty, Any, object)
_LISTS = (list, Sequence, Collection, Iterable)

Sessions: TypeAlias = Callable[[], Any]
"""Makes a session."""

Decode: TypeAlias = Callable[[Event], Any]
"""Converts an event to the argument of `apply`."""


class Kind(Enum):
    """The kinds of transactions that `apply` may take."""

    CONNECTION = auto()
    SESSION = auto()
    DRIVER = auto()
    """The connection of the database's driver, beneath the one of SQLAlchemy."""


def is_async_function(apply: Callable[..., Any]) -> bool:
    """Return whether `apply` is a coroutine function; raise if it would never run."""
    if not callable(apply):
        raise ConfigurationError("apply is a function of a transaction and a page.")
    function = function_of(apply)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError("apply is a generator, which would never run: return.")
    return inspect.iscoroutinefunction(function)


def annotations_of(apply: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the annotations of a function's two arguments."""
    try:
        signature = inspect.signature(apply)
    except ValueError:
        return Any, Any  # a function written in C has no annotations
    try:
        names = {value: name for name, value in signature.bind(0, 1).arguments.items()}
    except TypeError as error:
        raise ConfigurationError(
            f"apply takes two arguments, a transaction and what is to be applied: {error}"
        ) from error
    function = function_of(apply)
    written = getattr(function, "__annotations__", {})
    chosen = {number: names[number] for number in (0, 1) if names.get(number) in written}
    only = SimpleNamespace(__annotations__={name: written[name] for name in chosen.values()})
    try:
        known = getattr(inspect.unwrap(function), "__globals__", {})
        hints = get_type_hints(only, known, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            f"An annotation of apply cannot be understood ({error}): import what it names where "
            "it is defined, and not only for type checkers."
        ) from error
    return tuple(hints[chosen[number]] if number in chosen else Any for number in (0, 1))  # type: ignore[return-value]


def _is(hint: Any, kind: type) -> bool:
    hint = get_origin(hint) or hint
    return isinstance(hint, type) and issubclass(hint, kind)


def transaction_for(
    wanted: Any, engine: Engine | AsyncEngine, *, is_async: bool, sessions: Sessions | None
) -> tuple[Kind, type[Any]]:
    """Choose the kind of transaction, and the class of a session."""
    kinds: dict[Kind, type[Any]] = {Kind.SESSION: AsyncSession if is_async else Session}
    if sessions is None:
        kinds = {Kind.CONNECTION: AsyncConnection if is_async else Connection, **kinds}
        # A program that names a class of psycopg has imported it.
        psycopg = sys.modules.get("psycopg") if engine.dialect.driver == "psycopg" else None
        if psycopg is not None and (is_async or isinstance(engine, Engine)):
            kinds[Kind.DRIVER] = psycopg.AsyncConnection if is_async else psycopg.Connection
    session = kinds[Kind.SESSION]
    wanted = bare(wanted)
    if wanted in _ANYTHING:
        return next(iter(kinds)), session
    for choice in choices_of(wanted):
        for kind, known in kinds.items():
            if _is(choice, known):
                return kind, choice if kind is Kind.SESSION else session
    names = [f"{'psycopg.' * (kind is Kind.DRIVER)}{kinds[kind].__name__}" for kind in kinds]
    given = name_of(wanted)
    if given in names:  # of another package
        given = f"{wanted.__module__}.{given}"
    raise ConfigurationError(
        f"The first argument of apply is annotated as {given}. With this store, the "
        f"first argument of {'an async' if is_async else 'a sync'} apply is {' or '.join(names)}"
        f"{', because `sessions` is set' if sessions else ''}."
    )


def decoder_for(
    wanted: Any, models: Mapping[str, Any], *, is_async: bool
) -> tuple[Decode | None, Any, bool]:
    """Choose the decoder of events (None for pages), its type, and whether it takes a list."""
    page = AsyncPendingPage if is_async else PendingPage
    plain = bare(wanted)
    together = (get_origin(plain) or plain) in _LISTS
    (model,) = (get_args(plain) or (Any,)) if together else (wanted,)
    if models:
        return _typed_decoder(model, models), None, together
    if plain in _ANYTHING or any(_is(choice, page) for choice in choices_of(wanted)):
        return None, None, False
    if bare(model) in (*_ANYTHING, Event):
        return same_event, None, together
    if not any(_is(bare(model), one) for one in (Page, PendingPage, AsyncPendingPage)):
        decode, data_type = _decoder(model)
        if decode is not None:
            return decode, data_type, together
    raise ConfigurationError(
        f"The second argument of apply is annotated as {name_of(wanted)}; it may be "
        f"{page.__name__}, Event, a dataclass, TypedDict, msgspec.Struct or pydantic model, or a "
        "list of one of these."
    )


def _decoder(model: Any) -> tuple[Decode | None, Any]:
    """Return the function that decodes an event as a model; None if the type is no model.

    Pydantic decodes its own models, and msgspec any other; for msgspec the model is returned too.
    A model is a dict, dataclass, TypedDict, msgspec.Struct, or pydantic model; or a union of these.
    """
    kinds = [get_origin(choice) or choice for choice in choices_of(model)]
    if not all(_is_model(kind) for kind in kinds):
        return None, None
    plain = bare(model)
    if get_origin(plain) is CloudEvent and any(map(is_pydantic, choices_of(*get_args(plain)))):
        return _typed_decoder(model, {}), None
    read = reader_of(model)
    try:
        hash(model)
    except TypeError:  # an Annotated of what cannot be a key, so no decoder of pages is kept
        return lambda event: read(event.raw), None
    return lambda event: read(event.raw), None if any(map(is_pydantic, kinds)) else model


def _typed_decoder(wanted: Any, models: Mapping[str, Any]) -> Decode:
    """Return the function that decodes a CloudEvent whose data has a model.

    `wanted` is what `apply` takes: a model or a union of some, or a CloudEvent of these. `models`
    has a model, or a function that makes one, by the type of events; without any, the data of all
    events is decoded as `wanted`.
    """
    plain = bare(wanted)
    with_envelope = (get_origin(plain) or plain) is CloudEvent
    data = (get_args(plain) or (Any,))[0] if with_envelope else wanted
    taken = (data, *choices_of(data), *_ANYTHING)
    readers: dict[str, Read] = {}
    for kind, model in (models or {EVERY_TYPE: data}).items():
        readers[kind], made = reader_for(model)
        if bare(data) not in _ANYTHING and any(one not in taken for one in choices_of(made)):
            raise ConfigurationError(
                f"`models` has {name_of(made)} for events of the type {kind!r}, but apply takes "
                f"{name_of(wanted)}."
            )
    read_envelope = reader_of(CloudEvent[msgspec.Raw])

    def decode_event(event: Event) -> Any:
        found = read_envelope(event.raw)
        found.data = reader_by_type(readers, found.type)(bytes(found.data))
        return found if with_envelope else found.data

    return decode_event


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (
        kind is dict
        or is_dataclass(kind)
        or is_typeddict(kind)
        or issubclass(kind, msgspec.Struct)
        or is_pydantic(kind)
    )


def same_event(event: Event) -> Event:
    """Decode an event for an `apply` that takes events as they are."""
    return event
