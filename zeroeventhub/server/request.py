"""A request to a feed: what its parameters say, and what is noted of it while it is answered."""

import re
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError
from zeroeventhub.protocol import (
    EVENT_TYPES,
    FIRST,
    LAST,
    PARTITION,
    REQUIRED,
    STOP,
    WAIT,
    Extension,
    FeedInfo,
    Parameter,
    TypeFilter,
    is_cursor,
)
from zeroeventhub.server.auth import EVERYBODY, Principal

__all__ = [
    "EventsRequest",
    "FeedRequest",
    "StreamRequest",
    "is_v1",
    "read_events_request",
    "read_extension_request",
    "read_http_feed_request",
    "read_stream_request",
    "read_v1_request",
]


class FeedRequest(Request):
    """Be a request of Starlette's.

    Attributes:
        principal: who asks, once that is known.
        events: how many events its answer has.
        waited: for how many seconds it waited at the head.
        meanwhile: what to do while the answer is sent; None for nothing.
    """

    principal: Principal = EVERYBODY
    events: int = 0
    waited: float = 0.0
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None


MOST_TYPES = 100
_MOST_DIGITS = 18

_SECONDS_FORM = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)
_MOMENT_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)


def required(query: QueryParams, name: str) -> str:
    """Return a parameter that has to be there, once."""
    value = optional(query, name)
    if value is None:
        raise BadRequest(f"The parameter {name} is missing.")
    return value


def optional(query: QueryParams, name: str) -> str | None:
    """Return a parameter that is there once, or None."""
    values = query.getlist(name)
    if len(values) > 1:
        raise BadRequest(f"The parameter {name} is there more than once.")
    return values[0] if values else None


def some_partition(query: QueryParams) -> int | None:
    """Return the partition; None if none is named."""
    partition = optional(query, "partition")
    return None if partition is None else number_in(partition, "partition")


def place(query: QueryParams) -> tuple[str, int]:
    """Read token and partition, which every request to a partition has."""
    token, partition = (required(query, name) for name in ("token", "partition"))
    return token, number_in(partition, "partition")


def cursor_in(cursor: str, refused: Collection[str] = ()) -> str:
    """Return a text that may be a cursor, and is none of those refused."""
    if not is_cursor(cursor):
        raise BadCursor("The cursor is not one that this feed has given.")
    if cursor in refused:
        raise BadCursor(f"The cursor {cursor} has no meaning here.")
    return cursor


def moment_in(text: str) -> datetime:
    """Return the moment that a text names (RFC 3339)."""
    try:
        # Python reads more forms than RFC 3339 has, and days that UTC then does not hold.
        if _MOMENT_FORM.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        "The parameter time is not a moment of RFC 3339, such as 2026-01-31T12:00:00Z."
    )


def stop_of(query: QueryParams) -> str | None:
    """Return the cursor to read up to; None for the head."""
    stop = optional(query, "stop")
    return None if stop is None else cursor_in(stop, {FIRST, LAST})


def types_of(query: QueryParams) -> TypeFilter | None:
    """Read the types to return or to skip: one or the other (SPEC 9.3)."""
    only, skipped = (_names(query, name) for name in ("event-types", "skip-event-types"))
    if only and skipped:
        raise BadRequest("event-types and skip-event-types cannot be used at the same time.")
    names = only or skipped
    if len(names) > MOST_TYPES:
        raise BadRequest(f"A request names at most {MOST_TYPES} types of events.")
    try:
        return TypeFilter(names, skip=not only) if names else None
    except ConfigurationError as error:
        raise BadRequest(str(error)) from None


def _names(query: QueryParams, parameter: str) -> frozenset[str]:
    return frozenset(filter(None, (optional(query, parameter) or "").split(";")))


def limit_of(query: QueryParams) -> int | None:
    """Return how many events are asked for; None where nobody says."""
    hint = optional(query, "pagesizehint")
    return None if hint is None else number_in(hint, "pagesizehint")


def seconds_in(text: str, name: str) -> float:
    """Return the number of seconds that a text is."""
    if not _SECONDS_FORM.fullmatch(text):
        raise BadRequest(f"The parameter {name} is not a number of seconds.")
    return float(text)


def number_in(text: str, name: str) -> int:
    """Return the whole number that a text is."""
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"The parameter {name} is not a whole number.")
    # Longer numbers are all the same to a feed, and costly to read.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS


@dataclass(frozen=True)
class EventsRequest:
    """Hold what a FeedAPI v2 request asks for (Events endpoint, Request).

    Attributes:
        token: the version of the partition layout that the consumer knows.
        partition: the partition's id.
        cursor: where to read from.
        limit: how many events to return; None for the feed's own choice.
        types: the types of events to return; None for all.
        stop: the cursor to read up to; None for the head.
        wait: seconds to wait at the head for something to read.
    """

    token: str
    partition: int
    cursor: str
    limit: int | None
    types: TypeFilter | None = None
    stop: str | None = None
    wait: float = 0.0


@dataclass(frozen=True)
class V1Request:
    """Hold what a ZeroEventHub v1 request asks for (Parameters)."""

    cursors: dict[int, str]
    limit: int | None
    headers: frozenset[str]


