"""A request to a feed: what its parameters say, and what is noted of it while it is answered."""

import re
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request

from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError
from zeroeventhub.protocol import (
    PARTITION,
    REQUIRED,
    Extension,
    FeedInfo,
    Parameter,
    TypeFilter,
    is_cursor,
)
from zeroeventhub.server.auth import EVERYBODY, Principal

__all__ = [
    "FeedRequest",
    "PageRequest",
    "cursor_in",
    "number_in",
    "optional",
    "optional_number",
    "read_extension_request",
    "read_v1_request",
    "required",
    "seconds_in",
    "types_of",
]


class FeedRequest(Request):
    """Be a request of Starlette's.

    Attributes:
        principal: the reader, once it is known.
        is_public: whether the feed can be read by everybody.
        events: how many events its answer has.
        waited: for how many seconds it waited at the head.
        meanwhile: what to do while the answer is sent; None for nothing.
    """

    principal: Principal = EVERYBODY
    is_public: bool = False
    events: int = 0
    waited: float = 0.0
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None

    def parameters(self) -> QueryParams:
        """Return its parameters; it does not keep them, because thousands may wait."""
        return QueryParams(self.scope["query_string"])

    def expect_few_parameters(self) -> None:
        """Refuse a request with so many that reading them takes long."""
        if self.scope["query_string"].count(b"&") >= MOST_PARAMETERS:
            raise BadRequest(f"A request has at most {MOST_PARAMETERS:,} parameters.")


MOST_PARAMETERS = 1_000
"""Parameters of a request: reading each costs time, and a URL of 64 KiB has room for 30,000."""

MOST_TYPES = 100
_MOST_DIGITS = 18

_SECONDS_FORM = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)
_MOMENT_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)


def optional(query: QueryParams, name: str) -> str | None:
    """Return a parameter that is there once, or None."""
    values = query.getlist(name)
    if len(values) > 1:
        raise BadRequest(f"The parameter {name} is there more than once.")
    return values[0] if values else None


def required(query: QueryParams, name: str) -> str:
    """Return a parameter that has to be there, once."""
    value = optional(query, name)
    if value is None:
        raise BadRequest(f"The parameter {name} is missing.")
    return value


def number_in(text: str, name: str) -> int:
    """Return the whole number that a text is."""
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"The parameter {name} is not a whole number.")
    # Longer numbers are all the same to a feed, and costly to read.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS


def seconds_in(text: str, name: str) -> float:
    """Return the number of seconds that a text is."""
    if not _SECONDS_FORM.fullmatch(text):
        raise BadRequest(f"The parameter {name} is not a number of seconds.")
    return float(text)


def optional_number(query: QueryParams, name: str) -> int | None:
    """Return the whole number that a parameter is; None where a request does not give it."""
    text = optional(query, name)
    return None if text is None else number_in(text, name)


def cursor_in(cursor: str, refused: Collection[str] = ()) -> str:
    """Return a text that may be a cursor, and is none of those refused."""
    if not is_cursor(cursor):
        raise BadCursor("The cursor is not one that this feed has given.")
    if cursor in refused:
        raise BadCursor(f"The cursor {cursor} has no meaning here: give one that the feed gave.")
    return cursor


def moment_in(text: str, name: str) -> datetime:
    """Return the moment that a text names (RFC 3339)."""
    try:
        # Python reads more forms than RFC 3339 has, and days that UTC then does not hold.
        if _MOMENT_FORM.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        f"The parameter {name} is not a moment of RFC 3339, such as 2026-01-31T12:00:00Z."
    )


def types_of(query: QueryParams) -> TypeFilter | None:
    """Read the types to return or to skip: one or the other (SPEC 9.3)."""
    only, skipped = (
        frozenset(filter(None, (optional(query, name) or "").split(";")))
        for name in ("event-types", "skip-event-types")
    )
    if only and skipped:
        raise BadRequest("event-types and skip-event-types cannot be used at the same time.")
    names = only or skipped
    if len(names) > MOST_TYPES:
        raise BadRequest(f"A request names at most {MOST_TYPES} types of events.")
    try:
        return TypeFilter(names, skip=not only) if names else None
    except ConfigurationError as error:
        raise BadRequest(str(error)) from None


class PageRequest(NamedTuple):
    """Say which page a feed is asked for.

    Attributes:
        partition: one of the feed's.
        cursor: where to read from.
        limit: how many events to return at most.
        types: the types of events to return; None for all.
        stop: the cursor to read up to; None for the head.
        each: whether the cursor of each event is wanted.
    """

    partition: int
    cursor: str
    limit: int
    types: TypeFilter | None = None
    stop: str | None = None
    each: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What the feed's `read` is given by name: no more than was asked for."""
        named = ("types", self.types), ("stop", self.stop), ("each", self.each)
        return {name: value for name, value in named if value}


def read_v1_request(
    query: QueryParams, info: FeedInfo, count: int
) -> tuple[dict[int, str], int | None, frozenset[str]]:
    """Read a ZeroEventHub v1 request to a feed (Parameters).

    Args:
        query: its parameters.
        info: the description of the feed that the principal may see.
        count: how many partitions the feed has, with those that the principal may not see.

    Returns:
        The cursors by partition, how many events to return, None for the feed's own choice, and
        the names of headers.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form, or the feed has
            another number of partitions.
    """
    if number_in(required(query, "n"), "n") != count:
        raise BadRequest("The feed does not have n partitions: see its discovery document.")
    cursors = {
        partition: cursor_in(cursor)
        for partition in sorted(partition.id for partition in info.partitions)
        if (cursor := optional(query, f"cursor{partition}")) is not None
    }
    if not cursors:
        raise BadRequest("A cursor is missing: give cursor0, or that of another partition.")
    limit = optional_number(query, "pagesizehint")
    names = (optional(query, "headers") or "").split(",")
    return cursors, limit, frozenset(filter(None, names))


def read_extension_request(
    query: QueryParams, extension: Extension
) -> tuple[str | None, dict[str, Any]]:
    """Read a request for what an extension answers.

    Returns:
        The token, where the extension has a partition, and the values of its parameters by name.

    Raises:
        BadRequest: a parameter is missing, there twice, or not of its form.
    """
    token = required(query, "token") if PARTITION in extension.parameters else None
    return token, {one.name: _value(query, one) for one in extension.parameters}


def _value(query: QueryParams, parameter: Parameter) -> Any:
    name, least, most = parameter.name, parameter.least, parameter.most
    if parameter.default is not REQUIRED and optional(query, name) is None:
        return parameter.default
    text = required(query, name)
    match parameter.kind:
        case "text":
            return text
        case "cursor":
            return cursor_in(text, parameter.refused)
        case "moment":
            return moment_in(text, name)
        case "line":
            if not 0 < len(text) <= (most or len(text)) or not text.isprintable():
                raise BadRequest(
                    f"The parameter {name} is one line of text of 1 to {most} characters."
                )
            return text
        case "number" | "partition" | "limit":
            number = number_in(text, name)
            if most is not None and not least <= number <= most:
                raise BadRequest(f"The parameter {name} goes from {least} to {most}.")
            return number
