"""What is asked for events: by FeedAPI v2, ZeroEventHub v1, and renditions."""

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from zeroeventhub.errors import BadRequest
from zeroeventhub.protocol import EVENT_TYPES, FIRST, STOP, WAIT, FeedInfo, TypeFilter
from zeroeventhub.server.parameters.values import (
    cursor_in,
    limit_of,
    number_in,
    optional,
    place,
    required,
    seconds_in,
    some_partition,
    stop_of,
    types_of,
)

__all__ = [
    "EventsRequest",
    "HttpFeedRequest",
    "StreamRequest",
    "V1Request",
    "is_v1",
    "read_events_request",
    "read_http_feed_request",
    "read_stream_request",
    "read_v1_request",
]


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
