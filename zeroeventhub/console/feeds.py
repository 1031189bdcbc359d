"""Feeds for the console: read over their own routes, with the rights of who looks."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from zeroeventhub.client import AsyncClient
from zeroeventhub.errors import (
    BadCursor,
    BadRequest,
    ConfigurationError,
    Gone,
    NotFound,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.extensions import CURSOR_OF_COUNT, CURSOR_OF_TIME, LAG, PROGRESS, SEGMENTS, SPLITS
from zeroeventhub.protocol import FIRST, LAST, MOST_COUNTED, FeedInfo, Lag, Partition
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.server.app import Answer, FeedApp, RouteApp
from zeroeventhub.server.request import NO_PARTITION, FeedRequest, parameters
from zeroeventhub.server.responses import FRESH
from zeroeventhub.wire.problem import error_of, problem_in

AT_ONCE = 4
"""Requests of one page of the console that a feed answers at once."""

MOST_HOURS = 24 * 31

WINDOW = 60.0
"""Seconds over which the present rate of a partition is measured."""

SLOT = 900.0
"""Seconds between two points of the past of registered consumers' lag."""

SLOTS = 24

MOST_REPORTED = 500
"""Consumers' partitions whose last cursor is kept for each slot."""

MOST_PAST = 480
"""Counts that a plot of the past of consumers' lag takes, about; it has fewer points for many."""

MOST_LAGS = 200
"""Registered cursors whose lag a page counts; of more, only those of one partition."""

SHARE = 100
"""A count is repeated when this many times its own duration has passed."""

