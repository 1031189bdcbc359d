"""A publisher in memory with every extension, and mutants of it that break one rule each."""

import random
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.ipc
from starlette.applications import Starlette
from starlette.responses import Response

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, Partition, feed_routes
from zeroeventhub.arrow import MEDIA_TYPE as ARROW_TYPE
from zeroeventhub.errors import BadCursor
from zeroeventhub.protocol import (
    CAUGHT_UP,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    KEY_HISTORY,
    LAG,
    SEGMENTS,
    SPLITS,
    STOP,
    WAIT,
    CountedCursor,
    KeyPage,
    Lag,
    SegmentPart,
    Segments,
)

__all__ = ["MUTANTS", "MemoryFeed", "Mutant", "publisher"]

EVERYTHING = frozenset(
    {
        CAUGHT_UP,
        CURSOR_OF_COUNT,
        CURSOR_OF_TIME,
        EVENT_TYPES,
        KEY_HISTORY,
        LAG,
        SEGMENTS,
        SPLITS,
        STOP,
        WAIT,
    }
)
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = ("order.placed", "order.paid", "order.sent")


@dataclass(frozen=True)
class Told:
    """Hold an event, its type and its time."""

    event: Event
    type: str
    time: datetime


def cloud_event(partition: int, number: int) -> Told:
    """Make the event of a number."""
    kind, time = TYPES[number % 3], BEGINNING + timedelta(minutes=number)
    data = {
        "specversion": "1.0",
        "id": f"{partition}-{number}",
        "source": "/orders",
        "type": kind,
        "time": time.isoformat(),
        "partitionkey": f"{partition}-{number % 3}",
        "data": {"n": number, "text": "line\u2028break"},
    }
    return Told(Event.of(data, {"h": str(number), "g": "x"}), kind, time)


class MemoryFeed:
    """Publish events that are held in memory, with every extension."""

    def __init__(self, sizes=(90, 40), extensions=EVERYTHING):
        self.told = [[cloud_event(part, n) for n in range(size)] for part, size in enumerate(sizes)]
        self.extensions = extensions

    def info(self):
        partitions = tuple(Partition(number) for number in range(len(self.told)))
        return FeedInfo(partitions, "t1", exactly_once=True, extensions=self.extensions)

    def place(self, partition, cursor):
        """Return how many events stand before a cursor."""
        size = len(self.told[partition])
        if cursor == FIRST:
            return 0
        if cursor == LAST:
            return size
        if not re.fullmatch("c(0|[1-9][0-9]{0,5})", cursor, re.ASCII) or int(cursor[1:]) > size:
            raise BadCursor("The cursor is not one that this feed has given.")
        return int(cursor[1:])

    def read(self, partition, cursor, limit, *, types=None, stop=None, each=False):
        told = self.told[partition]
        start = self.place(partition, cursor)
        end = len(told) if stop is None else self.bound(partition, stop)
        if start > end or (stop is not None and start == end):
            return Page([], f"c{start}", stop_reached=True, caught_up=start == len(told))
        events, behind = [], start
        for number in range(start, end):
            if len(events) == limit:
                break
            behind = number + 1
            if types is None or types.lets_through(told[number].type):
                events.append(told[number].event)
        return Page(
            events,
            f"c{behind}",
            caught_up=behind == len(told),
            stop_reached=stop is not None and behind == end,
            full=behind < end,
        )

    def head(self):
        return sum(map(len, self.told))

    def cursor_at(self, moment, partition=0):
        before = [told.time < moment for told in self.told[partition]]
        return f"c{before.index(False) if False in before else len(before)}"

    def bound(self, partition, cursor):
        """Return how many events stand before a cursor that bounds a read."""
        if cursor in {FIRST, LAST}:
            raise BadCursor("A bound is a cursor that this feed has given.")
        return self.place(partition, cursor)

    def splits(self, partition, count, *, start, stop=None):
        first = 0 if start == FIRST else self.bound(partition, start)
        last = len(self.told[partition]) if stop is None else self.bound(partition, stop)
        if last <= first:
            return [f"c{first}", f"c{first}"]
        count = min(count, last - first)
        return [f"c{first + (last - first) * n // count}" for n in range(count + 1)]

    def lag(self, partition, cursor):
        behind = self.told[partition][self.place(partition, cursor) :]
        age = (datetime.now(UTC) - behind[0].time).total_seconds() if behind else 0.0
        return Lag(len(behind), age)

    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        first = 0 if cursor == FIRST else self.bound(partition, cursor)
        last = len(self.told[partition]) if stop is None else self.bound(partition, stop)
        count = max(0, min(events, last - first))
        return CountedCursor(f"c{first + count}", count)

    def segments(self, partition, cursor, *, stop=None):
        first = 0 if cursor == FIRST else self.bound(partition, cursor)
        last = len(self.told[partition]) // 2 if stop is None else self.bound(partition, stop)
        ends = [end for end in (10, 20) if first < end <= last]
        parts = tuple(
            SegmentPart(
                f"file:///orders/{end}.parquet", 1_000, max(first, end - 10), end, f"c{end}"
            )
            for end in ends
        )
        return Segments(parts, f"c{max([first, *ends])}")

    def read_key(self, key, after_version, limit, *, partitions=None):
        events = [
            told.event
            for part in self.told
            for told in part
            if told.event.data["partitionkey"] == key
        ][after_version : after_version + limit]
        versions = [*range(after_version + 1, after_version + 1 + len(events))]
        return KeyPage(events, versions, more=len(events) == limit)


