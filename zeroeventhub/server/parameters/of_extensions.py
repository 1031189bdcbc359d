"""What is asked of extensions."""

from dataclasses import dataclass
from datetime import datetime

from starlette.datastructures import QueryParams

from zeroeventhub.errors import BadCursor, BadRequest
from zeroeventhub.protocol import FIRST, LAST, MOST_COUNTED, MOST_SPLITS
from zeroeventhub.server.parameters.values import (
    cursor_in,
    limit_of,
    moment_in,
    number_in,
    optional,
    place,
    required,
    stop_of,
)

__all__ = [
    "CountRequest",
    "CursorRequest",
    "KeyRequest",
    "LagRequest",
    "ProgressRequest",
    "SegmentsRequest",
    "SplitsRequest",
    "read_count_request",
    "read_cursor_request",
    "read_key_request",
    "read_lag_request",
    "read_progress_request",
    "read_segments_request",
    "read_splits_request",
]

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