_OWN_HEADERS = {
    *(b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host"),
    *(b"if-none-match", b"if-modified-since", b"transfer-encoding", b"user-agent"),
}
"""Headers of a browser's request that are not passed on to a feed of this process."""

UNANSWERED = (ZeroEventHubError, HTTPException)
"""What a feed raises that does not answer: an error of the client, or of the host by its hook."""

_Found = TypeVar("_Found")


class Counted(NamedTuple):
    """The events of a partition, and an earlier count; times are of the monotonic clock."""

    found: Lag
    at: float  # when they were counted
    due: float  # when they may be counted again
    base: tuple[float, int]  # when they were counted before, and how many there were


@dataclass(frozen=True)
class ConsoleFeed:
    """A feed that a console shows."""

    name: str  # in the console's addresses
    path: str = ""  # where it is mounted in the same application; empty for a feed elsewhere
    router: Router | None = None  # of a feed of this process
    client: AsyncClient | None = None  # of a feed elsewhere
    counts: dict[int, Counted] = field(default_factory=dict)  # by partition
    # By the number of a slot of time, the last cursor that was registered in it, by principal,
    # consumer and partition.
    reported: dict[int, dict[tuple[str, str, int], str]] = field(default_factory=dict)

    def report(self, principal: str, consumer: str, partition: int, cursor: str) -> None:
        """Keep the cursor that a consumer has registered, as its last one of the present slot."""
        kept, key = self.reported.setdefault(_slot(), {}), (principal, consumer, partition)
        if key in kept or len(kept) < MOST_REPORTED:
            kept[key] = cursor
        if len(self.reported) > SLOTS:
            del self.reported[min(self.reported)]

    def reader(self, request: Request) -> "Reader":
        """Return what reads the feed for the person who sent a request.

        A feed of this process gets the browser's headers, session and address, so that its own
        hook decides what is seen; a feed elsewhere gets what its client was given. A request that
        waits at the head ends when the browser has gone.
        """
        if self.client is not None:
            return Reader(self, copy(self.client), None)
        # It need not be closed: it opens no connection.
        transport = httpx.ASGITransport(partial(self._pass_on, request))
        http = httpx.AsyncClient(transport=transport, trust_env=False)
        return Reader(self, AsyncClient(f"http://feed{self.path}", http), http)

    async def _pass_on(self, request: Request, own: Any, _receive: Any, send: Any) -> None:
        assert self.router is not None  # noqa: S101 - as a feed elsewhere has a client
        headers = [pair for pair in request.scope["headers"] if pair[0] not in _OWN_HEADERS]
        kept = {name: own[name] for name in ("method", "path", "raw_path", "query_string")}
        kept |= {"root_path": "", "headers": [*headers, *own["headers"]]}
        await self.router({**request.scope, **kept}, request.receive, send)


def console_feed(
    name: str, given: Sequence[BaseRoute] | AsyncClient, console: str, *, tells_names: bool
) -> ConsoleFeed:
    """Return the feed of what `feed_routes` returned in this process, or of a client.

    A browser that opens the address of a feed of this process is sent to its page below `console`.
    Readers without a name see those of writers and consumers only with `tells_names`.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(given, AsyncClient):
        return ConsoleFeed(name, client=given)
    found = [
        (route.path, route.app)
        for route in given
        if isinstance(route, Route) and isinstance(route.app, RouteApp)
        if "GET" in (route.methods or ())
    ]
    root = next((pair for pair in found if pair[1].route == "discovery"), None)
    if root is None:
        raise ConfigurationError(
            f"Feed {name!r} is neither what feed_routes returned nor an AsyncClient."
        )
    path, watched = root[0], root[1].app
    # What the console reads counts neither in the feed's telemetry nor in what it shows.
    quiet = replace(watched, observer=None, console="", answers=Counter())
    answers: dict[str, Answer] = {"status": partial(_status, watched, tells_names), "find": _find}
    routes = [Route(at, RouteApp(quiet, app.route, app.answer)) for at, app in found]
    below = path.rstrip("/")
    routes += [
        Route(f"{below}/console:{route}", RouteApp(quiet, route, answer))
        for route, answer in answers.items()
    ]
    up = "../" * (path.count("/") - 1)
    watched.console = f"{up}{console}/feeds/{name}" if console else f"{up}feeds/{name}"
    feed = ConsoleFeed(name, path, Router(routes))
    watched.on_progress = feed.report
    return feed


async def _status(
    watched: FeedApp, tells_names: bool, app: FeedApp, request: FeedRequest
) -> Response:
    """Answer with what only the publisher knows: all to a principal that may see everything.

    Names of writers and consumers are for those who have a name themselves.
    """
    info, principal = await app.runner.info(request), request.principal
    # Its cursor after a position has no partition, so that all partitions have one numbering.
    document: dict[str, Any] = {"has_one_head": app.runner.has("cursor_after")}
    if principal.partitions is None and principal.types is None:
        document["readers"] = {"waiting": app.runner.waiting, **_readers(watched.answers)}
        is_told = tells_names or bool(principal.name)
        if app.runner.has("horizon"):
            horizon, now = await app.runner.call("horizon"), datetime.now(UTC)
            blockers = [
                {
                    **{name: getattr(one, name) for name in ("pid", "user", "application")},
                    "since": now - one.age,
                    "last_statement": None if one.query_age is None else now - one.query_age,
                }
                for one in horizon.blockers
                if is_told
            ]
            document["horizon"] = {**vars(horizon), "blockers": blockers}
        if is_told and app.runner.has("registered") and PROGRESS in info.extensions:
            document["registered"] = await app.runner.call("registered")
    body = msgspec.json.encode(document)
    return Response(body, media_type="application/json", headers=FRESH)


def _readers(answers: Counter[tuple[str, int, str]]) -> dict[str, Any]:
    """Count what a feed has answered since its process began, and its refusals by their kind."""
    pages = unchanged = 0
    refusals = Counter[tuple[int, str]]()
    for (route, status, kind), count in answers.items():
        pages += count if route == "events" and status == httpx.codes.OK else 0
        unchanged += count if status == httpx.codes.NOT_MODIFIED else 0
        if status >= httpx.codes.BAD_REQUEST:
            refusals[status, kind] += count
    found = [
        {"kind": kind, "status": status, "count": count}
        for (status, kind), count in sorted(refusals.items())
    ]
    return {"pages": pages, "unchanged": unchanged, "refusals": found}


async def _find(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the cursors around the event of an id, in the partition that has it."""
    query = parameters(request, "id")
    info = await app.runner.info(request)
    if not (app.runner.has("cursor_of") and app.runner.has("cursor_after")):
        raise NotFound("This feed cannot look up events by their id.")
    types = request.principal.narrowed(None)
    options: dict[str, Any] = {} if types is None else {"types": types}
    for one in info.partitions:
        try:
            after = await app.runner.call("cursor_of", query["id"], one.id, **options)
        except BadCursor:
            continue
        before = await app.runner.call("cursor_after", Place.of(after).position - 1)
        # An id that is a position has a cursor in every partition, the event is in one.
        page = await app.runner.call("read", one.id, before, 1, stop=after, **options)
        if page.events:
            found = {"partition": one.id, "before": before, "after": after}
            return Response(msgspec.json.encode(found), headers=FRESH)
    raise BadCursor("No event of this feed has this id.")


@dataclass(frozen=True)
class Reader:
    """Reads a feed with the rights of who looks."""

    feed: ConsoleFeed
    client: AsyncClient
    http: httpx.AsyncClient | None  # of a feed of this process; None of another
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def own(self, route: str, **query: str) -> dict[str, Any]:
        """Ask the publisher for what is in no discovery document; nothing for a feed elsewhere."""
        if self.http is None:
            return {}
        below = self.feed.path.rstrip("/")
        answer = await self.http.get(f"http://feed{below}/console:{route}", params=query)
        if answer.status_code != httpx.codes.OK:
            problem = problem_in(answer.content)
            raise error_of(problem, answer.status_code, problem.detail)
        found: dict[str, Any] = answer.json()
        return found

    async def side_by_side(self, calls: Iterable[Callable[[], Awaitable[_Found]]]) -> list[_Found]:
        """Make some calls at once, and return their results in order."""

        async def one(call: Callable[[], Awaitable[_Found]]) -> _Found:
            async with self._free:
                return await call()

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]