@dataclass
class Exchange:
    """Hold a request's path and query, and its answer, for a mutant to change."""

    method: str
    path: str
    query: str
    status: int
    headers: dict[str, str]
    body: bytes

    def asks_for(self, text: str) -> bool:
        """Tell whether this is a page whose query holds a text."""
        return self.path.endswith("/events") and text in self.query


class Changed:
    """Put an application behind something that changes its answers."""

    def __init__(self, application, change=None, ask=None):
        self.application = application
        self.change = change or (lambda exchange: None)
        self.ask = ask or (lambda query: query)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        scope = scope | {"query_string": self.ask(scope["query_string"].decode()).encode()}
        exchange = Exchange(
            scope["method"], scope["path"], scope["query_string"].decode(), 0, {}, b""
        )

        async def keep(message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                exchange.body += message.get("body", b"")

        await self.application(scope, receive, keep)
        before = exchange.body
        self.change(exchange)
        if exchange.body != before:
            exchange.headers["content-length"] = str(len(exchange.body))
        await Response(exchange.body, exchange.status, exchange.headers)(scope, receive, send)


@dataclass(frozen=True)
class Mutant:
    """Hold a mutant.

    Attributes:
        caught_by: the check that has to fail.
        feed: makes the feed; by default one without fault.
        change: changes answers; by default not at all.
        ask: changes the query of requests; by default not at all.
    """

    caught_by: str
    feed: Callable[[], MemoryFeed] = MemoryFeed
    change: Callable[[Exchange], None] | None = None
    ask: Callable[[str], str] | None = None


def publisher(mutant: Mutant | None = None) -> Callable[..., Awaitable[None]]:
    """Make an application that publishes at /feed."""
    mutant = mutant or Mutant("")
    application = Starlette(routes=feed_routes("/feed", mutant.feed(), arrow=True))
    if mutant.change is None and mutant.ask is None:
        return application
    return Changed(application, mutant.change, mutant.ask)


# Mutants of the feed.


class RepeatsBoundary(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        page = super().read(partition, cursor, limit, **options)
        start = self.place(partition, cursor)
        if start and page.events:
            page = replace(
                page, events=[self.told[partition][start - 1].event, *page.events][:limit]
            )
        return page


class SkipsAtBoundary(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        page = super().read(partition, cursor, limit, **options)
        return replace(page, events=page.events[1:] if cursor not in {FIRST, LAST} else page.events)


class IgnoresStop(MemoryFeed):
    def read(self, partition, cursor, limit, *, stop=None, **options):
        return super().read(partition, cursor, limit, **options)


class StopsElsewhere(MemoryFeed):
    def read(self, partition, cursor, limit, *, stop=None, **options):
        page = super().read(partition, cursor, limit, stop=stop, **options)
        return replace(page, cursor="c1") if page.stop_reached and page.events else page


class StopsLate(MemoryFeed):
    def read(self, partition, cursor, limit, *, stop=None, **options):
        if stop is None:
            return super().read(partition, cursor, limit, **options)
        late = min(self.place(partition, stop) + 1, len(self.told[partition]))
        page = super().read(partition, cursor, limit, stop=f"c{late}", **options)
        return replace(page, cursor=stop) if page.stop_reached else page


class StopsEarly(MemoryFeed):
    def read(self, partition, cursor, limit, *, stop=None, **options):
        if stop is None:
            return super().read(partition, cursor, limit, **options)
        early = max(self.place(partition, stop) - 1, 0)
        page = super().read(partition, cursor, limit, stop=f"c{early}", **options)
        return replace(page, cursor=stop) if page.stop_reached else page


class TakesBadCursors(MemoryFeed):
    def place(self, partition, cursor):
        try:
            return super().place(partition, cursor)
        except BadCursor:
            return len(self.told[partition])


class CrashesOnBadCursors(MemoryFeed):
    def place(self, partition, cursor):
        return 0 if cursor == FIRST else 10**9 if cursor == LAST else int(cursor[1:])

    def read(self, partition, cursor, limit, **options):
        size = len(self.told[partition])
        return super().read(
            partition, f"c{min(self.place(partition, cursor), size)}", limit, **options
        )


class IgnoresTypes(MemoryFeed):
    def read(self, partition, cursor, limit, *, types=None, **options):
        return super().read(partition, cursor, limit, **options)


class IgnoresSkip(MemoryFeed):
    def read(self, partition, cursor, limit, *, types=None, **options):
        types = None if types is not None and types.skip else types
        return super().read(partition, cursor, limit, types=types, **options)


class Sensitive:
    def __init__(self, names, skip):
        self.names, self.skip = names, skip

    def lets_through(self, name):
        # The filter's own names have been lowered; a case-sensitive feed has capitals.
        return (name in self.names) is not self.skip


class CaseSensitive(MemoryFeed):
    def __init__(self):
        super().__init__()
        self.told = [
            [
                replace(
                    told,
                    type=told.type.upper(),
                    event=Event(told.event.raw.replace(b'"order.', b'"ORDER.'), told.event.headers),
                )
                for told in part
            ]
            for part in self.told
        ]

    def read(self, partition, cursor, limit, *, types=None, **options):
        sensitive = None if types is None else Sensitive(types.names, types.skip)
        return super().read(partition, cursor, limit, types=sensitive, **options)


class StaysBeforeFiltered(MemoryFeed):
    def read(self, partition, cursor, limit, *, types=None, **options):
        page = super().read(partition, cursor, limit, types=types, **options)
        if types is not None and not page.events:
            return replace(page, cursor=f"c{self.place(partition, cursor)}", caught_up=False)
        return page


class Unsorted(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        page = super().read(partition, cursor, limit, **options)
        return replace(page, events=random.sample(page.events, len(page.events)), full=False)


class CaughtUpEarly(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        return replace(super().read(partition, cursor, limit, **options), caught_up=True)


class NeverCaughtUp(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        return replace(super().read(partition, cursor, limit, **options), caught_up=False)


class FullAtTheHead(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        return replace(super().read(partition, cursor, limit, **options), full=True)


class SplitsOverlap(MemoryFeed):
    def splits(self, partition, count, *, start, stop=None):
        cursors = super().splits(partition, count, start=start, stop=stop)
        middle = self.place(partition, cursors[1])
        return [cursors[0], cursors[1], f"c{middle - 3}", *cursors[2:]][: count + 1]


class SplitsLeaveOut(MemoryFeed):
    def splits(self, partition, count, *, start, stop=None):
        cursors = super().splits(partition, count, start=start, stop=stop)
        return [*cursors[:-1], f"c{self.place(partition, cursors[-1]) - 1}"]


class ManyPieces(MemoryFeed):
    def splits(self, partition, count, *, start, stop=None):
        return super().splits(partition, count + 2, start=start, stop=stop)


class CountsOneMore(MemoryFeed):
    def lag(self, partition, cursor):
        lag = super().lag(partition, cursor)
        return replace(lag, events=lag.events and lag.events + 1)


class CountsOneLess(MemoryFeed):
    def lag(self, partition, cursor):
        lag = super().lag(partition, cursor)
        return replace(lag, events=max(0, lag.events - 1))


class HeadLagsBehind(MemoryFeed):
    def lag(self, partition, cursor):
        return replace(super().lag(partition, cursor), seconds=3.5)


class HeadIsOneBehind(MemoryFeed):
    def lag(self, partition, cursor):
        return Lag(1, 0.0) if cursor == LAST else super().lag(partition, cursor)


class CountsBehindAnything(MemoryFeed):
    def lag(self, partition, cursor):
        try:
            return super().lag(partition, cursor)
        except BadCursor:
            return Lag(0, 0.0)


class CountOvershoots(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        found = super().cursor_of_count(partition, cursor, events + 1, stop=stop)
        return replace(found, events=min(events, found.events))


class CountFallsShort(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        return super().cursor_of_count(partition, cursor, max(1, events - 1), stop=stop)


class CountIsAHint(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        return super().cursor_of_count(partition, cursor, events + 2, stop=stop)


class CountPassesStop(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        return super().cursor_of_count(partition, cursor, events)


class CountMovesBack(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        found = super().cursor_of_count(partition, cursor, events, stop=stop)
        return found if found.events or stop is None else replace(found, cursor=stop)


class KeyOfAnother(MemoryFeed):
    def read_key(self, key, after_version, limit, **options):
        beside = key[:-1] + "1" if key.endswith("0") else key
        return super().read_key(beside, after_version, limit, **options)


class KeyBackwards(MemoryFeed):
    def read_key(self, key, after_version, limit, **options):
        page = super().read_key(key, after_version, limit, **options)
        return replace(page, events=page.events[::-1])


class KeyStartsAgain(MemoryFeed):
    def read_key(self, key, after_version, limit, **options):
        page = super().read_key(key, after_version, limit, **options)
        return replace(page, events=super().read_key(key, 0, limit).events[: len(page.events)])


class KeyHidesMore(MemoryFeed):
    def read_key(self, key, after_version, limit, **options):
        return replace(super().read_key(key, after_version, limit, **options), more=False)


class KeyOfAnybody(MemoryFeed):
    def read_key(self, key, after_version, limit, **options):
        known = key if key[:1] in {"0", "1"} else "0-0"
        return super().read_key(known, after_version, limit, **options)


class FilesOverlap(MemoryFeed):
    def segments(self, partition, cursor, *, stop=None):
        found = super().segments(partition, cursor, stop=stop)
        return replace(found, parts=tuple(replace(part, after=0) for part in found.parts))


class FilesWithoutAnEnd(MemoryFeed):
    def segments(self, partition, cursor, *, stop=None):
        found = super().segments(partition, cursor, stop=stop)
        return found if cursor == FIRST else super().segments(partition, FIRST)


class FilesFromAnywhere(MemoryFeed):
    def segments(self, partition, cursor, *, stop=None):
        try:
            return super().segments(partition, cursor, stop=stop)
        except BadCursor:
            return Segments((), "c0")


class CountsFromAnywhere(MemoryFeed):
    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        try:
            return super().cursor_of_count(partition, cursor, events, stop=stop)
        except BadCursor:
            return CountedCursor("c0", 0)


class TimeWanders(MemoryFeed):
    def cursor_at(self, moment, partition=0):
        place = self.place(partition, super().cursor_at(moment, partition))
        return f"c{max(0, place - random.randrange(30))}"


class TimeTooLate(MemoryFeed):
    def cursor_at(self, moment, partition=0):
        place = self.place(partition, super().cursor_at(moment, partition))
        return f"c{min(len(self.told[partition]), place + 1)}"


class PublishesTwice(MemoryFeed):
    def __init__(self):
        super().__init__()
        for told in self.told:
            told.insert(20, told[10])


class LosesEvents(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        page = super().read(partition, cursor, limit, **options)
        return replace(page, events=[e for e in page.events if random.random() > 0.1], full=False)


class ListsOpenParent(MemoryFeed):
    def info(self):
        info = super().info()
        return replace(info, partitions=(Partition(0), Partition(1, starts_after=0)))


class GoesInCircles(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        page = super().read(partition, cursor, limit, **options)
        return replace(page, cursor="c0") if page.cursor == "c75" else page


class LastLosesOne(MemoryFeed):
    def read(self, partition, cursor, limit, **options):
        if cursor == LAST:
            return Page([], f"c{len(self.told[partition]) - 2}", caught_up=True)
        return super().read(partition, cursor, limit, **options)


# Mutants of the answers.


def page_change(change: Callable[[bytes], bytes]) -> Callable[[Exchange], None]:
    """Change the body of every page."""

    def apply(exchange: Exchange) -> None:
        if exchange.asks_for("cursor=") and exchange.status == 200 and exchange.method == "GET":
            exchange.body = change(exchange.body)

    return apply


def without_checkpoint(body: bytes) -> bytes:
    """Drop the checkpoint of an empty page only: the peers' trap at the head."""
    return b"" if body.startswith(b'{"cursor"') else body


def instead(old: int, new: int, body: bytes = b"{}") -> Callable[[Exchange], None]:
    """Answer with another status."""

    def apply(exchange: Exchange) -> None:
        if exchange.path.endswith("/events") and exchange.status == old:
            exchange.status, exchange.body = new, body

    return apply


def header(name: str, value: str, *, pages: str = "cursor=") -> Callable[[Exchange], None]:
    """Set a header of pages."""

    def apply(exchange: Exchange) -> None:
        if exchange.asks_for(pages) and exchange.status in {200, 304}:
            exchange.headers[name] = value

    return apply


def etag_changes(exchange: Exchange) -> None:
    if "etag" in exchange.headers and exchange.status == 200:
        exchange.headers["etag"] = f'"{random.random()}"'


def ignores_if_none_match(exchange: Exchange) -> None:
    if exchange.status == 304:
        exchange.status = 200


def echoes_first(exchange: Exchange) -> None:
    if exchange.asks_for("cursor=_last") and exchange.status == 200:
        exchange.body = b'{"cursor":"_last"}\n'


def html(exchange: Exchange) -> None:
    if exchange.asks_for("cursor="):
        exchange.status, exchange.body = 200, b"<html>Please log in</html>"
        exchange.headers = {"content-type": "text/html"}


def empty_for_bad_cursor(exchange: Exchange) -> None:
    if exchange.asks_for("cursor=") and b"bad-cursor" in exchange.body:
        exchange.status, exchange.body = 200, b""


def discovery_change(old: bytes, new: bytes) -> Callable[[Exchange], None]:
    """Change the discovery document."""

    def apply(exchange: Exchange) -> None:
        if exchange.path == "/feed" and exchange.method == "GET":
            exchange.body = exchange.body.replace(old, new)

    return apply


def lag_change(old: bytes, new: bytes) -> Callable[[Exchange], None]:
    """Change what is said of a lag."""

    def apply(exchange: Exchange) -> None:
        if exchange.path == "/feed/lag" and exchange.status == 200:
            exchange.body = exchange.body.replace(old, new)

    return apply


def takes_any_key(exchange: Exchange) -> None:
    """Answer requests for no key as if nothing was there."""
    if exchange.path == "/feed/key-history" and exchange.status == 400:
        exchange.status, exchange.body = 200, b'{"events":[]}'
        exchange.headers["content-type"] = "application/json"


def arrow_change(change: Callable[[bytes], bytes]) -> Callable[[Exchange], None]:
    """Change pages that are sent as Arrow."""

    def apply(exchange: Exchange) -> None:
        if exchange.headers.get("content-type") == ARROW_TYPE and exchange.status == 200:
            exchange.body = change(exchange.body)

    return apply


def without_an_event(body: bytes) -> bytes:
    """Drop the first event of a page of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.open_stream(body) as rows:
        table = rows.read_all()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.slice(1 if len(table) > 1 else 0))
    return sink.getvalue().to_pybytes()


def stale_token(exchange: Exchange) -> None:
    if exchange.path == "/feed":
        exchange.body = exchange.body.replace(b'"t1"', b'"t2"')


def without(name: str) -> Callable[[str], str]:
    """Pass over a parameter."""
    return lambda query: re.sub(rf"(^|&){name}=[^&]*", "", query)


def echo(exchange: Exchange) -> None:
    if exchange.status == 400:
        from urllib.parse import unquote

        asked = unquote(exchange.query).replace('"', "").replace("\\", "").replace("\0", "")
        exchange.body = exchange.body.replace(
            b'"detail":', f'"echo": "{asked}", "detail":'.encode()
        )


def plain_errors(exchange: Exchange) -> None:
    if exchange.status >= 400:
        exchange.headers, exchange.body = {"content-type": "text/plain"}, b"no\n"


MUTANTS = {
    "repeats the boundary event": Mutant("page-sizes", RepeatsBoundary),
    "skips an event at the boundary": Mutant("page-sizes", SkipsAtBoundary),
    "drops the checkpoint at the head": Mutant(
        "page-checkpoint", change=page_change(without_checkpoint)
    ),
    "sends events behind the checkpoint": Mutant(
        "page-end", change=page_change(lambda body: body + b'{"data":{"n":1}}\n')
    ),
    "ends without a newline": Mutant("page-newline", change=page_change(lambda body: body[:-1])),
    "sends NaN": Mutant(
        "lines-strict", change=page_change(lambda body: body.replace(b'"n":3,', b'"n":NaN,'))
    ),
    "breaks lines at U+2028": Mutant(
        "lines-json", change=page_change(lambda body: body.replace("\u2028".encode(), b"\n"))
    ),
    "sends bytes that are not UTF-8": Mutant(
        "lines-utf8", change=page_change(lambda body: body.replace("\u2028".encode(), b"\xff"))
    ),
    "sends a byte order mark": Mutant(
        "lines-bom", change=page_change(lambda body: b"\xef\xbb\xbf" + body)
    ),
    "sends an event and a checkpoint at once": Mutant(
        "lines-one-command",
        change=page_change(lambda body: body.replace(b'{"data"', b'{"cursor":"c1","data"', 1)),
    ),
    "sends empty lines": Mutant(
        "lines-empty", change=page_change(lambda body: body.replace(b"\n", b"\n\n"))
    ),
    "says caughtUp false": Mutant(
        "lines-flags",
        change=page_change(lambda body: body.replace(b"}\n", b',"caughtUp":false}\n')),
    ),
    "escapes half a surrogate pair": Mutant(
        "lines-surrogates", change=page_change(lambda body: body.replace(b"line", b"\\ud800"))
    ),
    "ignores stop": Mutant("stop", IgnoresStop),
    "says stopReached of another cursor": Mutant("stop", StopsElsewhere),
    "stops one event late": Mutant("stop", StopsLate),
    "stops one event early": Mutant("stop", StopsEarly),
    "takes a bad cursor for the head": Mutant("cursor-malformed", TakesBadCursors),
    "answers a bad cursor with an empty 200": Mutant(
        "cursor-malformed", change=empty_for_bad_cursor
    ),
    "fails at a bad cursor": Mutant("cursor-malformed", CrashesOnBadCursors),
    "fails at a bad parameter": Mutant("pagesizehint-malformed", change=instead(400, 500)),
    "echoes _last": Mutant("cursor-form", change=echoes_first),
    "loses the newest at _last": Mutant("last", LastLosesOne),
    "ignores event-types": Mutant("event-types", IgnoresTypes),
    "ignores skip-event-types": Mutant("event-types-skip", IgnoresSkip),
    "compares types case for case": Mutant("event-types-case", CaseSensitive),
    "stays before filtered events": Mutant("event-types-checkpoint", StaysBeforeFiltered),
    "lets the head be kept": Mutant("caching-head", FullAtTheHead),
    "lets every page be kept": Mutant(
        "caching-special", change=header("cache-control", "private, max-age=31536000, immutable")
    ),
    "forgets no-store": Mutant(
        "caching-no-store", change=header("cache-control", "", pages="cursor=_first")
    ),
    "changes its ETag": Mutant("caching-repeats", change=etag_changes),
    "knows no 304": Mutant("caching-etag", change=ignores_if_none_match),
    "knows no 409": Mutant("token-unknown", change=instead(409, 200, b'{"cursor":"c0"}\n')),
    "keeps an old token": Mutant("token-accepted", change=stale_token),
    "answers with a login form": Mutant("token-unknown", change=html),
    "says text/plain": Mutant("page-media-type", change=header("content-type", "text/plain")),
    "compresses unasked": Mutant("page-encoding", change=header("content-encoding", "gzip")),
    "shuffles": Mutant("reading-again", Unsorted),
    "loses one event in ten": Mutant("reading-again", LosesEvents),
    "goes in circles": Mutant("reading", GoesInCircles),
    "publishes twice": Mutant("events-once", PublishesTwice),
    "says caughtUp too early": Mutant("caught-up-early", CaughtUpEarly),
    "never says caughtUp": Mutant("caught-up", NeverCaughtUp),
    "splits overlap": Mutant("splits", SplitsOverlap),
    "splits leave an event out": Mutant("splits", SplitsLeaveOut),
    "splits into too many pieces": Mutant("splits-one", ManyPieces),
    "counts an event more": Mutant("lag", CountsOneMore),
    "counts an event less": Mutant("lag", CountsOneLess),
    "counts in strings": Mutant("lag", change=lag_change(b'"events": 90', b'"events": "90"')),
    "says more: false": Mutant("lag", change=lag_change(b"{", b'{"more": false,')),
    "is behind at the head": Mutant("lag-head", HeadLagsBehind),
    "counts an event behind _last": Mutant("lag-head", HeadIsOneBehind),
    "counts behind what is no cursor": Mutant("lag-malformed", CountsBehindAnything),
    "counts past its number": Mutant("cursor-of-count", CountOvershoots),
    "counts short of its number": Mutant("cursor-of-count", CountFallsShort),
    "takes its number for a hint": Mutant("cursor-of-count", CountIsAHint),
    "counts past a stop": Mutant("cursor-of-count-stop", CountPassesStop),
    "moves back to a stop": Mutant("cursor-of-count-nothing", CountMovesBack),
    "counts from what is no cursor": Mutant("cursor-of-count-malformed", CountsFromAnywhere),
    "shows another key": Mutant("key-history", KeyOfAnother),
    "shows a key backwards": Mutant("key-history", KeyBackwards),
    "begins a key again": Mutant("key-history-pages", KeyStartsAgain),
    "hides that a key has more": Mutant("key-history-pages", KeyHidesMore),
    "takes what is no key": Mutant("key-history-malformed", change=takes_any_key),
    "shows some key to whoever asks": Mutant("key-history-nothing", KeyOfAnybody),
    "names files that overlap": Mutant("segments", FilesOverlap),
    "names files again and again": Mutant("segments-end", FilesWithoutAnEnd),
    "names files behind what is no cursor": Mutant("segments-malformed", FilesFromAnywhere),
    "answers counts unannounced": Mutant(
        "extensions-absent", change=discovery_change(b'"cursor-of-count",', b"")
    ),
    "answers lag unannounced": Mutant("extensions-absent", change=discovery_change(b'"lag",', b"")),
    "loses an event as Arrow": Mutant("arrow", change=arrow_change(without_an_event)),
    "cuts Arrow": Mutant("arrow", change=arrow_change(lambda body: body[:-100])),
    "sends lines that it calls Arrow": Mutant(
        "arrow", change=arrow_change(lambda _: b'{"cursor":"c1"}\n')
    ),
    "knows no Arrow": Mutant("arrow", change=header("content-type", "application/x-ndjson")),
    "sends Arrow to everybody": Mutant("arrow-others", change=header("content-type", ARROW_TYPE)),
    "does not say that pages have two forms": Mutant("arrow-caching", change=header("vary", "")),
    "gives both forms one tag": Mutant("arrow-caching", change=header("etag", '"tag"')),
    "does not wait": Mutant("wait", ask=without("wait")),
    "gives another cursor for the same time": Mutant("cursor-of-time", TimeWanders),
    "gives a cursor behind the time": Mutant("cursor-of-time-before", TimeTooLate),
    "lists a parent that is open": Mutant("layout-order", ListsOpenParent),
    "lists ids as numbers": Mutant(
        "partition-ids", change=discovery_change(b'"id": "0"', b'"id": 0')
    ),
    "lists a token that is a number": Mutant(
        "discovery-token", change=discovery_change(b'"t1"', b"1")
    ),
    "lists splits without stop": Mutant("extensions", change=discovery_change(b'"stop"', b'"sto"')),
    "repeats the request": Mutant("problem-echo", change=echo),
    "refuses in plain text": Mutant("problem-documents", change=plain_errors),
}
