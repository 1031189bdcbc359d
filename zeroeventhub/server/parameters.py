"""Read a request's parameters: each at most once, and numbers in ASCII digits only."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.datastructures import QueryParams

from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError
from zeroeventhub.protocol import (
    EVENT_TYPES,
    FIRST,
    LAST,
    STOP,
    WAIT,
    FeedInfo,
    TypeFilter,
    is_cursor,
)

__all__ = [
    "CountRequest",
    "CursorRequest",
    "EventsRequest",
    "HttpFeedRequest",
    "LagRequest",
    "SplitsRequest",
    "StreamRequest",
    "V1Request",
    "is_v1",
    "read_count_request",
    "read_cursor_request",
    "read_events_request",
    "read_http_feed_request",
    "read_lag_request",
    "read_splits_request",
    "read_stream_request",
    "read_v1_request",
]

MOST_TYPES = 100
MOST_SPLITS = 1000
MOST_COUNTED = 1_000_000
_MOST_DIGITS = 18

_SECONDS_FORM = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)
_MOMENT_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)


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
class CursorRequest:
    """Hold whose cursor is asked for, by a moment."""

    token: str
    partition: int
    moment: datetime


@dataclass(frozen=True)
class SplitsRequest:
    """Hold what is to be cut into how many pieces."""

    token: str
    partition: int
    count: int
    cursor: str
    stop: str | None


@dataclass(frozen=True)
class LagRequest:
    """Hold the place behind which events are to be counted."""

    token: str
    partition: int
    cursor: str


@dataclass(frozen=True)
class CountRequest:
    """Hold whose cursor is asked for, by how many events lie between it and another one."""

    token: str
    partition: int
    cursor: str
    events: int
    stop: str | None


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


@dataclass(frozen=True)
class V1Request:
    """Hold what a ZeroEventHub v1 request asks for (Parameters)."""

    cursors: dict[int, str]
    limit: int | None
    headers: frozenset[str]


def is_v1(query: QueryParams) -> bool:
    """Tell whether a request speaks ZeroEventHub v1: it says how many partitions it expects."""
    return "n" in query


def read_events_request(query: QueryParams, extensions: Collection[str]) -> EventsRequest:
    """Read a FeedAPI v2 request.

    Args:
        query: its parameters.
        extensions: what the feed can do; what belongs to others is passed over.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = _place(query)
    wait = _optional(query, "wait") if WAIT in extensions else None
    types = _types(query)
    return EventsRequest(
        token,
        partition,
        _cursor(_required(query, "cursor")),
        _limit(query),
        types=types if EVENT_TYPES in extensions else None,
        stop=_stop(query) if STOP in extensions else None,
        wait=0.0 if wait is None else _seconds(wait, "wait"),
    )


def read_cursor_request(query: QueryParams) -> CursorRequest:
    """Read a request for the cursor of a moment.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = _place(query)
    text = _required(query, "time")
    return CursorRequest(token, partition, _moment(text))


def read_splits_request(query: QueryParams) -> SplitsRequest:
    """Read a request for the cursors between pieces of a partition.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = _place(query)
    count = _number(_required(query, "count"), "count")
    if not 1 <= count <= MOST_SPLITS:
        raise BadRequest(f"The parameter count goes from 1 to {MOST_SPLITS}.")
    cursor = _optional(query, "cursor")
    start = FIRST if cursor is None else _cursor(cursor)
    if start == LAST:
        raise BadCursor("There is nothing to split behind the last event.")
    return SplitsRequest(token, partition, count, start, _stop(query))


def read_lag_request(query: QueryParams) -> LagRequest:
    """Read a request for the number of events behind a cursor.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = _place(query)
    return LagRequest(token, partition, _cursor(_required(query, "cursor")))


def read_count_request(query: QueryParams) -> CountRequest:
    """Read a request for the cursor behind so many events.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = _place(query)
    events = _number(_required(query, "events"), "events")
    if not 1 <= events <= MOST_COUNTED:
        raise BadRequest(f"The parameter events goes from 1 to {MOST_COUNTED}.")
    cursor = _cursor(_required(query, "cursor"))
    if cursor == LAST:
        raise BadCursor("There is nothing to count behind the last event.")
    return CountRequest(token, partition, cursor, events, _stop(query))