async def overview(reader: Reader) -> dict[str, Any]:
    """Describe a feed in a line."""
    info = await reader.client.discover()
    status = await reader.own("status")
    return {
        "name": reader.feed.name,
        "partitions": len(info.partitions),
        "extensions": sorted(info.extensions),
        "waiting": status.get("readers", {}).get("waiting"),
        "horizon": await _horizon(reader, info, status),
    }


async def describe(reader: Reader, chosen: int | None) -> dict[str, Any]:
    """Describe a feed, its partitions, its horizon and its readers.

    More is told of the chosen partition, by default the first one.
    """
    client = reader.client
    info = await client.discover()
    status = await reader.own("status")
    head = None
    if status.get("has_one_head") and info.partitions:
        with suppress(Unavailable):  # the rows say why
            head = (await client.fetch(info.partitions[0].id, LAST, limit=1)).cursor
    asked = [partial(_partition, reader, info, one, head) for one in info.partitions]
    rows = await reader.side_by_side(asked)
    return {
        "name": reader.feed.name,
        "token": info.token,
        "exactly_once": info.exactly_once,
        "extensions": sorted(info.extensions),
        "partitions": rows,
        "chosen": await _chosen(reader, info, rows, chosen),
        "horizon": await _horizon(reader, info, status),
        "readers": status.get("readers"),
        "registered": await _registered(reader, info, status, chosen),
    }


async def _horizon(reader: Reader, info: FeedInfo, status: dict[str, Any]) -> dict[str, Any] | None:
    """Describe the horizon, and since when which transactions hold it back.

    Of a feed elsewhere only its age is known, if the publisher tells it with a lag.
    """
    if reader.http is not None or LAG not in info.extensions or not info.partitions:
        found: dict[str, Any] | None = status.get("horizon")
        return found
    try:
        age = (await reader.client.lag(info.partitions[0].id, LAST)).held_back
    except Unavailable:  # the row of the partition says why
        return None
    unknown = dict.fromkeys(("settled", "drawn", "blockers", "unpublished"))
    return None if age is None else {**unknown, "age": age}


