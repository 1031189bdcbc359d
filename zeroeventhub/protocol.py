"""The terms of the protocol: events, pages, partitions, and the answers of extensions."""

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, overload

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError

FIRST = "_first"
"""The cursor before the first event (FeedAPI v2, Events endpoint)."""

LAST = "_last"
"""The cursor after the last event that is settled at the moment (FeedAPI v2, Events endpoint)."""

HIGHEST_PARTITION = 32767
"""The highest partition id that the protocol allows (FeedAPI v2, Discovery endpoint)."""

NAME_LENGTH = 200
"""The most characters of the name of a consumer or a producer (SPEC 16)."""

LARGEST_PAGE = 10_000
"""The most events of a page (SPEC 16)."""

MOST_SPLITS = 1_000
"""The most pieces that a request divides a partition into (SPEC 16)."""

MOST_COUNTED = 1_000_000
"""The most events between a cursor and its cursor of a count (SPEC 16)."""

LARGEST_BATCH = 10_000
"""The most events that a request appends (SPEC 16)."""

LARGEST_BATCH_BYTES = 4 * 1024 * 1024
"""The most bytes of a batch of events to append, decompressed (SPEC 16)."""

LARGEST_EVENT_BYTES = 1024 * 1024
"""The most bytes of the data of an event to append (SPEC 16)."""


GivenCursor = Annotated[str, msgspec.Meta(pattern=r"\A(?!_(?:first|last)\Z)[ -~]{1,4096}\Z")]
"""A cursor from a feed: neither FIRST nor LAST."""

Count = Annotated[int, msgspec.Meta(ge=0)]


