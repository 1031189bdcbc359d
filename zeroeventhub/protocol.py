"""The words of the wire: events, pages, partitions, and what a feed says of itself."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError

__all__ = [
    "ARROW",
    "CAUGHT_UP",
    "COMPACTED",
    "CURSOR_OF_COUNT",
    "CURSOR_OF_TIME",
    "EVENT_TYPES",
    "EXTENSIONS",
    "FIRST",
    "HIGHEST_PARTITION",
    "KEY_HISTORY",
    "LAG",
    "LARGEST_PAGE",
    "LAST",
    "MOST_COUNTED",
    "MOST_SPLITS",
    "NOTHING",
    "PARTITION",
    "PROGRESS",
    "REQUIRED",
    "SEGMENTS",
    "SPLITS",
    "STOP",
    "WAIT",
    "CountedCursor",
    "Event",
    "Extension",
    "FeedInfo",
    "KeyPage",
    "Lag",
    "Page",
    "Parameter",
    "Partition",
    "SegmentPart",
    "Segments",
    "TypeFilter",
    "is_cursor",
]

FIRST = "_first"
"""The cursor before the first event (FeedAPI v2, Events endpoint)."""

LAST = "_last"
"""The cursor after the last event that is settled now (FeedAPI v2, Events endpoint)."""

HIGHEST_PARTITION = 32767
"""The highest partition id that the protocol allows (FeedAPI v2, Discovery endpoint)."""

LARGEST_PAGE = 10_000
"""How many events a page holds, at most (SPEC 16)."""

MOST_SPLITS = 1_000
"""Into how many pieces a partition is split, at most (SPEC 16)."""

MOST_COUNTED = 1_000_000
"""How many events a cursor of a count may lie ahead, at most (SPEC 16)."""

ARROW = "arrow"
"""The extension of feeds that send pages as Arrow record batches to who prefers them."""

CAUGHT_UP = "caught-up"
"""The extension of feeds that say when a page held everything that could be read."""

COMPACTED = "compacted"
"""The extension of feeds that keep the last event of each key, and not always those before."""

EVENT_TYPES = "event-types"
"""The extension of feeds that filter events by their type (FeedAPI v2, Events endpoint)."""

STOP = "stop"
"""The extension of feeds that read up to a cursor and no further."""

WAIT = "wait"
"""The extension of feeds that hold an answer back until there is something to read."""

CURSOR_OF_TIME = "cursor-of-time"
"""The extension of feeds that know the cursor of a moment."""

SPLITS = "splits"
"""The extension of feeds that can cut a partition into pieces."""

LAG = "lag"
"""The extension of feeds that count the events after a cursor."""

CURSOR_OF_COUNT = "cursor-of-count"
"""The extension of feeds that know the cursor so many events after another one."""

PROGRESS = "progress"
"""The extension of feeds that keep how far consumers say that they have come."""

SEGMENTS = "segments"
"""The extension of feeds that say where old events lie in files, for readers in bulk."""

KEY_HISTORY = "key-history"
"""The extension of feeds whose events of one key can be read by themselves."""


GivenCursor = Annotated[str, msgspec.Meta(pattern=r"\A(?!_(?:first|last)\Z)[ -~]{1,4096}\Z")]
"""A cursor that a feed has given: neither FIRST nor LAST."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Hold one event.

    Attributes:
        raw: the JSON text of the event's data, byte for byte as it was published.
        headers: the event's headers (v1 only; asked for by name).
    """

    raw: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    # What was decoded is kept in a slot, so that a million events are no garbage to look through.
    _data: Any = msgspec.UNSET

    @classmethod
    def of(cls, data: Any, headers: Mapping[str, str] | None = None) -> "Event":
        """Make an event from data that has a JSON form.

        Args:
            data: a dict or a string; what `json.dumps` takes, without NaN and infinities.
            headers: v1 headers of the event.

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
        """Decode the event's data; done once.

        Raises:
            ProtocolError: the data is JSON, but Python cannot hold it exactly: use `raw`.
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
        """Compare what was published; whether it was decoded makes no difference."""
        if not isinstance(other, Event):
            return NotImplemented
        return (self.raw, self.headers) == (other.raw, other.headers)

    __hash__ = None  # type: ignore[assignment] # headers have none

    def __repr__(self) -> str:
        """Show what was published."""
        return f"Event(raw={self.raw!r}, headers={self.headers!r})"


_UNSET = msgspec.UNSET
_keep = msgspec.structs.force_setattr
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Page:
    """Hold events of one partition up to and including a checkpoint.

    Attributes:
        events: the events, in the partition's order.
        cursor: the checkpoint: where the next page starts.
        caught_up: whether the page held everything that could be read just then; False where
            the feed does not say.
        stop_reached: whether the page ends at the cursor that the read was to stop at.
        full: whether it ended for its size and not at the head, so that the same request always
            gives the same page. Only publishers know.
        cursors: for each event, the cursor after it, where they were asked for.
    """

    events: Sequence[Event]
    cursor: str
    caught_up: bool = False
    stop_reached: bool = False
    full: bool = False
    cursors: Sequence[str] = ()


@dataclass(frozen=True)
class Lag:
    """Say how far a reader of a partition is behind.

    Attributes:
        events: how many settled events lie after its cursor; at least so many if not `exact`.
        seconds: how long ago the first of them happened; 0 where there is none, None where
            that is unknown.
        exact: whether all of them were counted.
    """

    events: int
    seconds: float | None
    exact: bool = True


@dataclass(frozen=True)
class CountedCursor:
    """Say where a number of events ends.

    Attributes:
        cursor: stands after the last of them.
        events: how many there are, from the cursor that they were counted from.
    """

    cursor: GivenCursor
    events: Count


class SegmentPart(msgspec.Struct, frozen=True, rename={"upto": "upTo"}):
    """Locate some events of a partition in a Parquet file (extension "segments").

    Attributes:
        url: the file's URL, which answers requests for ranges of bytes. It may hold a signature
            that gives access to everybody.
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

    Attributes:
        events: the events.
        versions: the version of each: its number within the key.
        more: whether there may be events after the last of them, in another page.
    """

    events: Sequence[Event]
    versions: Sequence[int]
    more: bool = False


@dataclass(frozen=True)
class TypeFilter:
    """Choose events by their type (FeedAPI v2, Events endpoint).

    Attributes:
        names: types of events, without regard to the case of ASCII letters.
        skip: whether these types are left out, rather than being the only ones.
    """

    names: frozenset[str]
    skip: bool = False

    def __post_init__(self) -> None:
        """Keep names in lower case; refuse what no request could say.

        Raises:
            ConfigurationError: there is no name, or one has a semicolon, control characters or
                characters outside of ASCII, is longer than 256, or ends in an asterisk.
        """
        if not self.names:
            raise ConfigurationError("A filter of event types names at least one type.")
        for name in self.names:
            if not _TYPE_NAME.fullmatch(name):
                raise ConfigurationError(
                    "A type to filter by has 1 to 256 printable ASCII characters, without "
                    "semicolons."
                )
            if name.endswith("*"):
                raise ConfigurationError(
                    "Event types are compared whole: list each type, instead of a prefix and *."
                )
        object.__setattr__(self, "names", frozenset(name.lower() for name in self.names))

    def lets_through(self, name: str) -> bool:
        """Tell whether events of a type are chosen."""
        folded = name.lower() if name.isascii() else name
        return (folded in self.names) is not self.skip

    def joined(self, other: "TypeFilter") -> "TypeFilter":
        """Return the filter of what both let through, which may be nothing."""
        match self.skip, other.skip:
            case True, True:
                return TypeFilter(self.names | other.names, skip=True)
            case True, False:
                names = other.names - self.names
            case False, True:
                names = self.names - other.names
            case _:
                names = self.names & other.names
        return TypeFilter(names) if names else NOTHING


class _Nothing(TypeFilter):
    """Let nothing through, which no request could say."""

    def __init__(self) -> None:
        object.__setattr__(self, "names", frozenset())


NOTHING: TypeFilter = _Nothing()
"""What is left where two filters have no type in common: a page without events that moves on."""


_CURSOR = re.compile(r"[ -~]{1,4096}")


def is_cursor(text: str) -> bool:
    """Tell whether text has the form of a cursor: printable ASCII (ZeroEventHub v1, Parameters)."""
    return _CURSOR.fullmatch(text) is not None


_TYPE_NAME = re.compile(r"[ -:<-~]{1,256}")


@dataclass(frozen=True)
class Partition:
    """Describe one partition of a feed (FeedAPI v2, Discovery endpoint).

    Attributes:
        id: 0 to 32767.
        closed: whether no event will ever be added.
        starts_after: the closed partition that has to be read to its end first.
        cursor_from: partitions whose cursors are valid here, nearest first.
    """

    id: int
    closed: bool = False
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse ids that the protocol does not allow."""
        for number in (self.id, *self.cursor_from, self.starts_after or 0):
            if not 0 <= number <= HIGHEST_PARTITION:
                raise ConfigurationError(
                    f"Partition {number} cannot be: ids go from 0 to {HIGHEST_PARTITION}."
                )