async def _registered(
    reader: Reader, info: FeedInfo, status: dict[str, Any], chosen: int | None
) -> list[dict[str, Any]] | None:
    """Return the consumers that register their progress, with their lag."""
    if "registered" not in status:
        return None
    found = _consumers(status, info, chosen)
    # Each once, as consumers that have caught up have the same cursors.
    places = [*{(one["partition"], one["cursor"]) for one in found}]
    asked = [partial(_lag_or_none, reader.client, info, *place) for place in places]
    lags = dict(zip(places, await reader.side_by_side(asked), strict=True))
    return [{**one, "lag": lags[one["partition"], one["cursor"]]} for one in found]


def _consumers(status: dict[str, Any], info: FeedInfo, chosen: int | None) -> list[dict[str, Any]]:
    """Return the registered consumers, of many only those in the chosen or the first partition."""
    found: list[dict[str, Any]] = status.get("registered", [])
    if len(found) <= MOST_LAGS or not info.partitions:
        return found
    number = info.partitions[0].id if chosen is None else chosen
    return [one for one in found if one["partition"] == number]


async def _partition(
    reader: Reader, info: FeedInfo, partition: Partition, head: str | None
) -> dict[str, Any]:
    """Describe a partition in a row, also while the feed waits for a writer to know its horizon."""
    number, count, rate, error = partition.id, None, None, None
    try:
        head = head or (await reader.client.fetch(number, LAST, limit=1)).cursor
        if LAG in info.extensions:
            count, rate = await _count(reader, info, number)
    except Unavailable as unavailable:
        error = str(unavailable)
    return {
        "id": number,
        "closed": partition.closed,
        "events": count and count.events,
        "exact": count and count.exact,
        "oldest": _ago(count.seconds) if count and count.events else None,
        "rate": rate,
        "head": head,
        "error": error,
    }


async def _count(reader: Reader, info: FeedInfo, number: int) -> tuple[Lag, float | None]:
    """Return the events of a partition, and how many a second there were lately.

    A count that took long is kept for a while. The rate is the difference to an earlier count, at
    most a minute old; for more events than the feed counts, it is that of the last minute.
    """
    client, counted = reader.client, reader.feed.counts.get(number)
    now = time.monotonic()
    if counted is None or now > counted.due:
        found = await client.lag(number, FIRST)
        took = time.monotonic() - now
        base = (now, found.events) if counted is None else counted.base
        if now - base[0] > WINDOW and counted is not None:
            base = (counted.at, counted.found.events)
        counted = Counted(found, now, now + SHARE * took, base)
        reader.feed.counts[number] = counted
    began, before = counted.base
    if counted.found.exact:
        passed = counted.at - began
        return counted.found, max(0, counted.found.events - before) / passed if passed else None
    if CURSOR_OF_TIME not in info.extensions:
        return counted.found, None
    since = await client.cursor_at(datetime.now(UTC) - timedelta(seconds=WINDOW), number)
    return counted.found, (await client.lag(number, since)).events / WINDOW


async def _chosen(
    reader: Reader, info: FeedInfo, rows: list[dict[str, Any]], chosen: int | None
) -> dict[str, Any] | None:
    """Tell more of one partition: where its history begins, and what the archive holds of it."""
    if not rows:
        return None
    row = next((one for one in rows if chosen is None or one["id"] == chosen), None)
    if row is None:
        raise BadRequest(NO_PARTITION)
    chosen = row["id"]
    found: dict[str, Any] = {
        "id": chosen,
        "has_rates": {CURSOR_OF_TIME, CURSOR_OF_COUNT} <= info.extensions,
        "head": row["head"],
        "begins": None,
    }
    with suppress(Unavailable):  # the row says why
        if SPLITS in info.extensions:
            found["begins"] = (await reader.client.splits(chosen, 1))[0]
        if SEGMENTS in info.extensions:
            parts, cursor = list[Any](), FIRST
            while True:
                segments = await reader.client.segments(chosen, cursor)
                parts += segments.parts
                if not segments.parts or segments.cursor == cursor:
                    break
                cursor = segments.cursor
            found |= {"segments": len(parts), "segment_bytes": sum(one.size for one in parts)}
    return found


