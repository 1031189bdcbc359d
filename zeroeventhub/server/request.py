"""A request to a feed: its parameters, and what its principal may see, all else being absent."""

import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from starlette.requests import Request

from zeroeventhub.errors import (
    BadCursor,
    BadRequest,
    ConfigurationError,
    FeedFailure,
    NotFound,
    TokenChanged,
)
from zeroeventhub.extensions import (
    EVENT_TYPES,
    EXTENSIONS,
    PARTITION,
    REQUIRED,
    STOP,
    WAIT,
    Extension,
    Parameter,
)
from zeroeventhub.protocol import (
    FIRST,
    LAST,
    NAME_LENGTH,
    FeedInfo,
    Partition,
    TypeFilter,
    is_cursor,
    is_name,
)
from zeroeventhub.server.auth import EVERYBODY, Account, Authorize, Principal


class FeedRequest(Request):
    """A request of Starlette's."""

    hook: Authorize | None = None  # identifies the reader; None for a public feed
    principal: Principal = EVERYBODY  # the reader, once it is identified
    account: Account | None = None  # the reader's, in which the request counts; None if in none
    events: int = 0  # in the response
    waited: float = 0.0  # seconds that the request waited at the head
    # What the server does while it sends the response.
    meanwhile: Callable[[], Coroutine[Any, Any, object]] | None = None


MOST_PARAMETERS = 1_000
"""Parameters of a request: reading each costs time, and a URL of 64 KiB has room for 30,000."""

MOST_TYPES = 100
_MOST_DIGITS = 18

DEFAULT_LIMIT = 1_000
"""The maximum number of events of a page if the request does not set it."""

_SECONDS_FORM = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)
_MOMENT_FORM = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)


def parameters(request: Request, *required: str, optional: Collection[str] = ()) -> dict[str, str]:
    """Return the parameters with these names, each of which may occur once; ignore the rest."""
    found: dict[str, str] = {}
    text = request.scope["query_string"].decode("latin-1")
    is_encoded = "%" in text or "+" in text
    for pair in text.split("&"):
        name, _, value = pair.partition("=")
        if is_encoded:  # few requests are, and to decode takes longer than the rest
            name, value = unquote_plus(name), unquote_plus(value)
        if name in required or name in optional:
            if name in found:
                raise BadRequest(f"The parameter {name} occurs more than once.")
            found[name] = value
    for name in required:
        if name not in found:
            raise BadRequest(f"The parameter {name} is missing.")
    return found


def number_in(text: str, name: str) -> int:
    """Return the whole number that a text is."""
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"The parameter {name} is not a whole number.")
    # A feed treats all longer numbers alike, and they are costly to parse.
    return int(text) if len(text) <= _MOST_DIGITS else 10**_MOST_DIGITS


def limit_in(text: str | None, most: int) -> int:
    """Return the maximum number of events of a page; None asks for the default."""
    limit = DEFAULT_LIMIT if text is None else number_in(text, "pagesizehint")
    return min(max(limit, 1), most)


def cursor_in(cursor: str, refused: Collection[str] = ()) -> str:
    """Return a text that may be a cursor and is not one of those refused."""
    if not is_cursor(cursor):
        raise BadCursor("The cursor is not one that this feed has given.")
    if cursor in refused:
        raise BadCursor(f"The cursor {cursor} has no meaning here: give one that the feed gave.")
    return cursor


def types_of(query: dict[str, str], principal: Principal) -> TypeFilter | None:
    """Return the filter of a request (SPEC 9.3) that a principal may see; None for all types."""
    only = frozenset(filter(None, query.get("event-types", "").split(";")))
    skipped = frozenset(filter(None, query.get("skip-event-types", "").split(";")))
    if only and skipped:
        raise BadRequest("event-types and skip-event-types cannot be used at the same time.")
    names = only or skipped
    if len(names) > MOST_TYPES:
        raise BadRequest(f"A request names at most {MOST_TYPES} types of events.")
    try:
        asked = TypeFilter(names, skip=not only) if names else None
    except ConfigurationError as error:
        raise BadRequest(str(error)) from None
    return asked if principal.types is None else principal.narrowed(asked)


class PageRequest(NamedTuple):
    """A page to read from a feed."""

    partition: int
    cursor: str  # where the page begins
    limit: int  # the maximum number of events
    types: TypeFilter | None = None  # of the events to return; None for all
    stop: str | None = None  # the cursor at which the page ends at the latest; None for the head
    each: bool = False  # whether the feed returns the cursor of each event

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the feed's `read`: only those that were requested."""
        return dict(filter(itemgetter(1), zip(self._fields[3:], self[3:], strict=True)))


NO_PARTITION = "The feed has no such partition."
"""The text for a partition that does not exist, and for one that the principal may not see."""


def expect_partition(info: FeedInfo, token: str, partition: int) -> None:
    """Raise if the feed has another token by now, or if it has no such partition."""
    if token != info.token:
        raise TokenChanged(
            f"The feed's token is {info.token!r}: it changes with the partitions. A GET of the "
            "feed's address without parameters shows both."
        )
    for known in info.partitions:
        if known.id == partition:
            return
    raise BadRequest(NO_PARTITION)


