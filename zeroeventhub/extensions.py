"""The extensions of the protocol: one row for each, with its path, parameters and answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from zeroeventhub.protocol import (
    FIRST,
    LAST,
    MOST_COUNTED,
    MOST_SPLITS,
    Appended,
    Count,
    CountedCursor,
    GivenCursor,
    KeyPage,
    Lag,
    Schemas,
    Segments,
)

# The names of extensions; EXTENSIONS has their rows, and SPEC.md a section for each.
APPEND = "append"
ARROW = "arrow"
CAUGHT_UP = "caught-up"
COMPACTED = "compacted"
CURSOR_OF_COUNT = "cursor-of-count"
CURSOR_OF_TIME = "cursor-of-time"
EVENT_TYPES = "event-types"
FORGET_PROGRESS = "forget-progress"
KEY_HISTORY = "key-history"
LAG = "lag"
PRODUCER_SEQUENCE = "producer-sequence"
PROGRESS = "progress"
SCHEMAS = "schemas"
SEGMENTS = "segments"
SPLITS = "splits"
STOP = "stop"
WAIT = "wait"

REQUIRED: Final = object()
"""The default of a required parameter."""


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a request.

    Attributes:
        name: its name on the wire.
        kind: the form of its text. A limit is a number of events that the feed bounds.
        default: the value in a request without it; REQUIRED if a request must have it.
        least: the smallest number allowed.
        most: the largest number allowed; None for no bound.
        refused: those of FIRST and LAST that the feed refuses as this cursor.
        argument: the keyword argument of the feed's method; empty for a positional one.
    """

    name: str
    kind: Literal["partition", "cursor", "moment", "number", "limit", "text", "name"]
    default: object = REQUIRED
    least: int = 0
    most: int | None = None
    refused: frozenset[str] = frozenset()
    argument: str = ""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Describe an extension of the protocol.

    Its route, requests, answers, clients' methods and conformance checks follow from this row.

    Attributes:
        name: its name in the discovery document.
        section: the section of SPEC.md that defines it.
        path: its path below the feed's; empty for an extension that only changes pages.
        parameters: the parameters of a request, in the order of the arguments of the feed's method
            and the clients'. A request with a partition has a token as well.
        method: the name of the feed's method that finds the answer.
        answer: the type that the method returns.
        member: the member of the JSON document that holds the answer; empty if the answer is the
            document.
        needs: the events that a reader must be allowed to see to use the extension: "part" for any
            part of the feed, "types" for all types of events, "all" for everything.
        context: more keyword arguments of the method: the principal's name, or the partitions that
            it may see, where it may not see all.
        verb: the method of HTTP. A PUT is answered with its cursor, and a POST has a body of
            events; two extensions may share a path if their verbs differ.
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
    verb: Literal["GET", "PUT", "DELETE", "POST"] = "GET"


PARTITION = Parameter("partition", "partition")
_STOP_AT = Parameter("stop", "cursor", None, refused=frozenset({FIRST, LAST}), argument="stop")
_BEFORE_LAST = Parameter("cursor", "cursor", refused=frozenset({LAST}))
_SPLIT_FROM = Parameter("cursor", "cursor", FIRST, refused=frozenset({LAST}), argument="start")
_COMMITTED = Parameter("cursor", "cursor", refused=frozenset({FIRST, LAST}))
_CONSUMER = Parameter("consumer", "name")
_PRODUCER = Parameter("producer", "name", None, argument="producer")
_SEQUENCE = Parameter("sequence", "number", None, least=1, most=2**53 - 1, argument="sequence")

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
            parameters=(_CONSUMER, PARTITION, _COMMITTED),
            method="register_progress",
            answer=GivenCursor,
            member="cursor",
            context=frozenset({"principal"}),
            verb="PUT",
        ),
        Extension(
            name=FORGET_PROGRESS,
            section="9.15",
            path="progress",
            parameters=(_CONSUMER,),
            method="forget_progress",
            answer=Count,
            member="partitions",
            context=frozenset({"principal"}),
            verb="DELETE",
        ),
        Extension(name=SCHEMAS, section="9.16", path="schemas", method="schemas", answer=Schemas),
        Extension(
            name=APPEND,
            section="9.17",
            path="append",
            parameters=(_PRODUCER, _SEQUENCE),
            method="append",
            answer=list[Appended],
            member="events",
            verb="POST",
        ),
        Extension(
            name=PRODUCER_SEQUENCE,
            section="9.18",
            path="append",
            parameters=(Parameter("producer", "name"),),
            method="producer_sequence",
            answer=Count,
            member="sequence",
            context=frozenset({"principal"}),
        ),
    )
}
"""The extensions of the protocol, by the names that discovery lists."""