def is_name(text: str, most: int = NAME_LENGTH) -> bool:
    """Return whether a text is one line of 1 to `most` characters without a space at its end.

    MariaDB and MySQL overlook spaces at the end of a text.
    """
    return 0 < len(text) <= most and text.isprintable() and not text.endswith(" ")


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Hold one event.

    Example:
        event = Event.of({"order": 17, "state": "paid"})
        assert event.data["order"] == 17
        assert event.raw == b'{"order":17,"state":"paid"}'

    Attributes:
        raw: the JSON text of the event's data, byte for byte as the publisher sent it.
        headers: the event's headers (v1 only, on request).
    """

    raw: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    # A slot for the decoded data: the garbage collector need not look through a million events.
    _data: Any = msgspec.UNSET

    @classmethod
    def of(cls, data: Any, headers: Mapping[str, str] | None = None) -> "Event":
        """Make an event from data with a JSON form.

        Args:
            data: a dict or a string; anything that `json.dumps` takes, without NaN and infinities.
            headers: the event's headers (v1 only).

        Raises:
            ConfigurationError: the data has no JSON form.
        """
        try:
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return cls(text.encode(), headers or {})
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"The event's data has no JSON form: {error}") from error

    @property
    def data(self) -> Any:
        """The event's data, decoded once.

        Raises:
            ProtocolError: Python cannot decode the JSON: use `raw`.
        """
        if self._data is _UNSET:
            try:
                _keep(self, "_data", _decode(self.raw))
            except (msgspec.DecodeError, RecursionError) as error:
                raise ProtocolError(
                    f"The event's data cannot be decoded ({error}); event.raw has it as it was "
                    "sent."
                ) from error
        return self._data

    def __eq__(self, other: object) -> bool:
        """Compare the published bytes and headers."""
        if not isinstance(other, Event):
            return NotImplemented
        return (self.raw, self.headers) == (other.raw, other.headers)

    __hash__ = None  # type: ignore[assignment] # headers have none

    def __repr__(self) -> str:
        """Show the published bytes and headers."""
        return f"Event(raw={self.raw!r}, headers={self.headers!r})"


_UNSET = msgspec.UNSET
_keep = msgspec.structs.force_setattr
_decode = msgspec.json.Decoder().decode


class EventSequence(Sequence[Event]):
    """A sequence of events that are made when one of them is first read."""

    @abstractmethod
    def _all(self) -> list[Event]:
        """Return the events."""

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in order."""
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """Return one event, or a list of some."""
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same events in the same order."""
        return self._all() == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # it equals lists, which have none

    def __repr__(self) -> str:
        """Show the events as a list does."""
        return repr(self._all())


@dataclass(frozen=True)
class Page:
    """Hold events of one partition up to and including a checkpoint.

    Example:
        page = client.fetch(0, FIRST)
        print([event.data for event in page.events])
        following = client.fetch(0, page.cursor)

    Attributes:
        events: the events, in the partition's order.
        cursor: the checkpoint: the cursor from which the next page starts.
        caught_up: whether the page ended at the head; False for a feed without "caught-up".
        stop_reached: whether the page ends at the requested stop.
        full: whether the page ended because of its size and not at the head, so that the same
            request always gives the same page. Known at the publisher only.
        cursors: the cursor after each event, at a publisher that was asked for them.
    """

    events: Sequence[Event]
    cursor: str
    caught_up: bool = False
    stop_reached: bool = False
    full: bool = False
    cursors: Sequence[str] = ()


@dataclass(frozen=True)
class Lag:
    """Measure how far a reader of a partition is behind.

    Example:
        behind = client.lag(0, page.cursor)
        print(behind.events, behind.seconds)

    Attributes:
        events: the number of settled events after its cursor; at least that many if not `exact`.
        seconds: the age of the first of them; 0 without events, None if it is unknown.
        exact: whether the publisher counted all of them.
        held_back: for how many seconds the publisher has seen a writer hold the horizon back; 0 if
            none does, None if the publisher does not know. Not compared.
    """

    events: int
    seconds: float | None
    exact: bool = True
    held_back: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class CountedCursor:
    """Hold the cursor a number of events after another one.

    Example:
        counted = client.cursor_of_count(0, FIRST, 1_000)
        page = client.fetch(0, FIRST, stop=counted.cursor)

    Attributes:
        cursor: the cursor after the last of these events.
        events: the number of events between the two cursors.
    """

    cursor: GivenCursor
    events: Count


class SegmentPart(msgspec.Struct, frozen=True, rename={"upto": "upTo"}):
    """Locate some events of a partition in a Parquet file (extension "segments").

    Attributes:
        url: the file's URL, which answers requests for ranges of bytes. It may hold a signature
            that gives access to every reader.
        size: the file's size in bytes.
        after: the position (the file's column `position`) after which the events begin.
        upto: the position of the last event.
        cursor: the cursor after the last event.
    """

    url: str
    size: Count
    after: Count
    upto: Count
    cursor: GivenCursor

    def __post_init__(self) -> None:
        """Refuse a part without events."""
        if self.after >= self.upto:
            raise ValueError("A segment of the answer ends before it begins.")

    def __repr__(self) -> str:
        """Leave out the URL, because of its signature."""
        return f"SegmentPart(size={self.size}, after={self.after}, upto={self.upto})"


class Segments(msgspec.Struct, frozen=True, rename={"parts": "segments"}):
    """Locate the events after a cursor in files, as far as they are in files.

    Attributes:
        parts: the files, in the order of their events.
        cursor: the cursor after the last file, from which to continue; the requested one if there
            are no files.
    """

    parts: tuple[SegmentPart, ...]
    cursor: GivenCursor


@dataclass(frozen=True)
class KeyPage:
    """Hold events of one key, in the order of their versions.

    Example:
        history = client.read_key("17")
        for version, event in zip(history.versions, history.events):
            print(version, event.data)

    Attributes:
        events: the events.
        versions: the version of each event: its number within the key.
        more: whether another page may have more events.
    """

    events: Sequence[Event]
    versions: Sequence[int]
    more: bool = False


class Appended(msgspec.Struct, frozen=True, omit_defaults=True):
    """Say where an appended event is.

    Example:
        [appended] = client.append([NewEvent("order.paid", {"order": 17})])
        print(appended.partition, appended.id)

    Attributes:
        partition: its partition.
        id: its id.
        version: its version within its key; None for an event that expected none.
    """

    partition: Count
    id: str
    version: Annotated[int, msgspec.Meta(ge=1)] | None = None


EVERY_TYPE = "*"
"""The name of the schema of a feed's events where it describes them all by one (SPEC 9.16)."""

CLOUDEVENTS: Final = "cloudevents"
"""The envelope of events that are CloudEvents (SPEC 9.16)."""


class Schemas(msgspec.Struct, frozen=True, omit_defaults=True, rename={"types": "schemas"}):
    """Describe the data of a feed's events by JSON Schema (extension "schemas").

    Example:
        published = client.schemas()
        print(published.types["order.placed"]["properties"])

    Attributes:
        types: a schema by the name of each type; EVERY_TYPE names the one of all events.
        envelope: CLOUDEVENTS if the schemas describe the member `data` of CloudEvents; None if they
            describe whole events.
    """

    types: dict[str, dict[str, Any]]
    envelope: Literal["cloudevents"] | None = None

    def seen_by(self, types: "TypeFilter | None") -> "Schemas":
        """Return the schemas of the types that a filter lets through; None for all.

        The schema of all events is left out by any filter, as it tells of types that are hidden.
        """
        if types is None:
            return self
        names = [one for one in self.types if one != EVERY_TYPE and types.lets_through(one)]
        return Schemas({name: self.types[name] for name in names}, self.envelope)


def folded(name: str) -> str:
    """Return the name of a type as filters compare it: without the case of ASCII letters."""
    return name.lower() if name.isascii() else name


@dataclass(frozen=True)
class TypeFilter:
    """Choose events by their type (FeedAPI v2, Events endpoint).

    Example:
        paid = TypeFilter({"order.paid"})
        page = client.fetch(0, FIRST, types=paid)

    Attributes:
        names: types of events, at least one; the case of ASCII letters does not matter.
        skip: whether to skip these types, instead of reading only these.
        given: the names as they were given, which a client sends, as publishers in Go compare them.

    Raises:
        ConfigurationError: `names` is a text or empty, or a name has a semicolon, control
            characters or characters outside of ASCII, is longer than 256, or ends in an asterisk.
    """

    names: AbstractSet[str]
    skip: bool = False
    given: AbstractSet[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Convert the names to lower case, and check them."""
        found: Any = self.names
        # Read only once, as an iterator can be; and a string is a collection of its letters.
        names: frozenset[Any] = frozenset(found if found and not isinstance(found, str) else ())
        if not names:
            raise ConfigurationError(
                "A filter of event types names at least one type, in a set such as {'order.paid'}."
            )
        for name in names:
            if not isinstance(name, str) or not _TYPE_NAME.fullmatch(name):
                raise ConfigurationError(
                    "A type to filter by has 1 to 256 printable ASCII characters, without "
                    "semicolons."
                )
            if name.endswith("*"):
                raise ConfigurationError(
                    "Event types are compared whole: list each type, instead of a prefix and *."
                )
        object.__setattr__(self, "given", names)
        object.__setattr__(self, "names", frozenset(name.lower() for name in names))

    def lets_through(self, name: str) -> bool:
        """Return whether the filter chooses events of a type."""
        return (folded(name) in self.names) is not self.skip

    def joined(self, other: "TypeFilter") -> "TypeFilter":
        """Return the filter of the types that both let through, which may be NOTHING."""
        if self.skip:
            if other.skip:
                return TypeFilter(self.names | other.names, skip=True)
            return other.joined(self)
        names = frozenset(filter(other.lets_through, self.names))
        return TypeFilter(names) if names else NOTHING


class _Nothing(TypeFilter):
    """Let no event through, which no request can ask for."""

    def __init__(self) -> None:
        object.__setattr__(self, "names", frozenset())

    @property
    def given(self) -> AbstractSet[str]:
        """Raise ConfigurationError: a request without names would ask for all types."""
        raise ConfigurationError("A filter that lets no type of events through cannot be sent.")


NOTHING: TypeFilter = _Nothing()
"""The filter of two filters without a common type: pages have no events, and cursors move on."""


is_cursor: Callable[[str], object] = re.compile(r"[ -~]{1,4096}").fullmatch
"""Matches a text that can be a cursor: printable ASCII (ZeroEventHub v1, Parameters)."""

_TYPE_NAME = re.compile(r"[ -:<-~]{1,256}")


@dataclass(frozen=True)
class Partition:
    """Describe one partition of a feed (FeedAPI v2, Discovery endpoint).

    Example:
        partitions = (Partition(0, closed=True), Partition(1, starts_after=0))
        info = FeedInfo(partitions, token="2")

    Attributes:
        id: 0 to 32767.
        closed: whether the partition gets no more events.
        starts_after: the closed partition to read to its end first; None without one.
        cursor_from: partitions whose cursors are valid here, nearest first.

    Raises:
        ConfigurationError: an id is out of its range.
    """

    id: int
    closed: bool = False
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse ids that the protocol does not allow."""
        object.__setattr__(self, "cursor_from", tuple(self.cursor_from))  # of any iterable
        for number in (self.id, *self.cursor_from, self.starts_after or 0):
            if not 0 <= number <= HIGHEST_PARTITION:
                raise ConfigurationError(
                    f"Partition {number} cannot be: ids go from 0 to {HIGHEST_PARTITION}."
                )


@dataclass(frozen=True)
class FeedInfo:
    """Describe a feed (FeedAPI v2, Discovery endpoint).

    Example:
        info = client.discover()
        partitions = [partition.id for partition in info.partitions]

    Attributes:
        partitions: the partitions to read.
        token: the version of the partition layout; None for a v1 feed.
        exactly_once: whether the publisher promises never to publish an event twice.
        extensions: the names of the extensions that the feed has.
    """

    partitions: tuple[Partition, ...]
    token: str | None
    exactly_once: bool = True
    extensions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, partitions: int) -> "FeedInfo":
        """Describe a feed of partitions 0 to N-1 whose token changes with their number.

        Args:
            partitions: how many, 1 to 32768.

        Raises:
            ConfigurationError: the number is outside of this range.
        """
        given: object = partitions
        if not isinstance(given, int) or given not in range(1, HIGHEST_PARTITION + 2):
            raise ConfigurationError(
                f"A feed has 1 to {HIGHEST_PARTITION + 1} partitions, not {partitions!r}."
            )
        return cls(tuple(Partition(number) for number in range(partitions)), str(partitions))