@dataclass(frozen=True)
class FeedInfo:
    """Describe a feed (FeedAPI v2, Discovery endpoint).

    Attributes:
        partitions: the partitions that there are to read.
        token: the version of the partition layout; None for a v1 feed.
        exactly_once: whether the publisher promises never to publish an event twice.
        extensions: what the feed can do beyond the protocol's core, by name.
    """

    partitions: tuple[Partition, ...]
    token: str | None
    exactly_once: bool = True
    extensions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, partitions: int) -> "FeedInfo":
        """Describe a feed of partitions 0 to N-1 whose token changes with their number.

        Raises:
            ConfigurationError: the protocol has no such number of partitions.
        """
        if not 1 <= partitions <= HIGHEST_PARTITION + 1:
            raise ConfigurationError(
                f"A feed has 1 to {HIGHEST_PARTITION + 1} partitions, not {partitions}."
            )
        return cls(tuple(Partition(number) for number in range(partitions)), str(partitions))


REQUIRED: Final = object()
"""The default of a parameter that a request has to give."""


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a request.

    Attributes:
        name: its name on the wire.
        kind: the form of its text. A limit is a number of events that the feed bounds.
        default: the value where a request does not give it; REQUIRED if a request has to.
        least: the smallest number allowed.
        most: the largest number allowed, or how many characters a text has; None for no bound.
        refused: those of FIRST and LAST that have no meaning as this cursor.
        argument: the keyword by which the feed's method takes it; empty if it does by position.
    """

    name: str
    kind: Literal["partition", "cursor", "moment", "number", "limit", "text", "line"]
    default: object = REQUIRED
    least: int = 0
    most: int | None = None
    refused: frozenset[str] = frozenset()
    argument: str = ""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Describe an extension of the protocol: from it follow its route, its requests and answers.

    Attributes:
        name: its name in the discovery document.
        section: the section of SPEC.md that defines it.
        path: where it is answered, below the feed's path; empty for what only changes pages.
        parameters: of a request, in the order in which the feed's method and those of the clients
            take them. A request with a partition has a token as well.
        method: of the feed, which finds the answer.
        answer: the type that the method returns.
        member: the member of the JSON document that holds the answer; empty if the answer is the
            document.
        needs: what a reader has to be allowed to see before the feed announces the extension to
            it: "part" for any part of the feed, "types" for events of all types, "all" for
            everything.
        context: what the method is given by keyword beside the parameters: the name of the
            principal, or the partitions that it may see, where it may not see all.
        is_put: whether a request changes something: it is a PUT, answered with its cursor.
    """

    name: str
    section: str = ""
    path: str = ""
    parameters: tuple[Parameter, ...] = ()
    method: str = ""
    answer: Any = None
    member: str = ""
    needs: Literal["part", "types", "all"] = "part"
    context: frozenset[Literal["principal", "partitions"]] = frozenset()
    is_put: bool = False


