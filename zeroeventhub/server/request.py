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
    MOST_COUNTED,
    MOST_SPLITS,
    STOP,
    WAIT,
    FeedInfo,
    TypeFilter,
    is_cursor,
)
from zeroeventhub.server.auth import EVERYBODY, Principal

__all__ = [
    "CountRequest",
    "CursorRequest",
    "EventsRequest",
    "FeedRequest",
    "LagRequest",
    "ProgressRequest",
    "SegmentsRequest",
    "SplitsRequest",
    "StreamRequest",
    "is_v1",
    "read_count_request",
    "read_cursor_request",
    "read_events_request",
    "read_http_feed_request",
    "read_key_request",
    "read_lag_request",
    "read_progress_request",
    "read_segments_request",
    "read_splits_request",
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


def cursor_in(cursor: str) -> str:
    """Return a text that may be a cursor."""
    if not is_cursor(cursor):
        raise BadCursor("The cursor is not one that this feed has given.")
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
    if stop in {FIRST, LAST}:
        raise BadCursor("A read stops at a cursor that the feed has given.")
    return None if stop is None else cursor_in(stop)


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


LONGEST_NAME = 200


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
class ProgressRequest:
    """Hold how far which consumer has come."""

    token: str
    partition: int
    cursor: str
    consumer: str


@dataclass(frozen=True)
class SegmentsRequest:
    """Hold whose events are asked for as files."""

    token: str
    partition: int
    cursor: str
    stop: str | None


@dataclass(frozen=True)
class KeyRequest:
    """Hold what a request for the events of a key asks for.

    Attributes:
        key: the key.
        after_version: the version behind which to begin.
        limit: how many events to return; None for the feed's own choice.
    """

    key: str
    after_version: int
    limit: int | None


def read_cursor_request(query: QueryParams) -> CursorRequest:
    """Read a request for the cursor of a moment.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    text = required(query, "time")
    return CursorRequest(token, partition, moment_in(text))


def read_splits_request(query: QueryParams) -> SplitsRequest:
    """Read a request for the cursors between pieces of a partition.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    count = number_in(required(query, "count"), "count")
    if not 1 <= count <= MOST_SPLITS:
        raise BadRequest(f"The parameter count goes from 1 to {MOST_SPLITS}.")
    cursor = optional(query, "cursor")
    start = FIRST if cursor is None else cursor_in(cursor)
    if start == LAST:
        raise BadCursor("There is nothing to split behind the last event.")
    return SplitsRequest(token, partition, count, start, stop_of(query))


def read_lag_request(query: QueryParams) -> LagRequest:
    """Read a request for the number of events behind a cursor.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    return LagRequest(token, partition, cursor_in(required(query, "cursor")))


def read_count_request(query: QueryParams) -> CountRequest:
    """Read a request for the cursor behind so many events.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    events = number_in(required(query, "events"), "events")
    if not 1 <= events <= MOST_COUNTED:
        raise BadRequest(f"The parameter events goes from 1 to {MOST_COUNTED}.")
    cursor = cursor_in(required(query, "cursor"))
    if cursor == LAST:
        raise BadCursor("There is nothing to count behind the last event.")
    return CountRequest(token, partition, cursor, events, stop_of(query))


def read_progress_request(query: QueryParams) -> ProgressRequest:
    """Read a request to note how far a consumer has come.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    consumer = required(query, "consumer")
    if not 0 < len(consumer) <= LONGEST_NAME or not consumer.isprintable():
        raise BadRequest(
            f"The parameter consumer is one line of text of 1 to {LONGEST_NAME} characters."
        )
    cursor = cursor_in(required(query, "cursor"))
    if cursor in {FIRST, LAST}:
        raise BadCursor("A consumer has committed at a cursor that the feed has given.")
    return ProgressRequest(token, partition, cursor, consumer)


def read_segments_request(query: QueryParams) -> SegmentsRequest:
    """Read a request for files of events.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition = place(query)
    cursor = cursor_in(required(query, "cursor"))
    if cursor == LAST:
        raise BadCursor("There is nothing in files behind the last event.")
    return SegmentsRequest(token, partition, cursor, stop_of(query))


def read_key_request(query: QueryParams) -> KeyRequest:
    """Read a request for the events of a key.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    after = optional(query, "after-version")
    version = 0 if after is None else number_in(after, "after-version")
    return KeyRequest(required(query, "key"), version, limit_of(query))