async def _lag_or_none(client: AsyncClient, info: FeedInfo, number: int, cursor: str) -> Lag | None:
    if LAG not in info.extensions:
        return None
    try:
        return await client.lag(number, cursor)
    except (BadRequest, Gone, NotFound, Unavailable):
        return None


async def rates(reader: Reader, number: int, hours: float, pieces: int = 48) -> dict[str, Any]:
    """Count the events of a partition in each piece of the last hours.

    Returns:
        The ends of the pieces in seconds since 1970, and the events a second of each, None where
        there are more than the feed counts.

    Raises:
        ConfigurationError: the feed does not know times, or does not count.
    """
    client = reader.client
    await client.discover()
    end = datetime.now(UTC)
    step = timedelta(hours=hours) / pieces
    moments = [end - step * back for back in range(pieces, 0, -1)]
    asked = [partial(client.cursor_at, moment, number) for moment in moments]
    cursors = [*await reader.side_by_side(asked), (await client.fetch(number, LAST)).cursor]
    pairs = pairwise(cursors)
    counts = await reader.side_by_side(
        [partial(count_between, client, number, *two) for two in pairs]
    )
    seconds = step.total_seconds()
    return {
        "partition": number,
        "times": [(moment + step).timestamp() for moment in moments],
        "rates": [None if count is None else count / seconds for count in counts],
    }


async def count_between(client: AsyncClient, number: int, start: str, stop: str) -> int | None:
    """Count the events of a partition between two cursors; None if the feed counts not so many."""
    if start == stop:
        return 0
    counted = await client.cursor_of_count(number, start, MOST_COUNTED, stop=stop)
    is_whole = counted.events < MOST_COUNTED or counted.cursor == stop
    return counted.events if is_whole else None


async def lags(reader: Reader, chosen: int | None) -> dict[str, Any]:
    """Count how far registered consumers lagged at the ends of the last slots of time.

    Of many consumers, only those in the chosen partition are shown, by default the first one.

    Returns:
        The ends in seconds since 1970, and by consumer the events after its last cursor of then,
        None where not all its cursors are known. Without points, if the feed does not know times.
    """
    client, reported = reader.client, reader.feed.reported
    info, status = await client.discover(), await reader.own("status")
    listed = {one.id for one in info.partitions}
    keys = [
        (one["principal"], one["consumer"], one["partition"])
        for one in _consumers(status, info, chosen)
        if one["partition"] in listed
    ]
    ends = range(0)
    if keys and reported and {CURSOR_OF_TIME, CURSOR_OF_COUNT} <= info.extensions:
        first, present = min(reported), _slot()
        step = -(-SLOTS * len(keys) // MOST_PAST)
        ends = range(present, max(first, present - SLOTS), -step)[::-1]
    places = [*product(ends, {number for _, _, number in keys})]
    asked = [partial(client.cursor_at, _end(end), number) for end, number in places]
    heads = dict(zip(places, await reader.side_by_side(asked), strict=True))

    async def lag(key: tuple[str, str, int], end: int) -> int | None:
        # A cursor that is not registered anew stays that of the consumer.
        known = [kept[key] for slot, kept in sorted(reported.items()) if slot < end and key in kept]
        if not known:
            return None
        try:
            return await count_between(client, key[2], known[-1], heads[end, key[2]])
        except (BadRequest, Gone):
            return None

    async def past(key: tuple[str, str, int]) -> list[int | None]:
        return [await lag(key, end) for end in ends]

    counts = await reader.side_by_side([partial(past, key) for key in keys])
    lines: dict[str, list[int | None]] = {}
    for (_, consumer, _), own in zip(keys, counts, strict=True):
        sums = zip(lines.get(consumer, [0] * len(ends)), own, strict=True)
        lines[consumer] = [
            None if one is None or other is None else one + other for one, other in sums
        ]
    return {"times": [_end(end).timestamp() for end in ends], "lags": lines}


def _end(slot: int) -> datetime:
    """Return when the slots before one end."""
    return datetime.fromtimestamp(slot * SLOT, UTC)


def _slot() -> int:
    return int(time.time() // SLOT)


def _ago(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.now(UTC) - timedelta(seconds=seconds)