PARTITION = Parameter("partition", "partition")
_STOP_AT = Parameter("stop", "cursor", None, refused=frozenset({FIRST, LAST}), argument="stop")
_BEFORE_LAST = Parameter("cursor", "cursor", refused=frozenset({LAST}))
_SPLIT_FROM = Parameter("cursor", "cursor", FIRST, refused=frozenset({LAST}), argument="start")
_COMMITTED = Parameter("cursor", "cursor", refused=frozenset({FIRST, LAST}))

EXTENSIONS: Mapping[str, Extension] = {
    extension.name: extension
    for extension in (
        # These only change pages.
        Extension(name=CAUGHT_UP, section="9.2"),
        Extension(name=EVENT_TYPES, section="9.3"),
        Extension(name=STOP, section="9.4"),
        Extension(name=WAIT, section="9.5"),
        Extension(name=ARROW, section="9.9"),
        Extension(name=COMPACTED, section="9.14"),
        # These answer requests of their own.
        Extension(
            name=CURSOR_OF_TIME,
            section="9.6",
            path="cursor",
            parameters=(Parameter("time", "moment"), PARTITION),
            method="cursor_at",
            answer=GivenCursor,
            member="cursor",
            needs="types",
        ),
        Extension(
            name=SPLITS,
            section="9.7",
            path="splits",
            parameters=(
                PARTITION,
                Parameter("count", "number", least=1, most=MOST_SPLITS),
                _SPLIT_FROM,
                _STOP_AT,
            ),
            method="splits",
            answer=Annotated[list[GivenCursor], msgspec.Meta(min_length=2)],
            member="cursors",
            needs="types",
        ),
        Extension(
            name=LAG,
            section="9.8",
            path="lag",
            parameters=(PARTITION, Parameter("cursor", "cursor")),
            method="lag",
            answer=Lag,
            needs="types",
        ),
        Extension(
            name=CURSOR_OF_COUNT,
            section="9.10",
            path="cursor-of-count",
            parameters=(
                PARTITION,
                _BEFORE_LAST,
                Parameter("events", "number", least=1, most=MOST_COUNTED),
                _STOP_AT,
            ),
            method="cursor_of_count",
            answer=CountedCursor,
            needs="types",
        ),
        Extension(
            name=SEGMENTS,
            section="9.12",
            path="segments",
            parameters=(PARTITION, _BEFORE_LAST, _STOP_AT),
            method="segments",
            answer=Segments,
            needs="all",  # a file holds events of all partitions and types
        ),
        Extension(
            name=KEY_HISTORY,
            section="9.11",
            path="key-history",
            parameters=(
                Parameter("key", "text"),
                Parameter("after-version", "number", 0),
                Parameter("pagesizehint", "limit", None),
            ),
            method="read_key",
            answer=KeyPage,
            needs="types",
            context=frozenset({"partitions"}),
        ),
        Extension(
            name=PROGRESS,
            section="9.13",
            path="progress",
            parameters=(Parameter("consumer", "line", most=200), PARTITION, _COMMITTED),
            method="register_progress",
            answer=GivenCursor,
            member="cursor",
            context=frozenset({"principal"}),
            is_put=True,
        ),
    )
}
"""What a feed may do beyond the protocol's core, by the names that discovery announces."""