def read_page_request(request: FeedRequest, info: FeedInfo, most: int) -> tuple[PageRequest, float]:
    """Read a request for a page of at most `most` events (FeedAPI v2, Events endpoint).

    Parameters of extensions that the feed lacks are ignored.

    Returns:
        The page, of the types that the principal may see, and the seconds to wait for it.
    """
    optional = {"pagesizehint"} | (info.extensions & {STOP, WAIT, EVENT_TYPES})
    if EVENT_TYPES in optional:
        optional.add("skip-event-types")
    query = parameters(request, "token", "partition", "cursor", optional=optional)
    partition = number_in(query["partition"], "partition")
    wait, stop = query.get("wait", "0"), query.get("stop")
    if not _SECONDS_FORM.fullmatch(wait):
        raise BadRequest("The parameter wait is not a number of seconds.")
    wanted = PageRequest(
        partition,
        cursor_in(query["cursor"]),
        limit_in(query.get("pagesizehint"), most),
        types_of(query, request.principal),
        None if stop is None else cursor_in(stop, {FIRST, LAST}),
    )
    expect_partition(info, query["token"], partition)
    return wanted, float(wait)


def read_v1_request(
    request: FeedRequest, info: FeedInfo, count: int, most: int
) -> tuple[dict[int, str], int, frozenset[str]]:
    """Read a request of ZeroEventHub v1 to a feed with `count` partitions, visible ones or not.

    Returns:
        The cursors by partition, the number of events to return, and the names of headers.
    """
    known = sorted(partition.id for partition in info.partitions)
    names = {f"cursor{partition}": partition for partition in known}
    query = parameters(request, "n", optional={"pagesizehint", "headers", *names})
    if number_in(query["n"], "n") != count:
        raise BadRequest("The feed does not have n partitions: see its discovery document.")
    cursors = {names[name]: cursor_in(query[name]) for name in names if name in query}
    if not cursors:
        raise BadRequest("A cursor is missing: give cursor0, or that of another partition.")
    headers = frozenset(filter(None, query.get("headers", "").split(",")))
    return cursors, limit_in(query.get("pagesizehint"), most), headers


def read_extension_request(
    request: FeedRequest, extension: Extension, info: FeedInfo, most: int
) -> dict[str, Any]:
    """Return the parameters of a request to the path of an extension, by name."""
    required = [one.name for one in extension.parameters if one.default is REQUIRED]
    optional = [one.name for one in extension.parameters if one.default is not REQUIRED]
    if PARTITION in extension.parameters:
        required.insert(0, "token")
    query = parameters(request, *required, optional=optional)
    values: dict[str, Any] = {}
    for one in extension.parameters:
        if one.kind == "limit":
            values[one.name] = limit_in(query.get(one.name), most)
        else:
            given = one.name in query
            values[one.name] = _value(query[one.name], one) if given else one.default
    if "token" in query:
        expect_partition(info, query["token"], values["partition"])
    return values


def _value(text: str, parameter: Parameter) -> Any:
    name, least, most = parameter.name, parameter.least, parameter.most
    match parameter.kind:
        case "text":
            return text
        case "cursor":
            return cursor_in(text, parameter.refused)
        case "moment":
            try:
                # Python accepts more forms than RFC 3339, and times that are out of range in UTC.
                if _MOMENT_FORM.fullmatch(text):
                    return datetime.fromisoformat(text.upper()).astimezone(UTC)
            except (ValueError, OverflowError):
                pass
            raise BadRequest(
                f"The parameter {name} is not a moment of RFC 3339, such as 2026-01-31T12:00:00Z."
            )
        case "name":
            if is_name(text):
                return text
            raise BadRequest(
                f"The parameter {name} is one line of text of 1 to {NAME_LENGTH} characters, "
                "without a space at its end."
            )
        case _:
            number = number_in(text, name)
            if most is not None and not least <= number <= most:
                raise BadRequest(f"The parameter {name} goes from {least} to {most}.")
            return number


def visible_info(info: FeedInfo, principal: Principal) -> FeedInfo:
    """Return a feed's description, of what a principal may see."""
    hidden, may_read = {"all"}, principal.may_read
    if principal.types is not None:
        hidden = {"all", "types"}
        if EVENT_TYPES not in info.extensions:
            raise FeedFailure(
                "A principal may not see all types of events, and this feed cannot tell them "
                "apart, so it shows nothing: name a column of text as the type of its "
                "TableFeed, or give principals without types."
            )
    partitions = info.partitions
    if principal.partitions is not None:
        partitions = tuple(_shown(one, may_read) for one in partitions if may_read(one.id))
    extensions = info.extensions - {
        name for name, extension in EXTENSIONS.items() if extension.needs in hidden
    }
    return replace(info, partitions=partitions, extensions=extensions)


def _shown(partition: Partition, may_read: Callable[[int], bool]) -> Partition:
    """Return a partition without those before it that may not be read."""
    after, before = partition.starts_after, partition.cursor_from
    if (after is None or may_read(after)) and all(map(may_read, before)):
        return partition  # most are, and each request of the reader looks at all of them
    return replace(
        partition,
        starts_after=after if after is not None and may_read(after) else None,
        cursor_from=tuple(filter(may_read, before)),
    )


def only_partition(info: FeedInfo, query: Mapping[str, str]) -> int:
    """Return the partition of a request, which may leave it out if the feed has only one."""
    known = [one.id for one in info.partitions]
    if "partition" not in query:
        if len(known) == 1:
            return known[0]
        raise BadRequest("The feed has several partitions: say partition=… as well.")
    partition = number_in(query["partition"], "partition")
    if partition not in known:
        raise BadRequest(NO_PARTITION)
    return partition


def expect_extension(info: FeedInfo, extension: str) -> None:
    """Raise if the feed does not have an extension."""
    if extension not in info.extensions:
        raise NotFound(f"This feed does not have the extension {extension}.")
