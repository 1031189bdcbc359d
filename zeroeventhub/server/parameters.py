"""Read a request's parameters: each at most once, and numbers in ASCII digits only."""

from dataclasses import dataclass

from starlette.datastructures import QueryParams

from zeroeventhub.errors import BadCursor, BadRequest
from zeroeventhub.protocol import FeedInfo

__all__ = ["EventsRequest", "V1Request", "is_v1", "read_events_request", "read_v1_request"]

LONGEST_CURSOR = 4096
_MOST_DIGITS = 18


@dataclass(frozen=True)
class EventsRequest:
    """Hold what a FeedAPI v2 request asks for (Events endpoint, Request)."""

    token: str
    partition: int
    cursor: str
    limit: int | None


@dataclass(frozen=True)
class V1Request:
    """Hold what a ZeroEventHub v1 request asks for (Parameters)."""

    cursors: dict[int, str]
    limit: int | None
    headers: frozenset[str]


def is_v1(query: QueryParams) -> bool:
    """Tell whether a request speaks ZeroEventHub v1: it says how many partitions it expects."""
    return "n" in query


def read_events_request(query: QueryParams) -> EventsRequest:
    """Read a FeedAPI v2 request.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token, partition, cursor = (_required(query, name) for name in ("token", "partition", "cursor"))
    return EventsRequest(token, _number(partition, "partition"), _cursor(cursor), _limit(query))


def read_v1_request(query: QueryParams, info: FeedInfo) -> V1Request:
    """Read a ZeroEventHub v1 request to a feed.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form, or the feed has
            another number of partitions.
    """
    partitions = sorted(partition.id for partition in info.partitions)
    if _number(_required(query, "n"), "n") != len(partitions):
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
    """Check a cursor's alphabet: printable ASCII (ZeroEventHub v1, Parameters)."""
    if not (cursor and cursor.isascii() and cursor.isprintable() and len(cursor) <= LONGEST_CURSOR):
        raise BadCursor("The cursor is not one that this feed has given.")
    return cursor


def _limit(query: QueryParams) -> int | None:
    hint = _optional(query, "pagesizehint")
    return None if hint is None else _number(hint, "pagesizehint")


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"The parameter {name} is not a whole number.")
    # Longer numbers are all the same to a feed, and costly to read.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS
