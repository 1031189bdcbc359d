"""The JSON of whole events as PostgreSQL makes it: to the byte what a `Mapper` makes of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, func
from sqlalchemy import types as sql

from zeroeventhub.publisher.json_form import JsonForm
from zeroeventhub.publisher.json_text import moment_text, object_text, string_text

__all__ = ["OWN_ATTRIBUTES", "data_text", "envelope_text"]

OWN_ATTRIBUTES = ("id", "type", "key", "time")
"""The attributes of an envelope that have a meaning of their own in a feed."""


def data_text(forms: Sequence[JsonForm], names: Sequence[str] | None) -> ColumnElement[Any] | None:
    """Return the JSON of an event's data; None if PostgreSQL does not make it.

    Args:
        forms: of its parts.
        names: of its parts; None if its one part is the data itself.
    """
    texts = [func.coalesce(form.text, "null") for form in forms if form.text is not None]
    if len(texts) < len(forms):
        return None
    return texts[0] if names is None else object_text(dict(zip(names, texts, strict=True)))


def envelope_text(
    source: str,
    kind: str,
    attributes: Mapping[str, JsonForm],
    position: ColumnElement[int],
    data: ColumnElement[Any],
) -> ColumnElement[Any] | None:
    """Return the JSON of a CloudEvent; None if PostgreSQL does not make it.

    Args:
        source: the event's `source`.
        kind: the `type` of events that have none of their own.
        attributes: the forms of `id`, `type`, `key`, `time` and others, those that there are.
        position: the `id` of events that have none of their own.
        data: the JSON of the event's data.
    """
    strings: dict[str, ColumnElement[Any]] = {}
    for name, form in attributes.items():
        if form.text is None or form.is_json:
            return None
        strings[name] = func.nullif(string_text(form.text), '""')
    members: dict[str, ColumnElement[Any] | str] = {
        "specversion": '"1.0"',
        "id": _first(strings.get("id"), func.concat('"', position, '"')),
        "source": msgspec.json.encode(source).decode(),
        "type": _first(strings.get("type"), msgspec.json.encode(kind).decode()),
    }
    if (time := attributes.get("time")) is not None:
        if not isinstance(time.select.type, sql.DateTime):
            return None
        members["time"] = moment_text(time.select, aware=True)
    if "key" in strings:
        members["partitionkey"] = strings["key"]
    members |= {name: text for name, text in strings.items() if name not in OWN_ATTRIBUTES}
    return object_text(members | {"datacontenttype": '"application/json"', "data": data})


def _first(text: ColumnElement[Any] | None, other: Any) -> Any:
    """Return text, or what is in its place where it is NULL."""
    return other if text is None else func.coalesce(text, other)