@dataclass(frozen=True)
class HttpFeedRequest:
    """Hold what a client of HTTP Feeds asks for (HTTP Feeds, Polling).

    Attributes:
        partition: the partition's id; None where the client does not know of any.
        last_event_id: the last event that it has; None if it has none.
        wait: seconds to wait at the head for something to read.
    """

    partition: int | None
    last_event_id: str | None
    wait: float


@dataclass(frozen=True)
class StreamRequest:
    """Hold what a client of server-sent events asks for.

    Attributes:
        partition: the partition's id; None where the client does not know of any.
        cursor: where to read from.
        types: the types of events to send; None for all.
    """

    partition: int | None
    cursor: str
    types: TypeFilter | None


def is_v1(query: QueryParams) -> bool:
    """Tell whether a request speaks ZeroEventHub v1: it says how many partitions it expects."""
    return "n" in query


def read_events_request(query: QueryParams, extensions: Collection[str]) -> EventsRequest:
    """Read a FeedAPI v2 request.

    Args:
        query: its parameters.
        extensions: what the feed can do; the parameters of other extensions are ignored.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    wait = optional(query, "wait") if WAIT in extensions else None
    return EventsRequest(
        token,
        partition,
        cursor_in(required(query, "cursor")),
        limit_of(query),
        types=types_of(query) if EVENT_TYPES in extensions else None,
        stop=stop_of(query) if STOP in extensions else None,
        wait=0.0 if wait is None else seconds_in(wait, "wait"),
    )


def read_v1_request(query: QueryParams, info: FeedInfo, count: int) -> V1Request:
    """Read a ZeroEventHub v1 request to a feed.

    Args:
        query: its parameters.
        info: what the feed says of itself to whoever asks.
        count: how many partitions it has, those with them that it does not tell of.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form, or the feed has
            another number of partitions.
    """
    partitions = sorted(partition.id for partition in info.partitions)
    if number_in(required(query, "n"), "n") != count:
        raise BadRequest("The feed does not have n partitions: see its discovery document.")
    cursors = {
        partition: cursor_in(cursor)
        for partition in partitions
        if (cursor := optional(query, f"cursor{partition}")) is not None
    }
    if not cursors:
        raise BadRequest("A cursor is missing: give cursor0, or that of another partition.")
    names = (optional(query, "headers") or "").split(",")
    return V1Request(cursors, limit_of(query), frozenset(filter(None, names)))


def read_http_feed_request(query: QueryParams) -> HttpFeedRequest:
    """Read a request of HTTP Feeds, whose timeout is in milliseconds.

    Raises:
        BadRequest: a parameter is there twice, or not of its form.
    """
    timeout = optional(query, "timeout")
    wait = 0.0 if timeout is None else number_in(timeout, "timeout") / 1000
    last = optional(query, "lastEventId")
    # Clients in JavaScript send the text "null" where they have no event yet.
    return HttpFeedRequest(some_partition(query), None if last in {"", "null"} else last, wait)


def read_stream_request(
    query: QueryParams, last_event_id: str | None, extensions: Collection[str]
) -> StreamRequest:
    """Read a request for server-sent events.

    Args:
        query: its parameters.
        last_event_id: the header of a client that has been cut off; it counts before `cursor`.
        extensions: what the feed can do; the parameters of other extensions are ignored.

    Raises:
        BadRequest: a parameter is there twice, or not of its form.
    """
    cursor = last_event_id or optional(query, "cursor")
    start = FIRST if cursor is None else cursor_in(cursor)
    types = types_of(query) if EVENT_TYPES in extensions else None
    return StreamRequest(some_partition(query), start, types)


def read_extension_request(
    query: QueryParams, extension: Extension
) -> tuple[str | None, dict[str, Any]]:
    """Read a request for what a feed has beside its events.

    Returns:
        The token, where the extension has a partition, and the values of its parameters by name.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token = required(query, "token") if PARTITION in extension.parameters else None
    return token, {one.name: _value(query, one) for one in extension.parameters}


def _value(query: QueryParams, parameter: Parameter) -> Any:
    text = optional(query, parameter.name)
    if text is None:
        if parameter.default is REQUIRED:
            raise BadRequest(f"The parameter {parameter.name} is missing.")
        return parameter.default
    match parameter.kind:
        case "cursor":
            return cursor_in(text, parameter.refused)
        case "moment":
            return moment_in(text)
        case "text":
            return text
        case "line":
            return _line_in(text, parameter)
    number = number_in(text, parameter.name)
    if parameter.most is not None and not parameter.least <= number <= parameter.most:
        raise BadRequest(
            f"The parameter {parameter.name} goes from {parameter.least} to {parameter.most}."
        )
    return number


def _line_in(text: str, parameter: Parameter) -> str:
    """Return a text that is one line."""
    if not 0 < len(text) <= (parameter.most or len(text)) or not text.isprintable():
        raise BadRequest(
            f"The parameter {parameter.name} is one line of text of 1 to {parameter.most} "
            "characters."
        )
    return text
