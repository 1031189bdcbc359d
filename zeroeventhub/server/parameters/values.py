"""Read single parameters: each at most once, and numbers in ASCII digits only."""

import re
from datetime import UTC, datetime

from starlette.datastructures import QueryParams

from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError
from zeroeventhub.protocol import FIRST, LAST, TypeFilter, is_cursor

__all__ = [
    "cursor_in",
    "limit_of",
    "moment_in",
    "number_in",
    "optional",
    "place",
    "required",
    "seconds_in",
    "some_partition",
    "stop_of",
    "types_of",
]

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
