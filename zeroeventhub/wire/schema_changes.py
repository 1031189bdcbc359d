"""Compare the schemas of two versions of a feed, and find changes that break its readers."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Schemas
from zeroeventhub.wire.json_schema import ANYTHING, alternatives, contents_of


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
        self._seen: set[tuple[int, int]] = set()
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
        if isinstance(old.get("items"), dict) and isinstance(new.get("items"), dict):
            self._values(f"{place}[]", old["items"], new["items"])
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
        others = old.get("additionalProperties"), new.get("additionalProperties")
        if all(isinstance(one, dict) for one in others):
            self._values(f"{within}*", *others)


def _is_among(kind: str, known: Iterable[str]) -> bool:
    """Return whether values of a kind are also of one of the known kinds."""
    wider = "number" if kind == "integer" else kind.partition(" (")[0]
    return not {ANYTHING, kind, wider}.isdisjoint(known)


def _listed(values: list[Any] | None) -> list[str] | None:
    """Return values as their JSON, in order; None if any value is allowed."""
    if values is None:
        return None
    return sorted(msgspec.json.encode(value).decode() for value in values)