def read_http_feed_request(query: QueryParams) -> HttpFeedRequest:
    """Read a request of HTTP Feeds, whose timeout is in milliseconds.

    Raises:
        BadRequest: a parameter is there twice, or not of its form.
    """
    timeout = _optional(query, "timeout")
    wait = 0.0 if timeout is None else _number(timeout, "timeout") / 1000
    return HttpFeedRequest(_some_partition(query), _optional(query, "lastEventId") or None, wait)


def read_stream_request(query: QueryParams, last_event_id: str | None) -> StreamRequest:
    """Read a request for server-sent events.

    Args:
        query: its parameters.
        last_event_id: the header of a client that has been cut off; it counts before `cursor`.

    Raises:
        BadRequest: a parameter is there twice, or not of its form.
    """
    cursor = last_event_id or _optional(query, "cursor")
    start = FIRST if cursor is None else _cursor(cursor)
    return StreamRequest(_some_partition(query), start, _types(query))


def _some_partition(query: QueryParams) -> int | None:
    partition = _optional(query, "partition")
    return None if partition is None else _number(partition, "partition")


def _place(query: QueryParams) -> tuple[str, int]:
    """Read token and partition, which every request to a partition has."""
    token, partition = (_required(query, name) for name in ("token", "partition"))
    return token, _number(partition, "partition")


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
    if _number(_required(query, "n"), "n") != count:
        raise BadRequest("The feed does not have n partitions: see its discovery document.")
    cursors = {
        partition: _cursor(cursor)
        for partition in partitions
        if (cursor := _optional(query, f"cursor{partition}")) is not None
    }
    if not cursors:
        raise BadRequest("A cursor is missing: give cursor0, or that of another partition.")
    names = (_optional(query, "headers") or "").split(",")
    return V1Request(cursors, _limit(query), frozenset(filter(None, names)))


def _required(query: QueryParams, name: str) -> str:
    value = _optional(query, name)
    if value is None:
        raise BadRequest(f"The parameter {name} is missing.")
    return value


def _optional(query: QueryParams, name: str) -> str | None:
    values = query.getlist(name)
    if len(values) > 1:
        raise BadRequest(f"The parameter {name} is there more than once.")
    return values[0] if values else None


def _cursor(cursor: str) -> str:
    if not is_cursor(cursor):
        raise BadCursor("The cursor is not one that this feed has given.")
    return cursor


def _moment(text: str) -> datetime:
    try:
        # Python reads more forms than RFC 3339 has, and days that UTC then does not hold.
        if _MOMENT_FORM.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        "The parameter time is not a moment of RFC 3339, such as 2026-01-31T12:00:00Z."
    )


def _stop(query: QueryParams) -> str | None:
    stop = _optional(query, "stop")
    if stop in {FIRST, LAST}:
        raise BadCursor("A read stops at a cursor that the feed has given.")
    return None if stop is None else _cursor(stop)


def _types(query: QueryParams) -> TypeFilter | None:
    """Read the types to return or to skip (FeedAPI v2, Events endpoint: one or the other)."""
    only, skipped = (_optional(query, name) for name in ("event-types", "skip-event-types"))
    if only is not None and skipped is not None:
        raise BadRequest("event-types and skip-event-types cannot be used at the same time.")
    listed = skipped if only is None else only
    if listed is None:
        return None
    names = frozenset(filter(None, listed.split(";")))
    if len(names) > MOST_TYPES:
        raise BadRequest(f"A request names at most {MOST_TYPES} types of events.")
    try:
        return TypeFilter(names, skip=only is None)
    except ConfigurationError as error:
        raise BadRequest(str(error)) from None


def _limit(query: QueryParams) -> int | None:
    hint = _optional(query, "pagesizehint")
    return None if hint is None else _number(hint, "pagesizehint")


def _seconds(text: str, name: str) -> float:
    if not _SECONDS_FORM.fullmatch(text):
        raise BadRequest(f"The parameter {name} is not a number of seconds.")
    return float(text)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"The parameter {name} is not a whole number.")
    # Longer numbers are all the same to a feed, and costly to read.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS
