"""Events to append, and the batches in which writers send them."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any
from uuid import uuid4

import msgspec

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event

LONGEST_NAME = 200
"""The most characters of the id, the key or the type of an event."""

IN_A_LIST = "Give the events in a list, also a single one: [NewEvent(…)]."
"""The text of the error for an event that is not in a list."""


@dataclass(frozen=True)
class NewEvent:
    """An event to append.

    Example:
        event = NewEvent("order.paid", {"order": 17}, key="17")
        with engine.begin() as connection:
            log.append(connection, [event])

    Attributes:
        type: what has happened.
        data: a dict, a list or a string that `json.dumps` accepts, without NaN and infinities; or
            its JSON, as a msgspec.Raw.
        key: what it has happened to; events of one key keep their order. None if the event needs
            no order.
        id: its unique id. A log stores an id once, so pass an id that stays the same when the
            program retries; by default it is random, and constant for this object.
        expected_version: the version that the key's last event has to have before this one, 0 for
            a key without events; the event gets the next version. None to append the event
            whatever the key's version is, and without one.

    Raises:
        ConfigurationError: an attribute cannot be stored on every database, or an event without a
            key expects a version.
    """

    type: str
    data: Any
    key: str | None = None
    id: str = field(default_factory=lambda: str(uuid4()))
    expected_version: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that some database would refuse, cut, or change."""
        check_name("type", self.type)
        check_name("id", self.id)
        if self.key is not None:
            check_name("key", self.key)
        if self.expected_version is not None:
            _check_version(self.key, self.expected_version)

    @cached_property
    def text(self) -> str:
        """Return the JSON of the data; see `json_text`."""
        return json_text(self.data)


def make_events(sent: Sequence[Any], raws: Sequence[msgspec.Raw]) -> list[NewEvent]:
    """Make events of compact JSON; to check them together takes a fifth of the time.

    Args:
        sent: objects with their other attributes, of the types of a NewEvent's.
        raws: the data of each, without spaces.

    Raises:
        ConfigurationError: an event cannot be stored, or perhaps cannot: make each by itself.
    """
    names = {one.id for one in sent} | {one.type for one in sent}
    names |= {one.key for one in sent} - {None}
    joined = "\0".join(names) + "\0"
    if joined.count("\0") > len(names) or not _are_names(joined):
        raise ConfigurationError("A name of an event cannot be stored.")
    texts = [str(raw, "utf-8") for raw in raws]
    if not {text[0] for text in texts}.isdisjoint(_OF_NUMBERS) or any(
        "\\u0000" in text for text in texts
    ):
        raise ConfigurationError("The data of an event perhaps cannot be stored.")
    events = []
    for one, raw, text in zip(sent, raws, texts, strict=True):
        if one.expected_version is not None:
            _check_version(one.key, one.expected_version)
        event = object.__new__(NewEvent)
        vars(event).update(
            type=one.type,
            data=raw,
            key=one.key,
            id=one.id,
            expected_version=one.expected_version,
            text=text,
        )
        events.append(event)
    return events


def json_text(data: Any) -> str:
    """Return the JSON of an event's data, or of a snapshot's.

    Raises:
        ConfigurationError: it has no JSON form, contains U+0000, which PostgreSQL refuses, or is a
            bare number, which SQLite may change.
    """
    if isinstance(data, msgspec.Raw):
        try:
            _decode(data)
            text = str(data, "utf-8")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigurationError(f"The data is not JSON: {error}") from None
    else:
        text = Event.of(data).raw.decode()
    if text.lstrip()[:1] in _OF_NUMBERS:
        raise ConfigurationError(
            f"The data is a bare number, {text[:40]}, which some databases change: put it into an "
            'object, such as {"amount": 12.5}.'
        )
    if "\\u0000" in text.replace("\\\\", ""):
        raise ConfigurationError("The data holds U+0000, which PostgreSQL refuses.")
    return text


_decode = msgspec.json.Decoder().decode

_OF_NUMBERS = "-0123456789"
"""The characters with which a number of JSON begins."""


# Possessive, so that it need not go back from the end: in half of the time.
_NAME = rf"[^\0\ud800-\udfff]{{1,{LONGEST_NAME}}}+(?<! )"
_is_name = re.compile(_NAME).fullmatch
_are_names = re.compile(rf"({_NAME}\0)++").fullmatch


def check_name(attribute: str, value: Any) -> None:
    """Refuse a text that some database would cut, change, or confuse with another one."""
    if isinstance(value, str) and _is_name(value):
        return
    if not isinstance(value, str):
        raise ConfigurationError(f"The {attribute} of an event is text; {value!r} is not.")
    if not 0 < len(value) <= LONGEST_NAME:
        raise ConfigurationError(
            f"The {attribute} of an event has 1 to {LONGEST_NAME} characters; this one has "
            f"{len(value)}."
        )
    if value.endswith(" ") or "\0" in value:
        raise ConfigurationError(
            f"The {attribute} {value!r} of an event ends with a space, which MariaDB and MySQL "
            "overlook, or has U+0000 in it, which PostgreSQL refuses."
        )
    raise ConfigurationError(f"The {attribute} {value!r} of an event has no UTF-8.")


def _check_version(key: str | None, version: Any) -> None:
    if key is None:
        raise ConfigurationError("An event without a key has no version to expect.")
    if type(version) is not int or version < 0:
        raise ConfigurationError(
            f"The expected version of an event is a whole number, 0 for a key without events; "
            f"{version!r} is not."
        )


@dataclass(frozen=True)
class Run:
    """Events that one append takes: of one key with versions, or of any keys without.

    Attributes:
        events: the events, in order.
        key: the key whose versions they get; None for events without versions.
        expected_version: the version of the key's last event before them.
    """

    events: Sequence[NewEvent]
    key: str | None = None
    expected_version: int = 0


def runs_of(events: Iterable[NewEvent]) -> Iterator[Run]:
    """Divide events into runs, in their order.

    If one event of a key expects a version, then so does the first of them, and each further one
    expects the version that the one before it gets, or does not say.

    Raises:
        ConfigurationError: the versions of a key do not follow one another.
    """
    known = [*events]
    following: dict[str | None, int] = {}
    with_versions = {one.key for one in known if one.expected_version is not None}
    if not with_versions:
        yield Run(known)
        return
    for key, group in groupby(known, lambda one: one.key if one.key in with_versions else None):
        run = [*group]
        if key is None:
            yield Run(run)
            continue
        first = following.get(key, run[0].expected_version)
        for version, one in enumerate(run, first or 0):
            if first is None or one.expected_version not in {None, version}:
                raise ConfigurationError(
                    f"The expected versions of the key {key!r} do not follow one another: give "
                    "the first of its events one, and the others none, or the next ones."
                )
        following[key] = (first or 0) + len(run)
        yield Run(run, key, first or 0)


@dataclass(frozen=True)
class Batch:
    """Events that a writer appends all together, or not at all.

    Attributes:
        events: the events, in order; one or more.
        producer: the name under which the writer counts its batches; None for one that does not.
        sequence: the number of this batch among those of the producer, from 1 on.
        principal: the name of the writer's principal; empty for anonymous writers.
        partitions: those that the writer may append to; None for all.
    """

    events: Sequence[NewEvent]
    producer: str | None = None
    sequence: int | None = None
    principal: str = ""
    partitions: Collection[int] | None = None

    @cached_property
    def is_plain(self) -> bool:
        """Whether to append it needs no decision: it has neither a sequence nor versions."""
        return self.sequence is None and all(one.expected_version is None for one in self.events)
