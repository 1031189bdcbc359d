"""JSON Schema: what a schema says of values, and which changes of it break readers."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Schemas

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

_NOT_OF_EACH = {"anyOf", "oneOf", "title"}
"""What a schema does not say of each of its alternatives."""

MOST_CHOICES = 1_000
"""How many alternatives a schema may name for a value, and how many schemas it may join: references
multiply them."""

ANYTHING = "anything"
"""The kind of a value that a schema does not bound."""


def resolve(schema: Any, root: Any) -> dict[str, Any]:
    """Return a schema whose `$ref` within the document and whose `allOf` are merged into it.

    A reference to another document is ignored.
    """
    found: list[dict[str, Any]] = []
    seen, parts = set(), [schema]
    while parts:
        part = parts.pop()
        below = {**part} if isinstance(part, dict) else {}
        found.append(below)
        if len(found) > MOST_CHOICES:
            raise ProtocolError(f"A schema joins more than {MOST_CHOICES:,} schemas for a value.")
        parts += reversed(below.pop("allOf", []))
        if (reference := below.pop("$ref", None)) is not None and reference not in seen:
            seen.add(reference)
            parts.append(_at(reference, root))
    merged: dict[str, Any] = {}
    joined: dict[str, Any] = {"properties": {}, "required": []}
    for one in reversed(found):  # what stands outside counts before what stands inside
        merged |= one
        joined["properties"].update(**one.get("properties", {}))
        joined["required"] += one.get("required", [])
    return merged | {name: both for name, both in joined.items() if name in merged}


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
    choices = [*islice(_choices(resolve(schema, root), root), MOST_CHOICES + 1)]
    if len(choices) > MOST_CHOICES:
        raise ProtocolError(f"A schema names more than {MOST_CHOICES:,} alternatives for a value.")
    objects = sum(kind == "object" for kind, _ in choices)
    found: dict[str, dict[str, Any]] = {}
    for number, (kind, one) in enumerate(choices, 1):
        name = f"object {one.get('title', number)}" if kind == "object" and objects > 1 else kind
        known = found.setdefault(name, one)
        if known is not one and "enum" in known:
            values = [*known["enum"], *one["enum"]] if "enum" in one else None
            found[name] = {**known, "enum": values}
    return found


def contents_of(schema: dict[str, Any]) -> Hashable:
    """Return what identifies the contents of a schema; one that contains itself has it twice."""
    if properties := schema.get("properties"):
        return tuple((name, id(one)) for name, one in properties.items())
    parts = ("items", "prefixItems", "additionalProperties")
    return id(next(filter(None, map(schema.get, parts)), None))


def _choices(schema: dict[str, Any], root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    among = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    if among:
        beside = {name: one for name, one in schema.items() if name not in _NOT_OF_EACH}
        for one in among:
            yield from _choices(resolve({"allOf": [one, beside]}, root), root)
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


class Change(NamedTuple):
    """A difference between two descriptions of a feed.

    Attributes:
        type: the type of events.
        place: where in their data; empty for all of it.
        change: what is different.
        breaks: whether a reader that was written for the older description may fail or go wrong.
    """

    type: str
    place: str
    change: str
    breaks: bool


def changes(old: Schemas, new: Schemas) -> list[Change]:
    """Return what differs between two descriptions of a feed, for those who read it.

    Bounds of numbers, texts and lists, and patterns, are not compared.

    Raises:
        ProtocolError: one of the schemas is not a JSON Schema.
    """
    found = []
    if old.envelope != new.envelope:
        says = f"the envelope was {old.envelope or 'none'}, is {new.envelope or 'none'}"
        found.append(Change("", "", says, breaks=True))
    for name, schema in old.types.items():
        if name not in new.types:
            found.append(Change(name, "", "the type was removed", breaks=True))
            continue
        try:
            found += _Comparison(name, schema, new.types[name]).changes
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ProtocolError(f"A schema of {name!r} is not one of JSON Schema.") from error
    found += [
        Change(name, "", "the type is new", breaks=False)
        for name in new.types
        if name not in old.types
    ]
    return found


class _Comparison:
    """Compare two schemas of a type of events."""

    def __init__(self, name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._name, self._old, self._new = name, old, new
        self._seen: set[tuple[Hashable, Hashable]] = set()
        self.changes: list[Change] = []
        self._values("", old, new)

    def _note(self, place: str, change: str, *, breaks: bool) -> None:
        self.changes.append(Change(self._name, place, change, breaks))

    def _values(self, place: str, old: Any, new: Any) -> None:
        before, after = alternatives(old, self._old), alternatives(new, self._new)
        if before.keys() != after.keys():
            was, now = (" or ".join(sorted(kinds)) for kinds in (before, after))
            is_wider = not all(_is_among(kind, before) for kind in after)
            self._note(place, f"was {was}, is {now}", breaks=is_wider)
        for kind in before.keys() & after.keys():
            self._same_kind(place, before[kind], after[kind])

    def _same_kind(self, place: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        was, now = (_listed(one.get("enum")) for one in (old, new))
        if was != now:
            says = f"its values were {', '.join(was or ['any'])}, are {', '.join(now or ['any'])}"
            is_wider = was is not None and (now is None or not {*now} <= {*was})
            self._note(place, says, breaks=is_wider)
        pair = contents_of(old), contents_of(new)
        if pair in self._seen:
            return
        self._seen.add(pair)
        self._others(f"{place}[]", old, new, "items")
        pairs = zip(old.get("prefixItems", ()), new.get("prefixItems", ()), strict=False)
        for number, (one, other) in enumerate(pairs):
            self._values(f"{place}[{number}]", one, other)
        self._objects(f"{place}." if place else "", old, new)

    def _objects(self, within: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        before, after = old.get("properties", {}), new.get("properties", {})
        was_required, is_required = set(old.get("required", [])), set(new.get("required", []))
        for name, schema in before.items():
            place = f"{within}{name}"
            if name not in after:
                self._note(place, "was removed", breaks=True)
                continue
            if name in was_required - is_required:
                self._note(place, "was always there, may be absent", breaks=True)
            elif name in is_required - was_required:
                self._note(place, "may have been absent, is always there", breaks=False)
            self._values(place, schema, after[name])
        is_closed = old.get("additionalProperties") is False
        for name in after:
            if name not in before:
                refused = " where no others were allowed" if is_closed else ""
                self._note(f"{within}{name}", f"is new{refused}", breaks=is_closed)
        self._others(f"{within}*", old, new, "additionalProperties")

    def _others(self, place: str, old: dict[str, Any], new: dict[str, Any], member: str) -> None:
        """Compare the schemas of values that have no schema of their own, unless there are none."""
        was, now = (one.get(member, True) for one in (old, new))
        if was is not False and now is not False:
            self._values(place, was, now)


def _is_among(kind: str, known: Iterable[str]) -> bool:
    """Return whether values of a kind are also of one of the known kinds."""
    wider = "number" if kind == "integer" else kind.partition(" (")[0]
    return not {ANYTHING, kind, wider}.isdisjoint(known)


def _listed(values: list[Any] | None) -> list[str] | None:
    """Return values as their JSON, in order; None if any value is allowed."""
    if values is None:
        return None
    return sorted(msgspec.json.encode(value).decode() for value in values)
