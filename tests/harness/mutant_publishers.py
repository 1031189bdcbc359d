"""A publisher in memory with every extension, and mutants of it that break one rule each."""

import random
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle
from urllib.parse import unquote
from uuid import uuid4

from sqlalchemy import MetaData
from starlette.applications import Starlette
from starlette.responses import Response

from zeroeventhub import FIRST, LAST, Event, EventLog, FeedInfo, Page, Partition, feed_routes
from zeroeventhub.errors import BadCursor
from zeroeventhub.extensions import (
    APPEND,
    ARROW,
    COMPACTED,
    EXTENSIONS,
    FORGET_PROGRESS,
    PRODUCER_SEQUENCE,
    PROGRESS,
)
from zeroeventhub.new_events import Batch
from zeroeventhub.protocol import (
    Appended,
    CountedCursor,
    KeyPage,
    Lag,
    Schemas,
    SegmentPart,
    Segments,
)
from zeroeventhub.wire import ARROW_TYPE, CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE

__all__ = ["MUTANTS", "MUTANTS_OF_LOGS", "UNUSUAL", "log_publisher", "publisher"]

OTHERS = {APPEND, ARROW, COMPACTED, FORGET_PROGRESS, PRODUCER_SEQUENCE, PROGRESS}
EVERYTHING = frozenset(EXTENSIONS) - OTHERS
STRICT = ("lag", "cursor-of-count", "cursor-of-time", "splits", "key-history", "segments")
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = ("order.placed", "order.paid", "order.sent")


def order(partition, number):
    """Make the event of a number."""
    data = {
        "specversion": "1.0",
        "id": f"{partition}-{number}",
        "source": "/orders",
        "type": TYPES[number % 3],
        "time": (BEGINNING + timedelta(minutes=number)).isoformat(),
        "partitionkey": f"{partition}-{number % 3}",
        "data": {"n": number, "text": "line\u2028break"},
    }
    return Event.of(data, {"h": str(number), "g": "x"})


def time_of(event):
    return datetime.fromisoformat(event.data["time"])


class MemoryFeed:
    """Publish events that are held in memory, with every extension."""

    def __init__(self):
        self.rows = [[order(part, n) for n in range(size)] for part, size in enumerate((90, 40))]

    def info(self):
        return FeedInfo(
            (Partition(0), Partition(1)), "t1", exactly_once=True, extensions=EVERYTHING
        )

    def place(self, partition, cursor):
        """Return how many events stand before a cursor."""
        size = len(self.rows[partition])
        if cursor in {FIRST, LAST}:
            return 0 if cursor == FIRST else size
        if not re.fullmatch("c(0|[1-9][0-9]{0,5})", cursor, re.ASCII) or int(cursor[1:]) > size:
            raise BadCursor("The cursor is not one that this feed has given.")
        return int(cursor[1:])

    def bounds(self, partition, start, stop, end):
        """Return how many events stand before two cursors, of which the second may be left out."""
        if start == LAST or stop in {FIRST, LAST}:
            raise BadCursor("A bound is a cursor that this feed has given.")
        return self.place(partition, start), end if stop is None else self.place(partition, stop)

    def read(self, partition, cursor, limit, *, types=None, stop=None, each=False):
        rows = self.rows[partition]
        start = self.place(partition, cursor)
        _, end = self.bounds(partition, FIRST, stop, len(rows))
        if start > end or (stop is not None and start == end):
            return Page([], f"c{start}", stop_reached=True, caught_up=start == len(rows))
        events, place = [], start
        while place < end and len(events) < limit:
            if types is None or types.lets_through(rows[place].data["type"]):
                events.append(rows[place])
            place += 1
        return Page(
            events,
            f"c{place}",
            caught_up=place == len(rows),
            stop_reached=stop is not None and place == end,
            full=place < end,
        )

    def head(self):
        return sum(map(len, self.rows))

    def cursor_at(self, moment, partition=0):
        return f"c{sum(time_of(row) < moment for row in self.rows[partition])}"

    def splits(self, partition, count, *, start, stop=None):
        first, last = self.bounds(partition, start, stop, len(self.rows[partition]))
        if last <= first:
            return [f"c{first}", f"c{first}"]
        count = min(count, last - first)
        return [f"c{first + (last - first) * n // count}" for n in range(count + 1)]

    def lag(self, partition, cursor):
        ahead = self.rows[partition][self.place(partition, cursor) :]
        age = (datetime.now(UTC) - time_of(ahead[0])).total_seconds() if ahead else 0.0
        return Lag(len(ahead), age)

    def cursor_of_count(self, partition, cursor, events, *, stop=None):
        first, last = self.bounds(partition, cursor, stop, len(self.rows[partition]))
        count = max(0, min(events, last - first))
        return CountedCursor(f"c{first + count}", count)

    def segments(self, partition, cursor, *, stop=None):
        first, last = self.bounds(partition, cursor, stop, len(self.rows[partition]) // 2)
        ends = [end for end in (10, 20) if first < end <= last]
        parts = [
            SegmentPart(f"file:///{end}.parquet", 1_000, max(first, end - 10), end, f"c{end}")
            for end in ends
        ]
        return Segments(tuple(parts), f"c{max([first, *ends])}")

    def schemas(self):
        order = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return Schemas(dict.fromkeys(TYPES, order), "cloudevents")

    def read_key(self, key, after_version, limit, *, partitions=None):
        events = [row for rows in self.rows for row in rows if row.data["partitionkey"] == key]
        events = events[after_version : after_version + limit]
        versions = [*range(after_version + 1, after_version + 1 + len(events))]
        return KeyPage(events, versions, more=len(events) == limit)


class SparseFeed(MemoryFeed):
    """Look through a few places for each page; most of them have no event of the partition."""

    def __init__(self):
        super().__init__()
        self.rows = [[one for row in rows for one in [None] * 20 + [row]] for rows in self.rows]

    def info(self):
        return replace(super().info(), extensions=frozenset({"caught-up", "stop", "wait"}))

    def read(self, partition, cursor, limit, *, stop=None):
        rows = self.rows[partition]
        start, end = self.bounds(partition, cursor, stop, len(rows))
        place = max(start, min(start + 5, end))
        return Page(
            [row for row in rows[start:place] if row is not None],
            f"c{place}",
            caught_up=place == len(rows),
            stop_reached=stop is not None and place >= end,
        )

    def bounds(self, partition, start, stop, end):
        return self.place(partition, start), end if stop is None else self.place(partition, stop)


def of_types(*names):
    """Make a feed whose events have these types in turn."""
    feed = MemoryFeed()
    for rows in feed.rows:
        types = cycle(names)
        rows[:] = [Event.of(row.data | {"type": next(types)}, row.headers) for row in rows]
    return feed


def without_times():
    """Make a feed that does not know when its events happened."""
    feed = MemoryFeed()
    feed.lag = lambda *call: replace(MemoryFeed.lag(feed, *call), seconds=None)
    return feed


def heavy():
    """Make a feed whose pages have more data than one answer of version 1 takes."""
    feed = MemoryFeed()
    for number, rows in enumerate(feed.rows):
        rows[:] = [Event.of(f"{number}-{place}" + "x" * 250_000) for place in range(40)]
    feed.info = lambda: replace(MemoryFeed.info(feed), extensions=frozenset({"caught-up"}))
    return feed


UNUSUAL = {
    "has large events": heavy,
    "looks through few places for a page": SparseFeed,
    "has types that differ in case": partial(of_types, "Order.Paid", "order.paid", "other"),
    "has types that no request can name": partial(of_types, "предмет", "a;b", "order.*"),
    "knows no times": without_times,
}
"""Feeds that do what the specification allows, and few do."""


@dataclass
class Exchange:
    """Hold a request, and its answer, for a mutant to change."""

    method: str
    path: str
    query: str
    status: int = 0
    headers: dict[str, str] | None = None
    body: bytes = b""

    @property
    def is_page(self):
        return self.path.endswith("/events") and "cursor=" in self.query


def application(feed):
    """Publish a feed at /feed."""
    return Starlette(routes=feed_routes("/feed", feed, arrow=True))


def publisher(mutant=None, feed=MemoryFeed):
    """Make an application that publishes at /feed: a mutant, or one without fault."""
    _, fault = mutant or ("", application)
    return fault(feed())


def log_publisher(engine, mutant=None, **options):
    """Make an application of a log at /feed that takes events: a mutant, or one without fault."""
    metadata = MetaData()
    log = EventLog(metadata, "log", partitions=2, append=True)
    metadata.create_all(engine)
    _, fault = mutant or ("", application)
    return fault(log.feed(**options).bind(engine))


# What makes mutants: each returns a function that makes an application of a feed.


def instead(method, change):
    """Answer a call with what a function makes of the feed, the right method and the call."""

    def fault(feed):
        setattr(feed, method, partial(change, feed, getattr(feed, method)))
        return application(feed)

    return fault


def found(method, change):
    """Answer a call with what a function makes of the right answer."""
    return instead(method, lambda feed, right, *call, **options: change(right(*call, **options)))


def always(method, **changes):
    """Say something else in every answer to a call."""
    return found(method, lambda answer: replace(answer, **changes))


def forgiving(method, answer):
    """Answer a call with a bad cursor as well."""

    def forgive(feed, right, *call, **options):
        try:
            return right(*call, **options)
        except BadCursor:
            return answer

    return instead(method, forgive)


def answered(change, ask=lambda scope: scope):
    """Change answers, and before that perhaps requests."""

    def fault(feed):
        right = application(feed)

        async def changed(scope, receive, send):
            if scope["type"] != "http":
                await right(scope, receive, send)
                return
            scope = ask(scope)
            exchange = Exchange(scope["method"], scope["path"], scope["query_string"].decode())

            async def keep(message):
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                    exchange.headers = {k.decode(): v.decode() for k, v in message["headers"]}
                else:
                    exchange.body += message.get("body", b"")

            await right(scope, receive, keep)
            before = exchange.body
            change(exchange)
            if exchange.body != before:
                exchange.headers["content-length"] = str(len(exchange.body))
            await Response(exchange.body, exchange.status, exchange.headers)(scope, receive, send)

        return changed

    return fault


def body(change, path="/feed/events"):
    """Change the bodies of answers that are right."""

    def apply(exchange):
        is_asked = exchange.path == path and exchange.method == "GET" and exchange.status == 200
        if is_asked:
            exchange.body = change(exchange.body)

    return answered(apply)


def swapped(old, new, path="/feed/events"):
    """Write something else into the bodies of answers that are right."""
    return body(lambda text: text.replace(old, new), path)


def status(old, new, text, path="/feed/events"):
    """Answer with another status."""

    def apply(exchange):
        if exchange.path == path and exchange.status == old:
            exchange.status, exchange.body = new, text
            exchange.headers["content-type"] = "application/json"

    return answered(apply)


def header(name, value, cursor=""):
    """Set a header of pages."""

    def apply(exchange):
        is_asked = exchange.is_page and f"cursor={cursor}" in exchange.query
        if is_asked and exchange.status in {200, 304}:
            exchange.headers[name] = value

    return answered(apply)


def appended(change):
    """Append what a function makes of each batch, and answer as if all of it were appended."""

    def append(feed, right, batches):
        outcomes = right([change(batch) for batch in batches])
        return [
            outcome
            if isinstance(outcome, Exception)
            else [Appended(outcome[0].partition, one.id) for one in batch.events]
            for batch, outcome in zip(batches, outcomes, strict=True)
        ]

    return instead("append", append)


def heard(old, new):
    """Take a request's header of one value as if it were another."""

    def hear(scope):
        pairs = [(name, new if value == old else value) for name, value in scope["headers"]]
        return scope | {"headers": pairs}

    return answered(lambda _: None, ask=hear)


# Mutants of the feed.


def skips_at_boundary(feed, right, partition, cursor, limit, **options):
    page = right(partition, cursor, limit, **options)
    return replace(page, events=page.events[cursor not in {FIRST, LAST} :])


def ignoring(option):
    """Read without heed to an option."""
    return instead(
        "read", lambda feed, right, *call, **options: right(*call, **options | {option: None})
    )


def stops_elsewhere(page):
    return replace(page, cursor="c1") if page.stop_reached and page.events else page


def loses_the_last(feed, right, partition, cursor, limit, **options):
    if cursor == LAST:
        return Page([], f"c{len(feed.rows[partition]) - 2}", caught_up=True)
    return right(partition, cursor, limit, **options)


def stays(feed, right, partition, cursor, limit, *, types=None, **options):
    page = right(partition, cursor, limit, types=types, **options)
    if types is None or page.events:
        return page
    return replace(page, cursor=f"c{feed.place(partition, cursor)}", caught_up=False)


def shuffled(page):
    return replace(page, events=random.sample(page.events, len(page.events)), full=False)


def thinned(page):
    return replace(page, events=[e for e in page.events if random.random() > 0.1], full=False)


def doubled(page):
    return replace(page, events=[*page.events, *page.events])


def moved(cursor, by):
    return f"c{max(0, int(cursor[1:]) + by)}"


def passes_its_number(feed, right, partition, cursor, events, **options):
    counted = right(partition, cursor, events + 1, **options)
    return replace(counted, events=min(events, counted.events))


def passes_stop(feed, right, *call, stop=None):
    return right(*call)


def another_key(feed, right, key, *call, **options):
    return right(key[:-1] + "1" if key.endswith("0") else key, *call, **options)


def renamed(batch):
    return replace(batch, events=[replace(one, id=str(uuid4())) for one in batch.events])


def without_versions(batch):
    return replace(batch, events=[replace(one, expected_version=None) for one in batch.events])


def appends_what_it_can(feed, right, batches):
    outcomes = right(batches)
    for batch, outcome in zip(batches, outcomes, strict=True):
        if isinstance(outcome, Exception):
            right([Batch([one]) for one in batch.events])
    return outcomes


def open_parent(info):
    return replace(info, partitions=(Partition(0), Partition(1, starts_after=0)))


# Mutants of the answers.


def without_checkpoint(text):
    """Drop the checkpoint of an empty page only: the trap of the peers at the head."""
    return b"" if text.startswith(b'{"cursor"') else text


def echoes_last(exchange):
    if exchange.is_page and "cursor=_last" in exchange.query and exchange.status == 200:
        exchange.body = b'{"cursor":"_last"}\n'


def html(exchange):
    if exchange.is_page:
        exchange.status, exchange.body = 200, b"<html>Please log in</html>"
        exchange.headers = {"content-type": "text/html"}


def echo(exchange):
    if exchange.status in {400, 409}:
        asked = re.sub(r'["\\\0]', "", unquote(exchange.query))
        said = f'"echo": "{asked}", "detail":'.encode()
        exchange.body = exchange.body.replace(b'"detail":', said)


def told_nothing(exchange):
    if exchange.status >= 400 or exchange.path.endswith("/lag"):
        exchange.headers.pop("cache-control", None)


def one_instance(exchange):
    if exchange.status >= 400:
        exchange.body = re.sub(rb"urn:uuid:[0-9a-f-]+", b"urn:uuid:" + b"0" * 36, exchange.body)


async def slow_head(right, scope, receive, send):
    if scope["type"] == "http" and scope["method"] == "HEAD":
        scope = scope | {"method": "GET"}
    await right(scope, receive, send)


def plain_errors(exchange):
    if exchange.status >= 400:
        exchange.headers, exchange.body = {"content-type": "text/plain"}, b"no\n"


def without_n(scope):
    return scope | {"query_string": b""} if scope["query_string"].startswith(b"n=") else scope


def without_wait(scope):
    return scope | {"query_string": re.sub(rb"(^|&)wait=[^&]*", b"", scope["query_string"])}


LATE_EVENT = body(lambda text: text + b'{"data":{"n":1}}\n')
ONE_MORE = found("lag", lambda lag: replace(lag, events=lag.events and lag.events + 1))
LEAVES_OUT = found("splits", lambda cursors: [*cursors[:-1], moved(cursors[-1], -1)])

MUTANTS = {
    "describes itself in no JSON": (
        "discovery-document",
        body(lambda text: b"\xef\xbb\xbf" + text, "/feed"),
    ),
    "skips an event at the boundary": ("page-sizes", instead("read", skips_at_boundary)),
    "drops the checkpoint at the head": ("page-checkpoint", body(without_checkpoint)),
    "sends events after the checkpoint": ("page-end", LATE_EVENT),
    "sends NaN": ("lines-strict", swapped(b'"n":3,', b'"n":NaN,')),
    "breaks lines at U+2028": ("lines-json", swapped("\u2028".encode(), b"\n")),
    "sends bytes that are not UTF-8": ("lines-utf8", swapped("\u2028".encode(), b"\xff")),
    "ignores stop": ("stop", ignoring("stop")),
    "says stopReached of another cursor": ("stop", found("read", stops_elsewhere)),
    "takes a bad cursor for a place": ("cursor-malformed", forgiving("place", 40)),
    "echoes _last": ("cursor-form", answered(echoes_last)),
    "loses the newest at _last": ("last", instead("read", loses_the_last)),
    "ignores event-types": ("event-types", ignoring("types")),
    "stays before filtered events": ("event-types-checkpoint", instead("read", stays)),
    "lets the head be kept": ("caching-head", always("read", full=True)),
    "forgets no-store": ("caching-no-store", header("cache-control", "", cursor=FIRST)),
    "knows no 409": ("token-unknown", status(409, 200, b'{"cursor":"c0"}\n')),
    "answers with a login form": ("token-unknown", answered(html)),
    "shuffles": ("reading-again", found("read", shuffled)),
    "loses one event in ten": ("reading-again", found("read", thinned)),
    "says caughtUp too early": ("caught-up-early", always("read", caught_up=True)),
    "never says caughtUp": ("caught-up", always("read", caught_up=False)),
    "splits leave an event out": ("splits", LEAVES_OUT),
    "counts an event more": ("lag", ONE_MORE),
    "counts past its number": ("cursor-of-count", instead("cursor_of_count", passes_its_number)),
    "counts past a stop": ("cursor-of-count-stop", instead("cursor_of_count", passes_stop)),
    "shows another key": ("key-history", instead("read_key", another_key)),
    "answers lag unannounced": ("extensions-absent", swapped(b'"lag",', b"", "/feed")),
    "knows no Arrow": ("arrow", header("content-type", "application/x-ndjson")),
    "sends Arrow unasked": ("arrow-others", header("content-type", ARROW_TYPE)),
    "gives both forms one tag": ("arrow-caching", header("etag", '"tag"')),
    "does not heed n": ("version-1", answered(lambda _: None, ask=without_n)),
    "does not wait": ("wait", answered(lambda _: None, ask=without_wait)),
    "lists a parent that is open": ("layout-order", found("info", open_parent)),
    "lists ids as numbers": ("partition-ids", swapped(b'"id": "0"', b'"id": 0', "/feed")),
    "repeats the request": ("problem-echo", answered(echo)),
    "refuses in plain text": ("problem-documents", answered(plain_errors)),
    "ends without a newline": ("page-newline", body(lambda text: text[:-1])),
    "sends a byte order mark": ("lines-bom", body(lambda text: b"\xef\xbb\xbf" + text)),
    "names another partition": (
        "lines-partition",
        swapped(b'{"cursor"', b'{"partition":"9","cursor"'),
    ),
    "sends empty lines": ("lines-empty", swapped(b"\n", b"\n\n")),
    "says caughtUp false": ("lines-flags", swapped(b"}\n", b',"caughtUp":false}\n')),
    "escapes half a surrogate pair": ("lines-surrogates", swapped("\u2028".encode(), b"\\ud800")),
    "sends two commands at once": (
        "lines-one-command",
        swapped(b'{"data', b'{"cursor":"c1","data'),
    ),
    "goes in circles": ("reading", always("read", cursor="c0")),
    "publishes twice": ("events-once", found("read", doubled)),
    "gives a schema of another type": ("schemas", swapped(b'"n"', b'"m"', "/feed/schema")),
    "knows a schema of any type": ("schemas-unknown", status(404, 200, b"{}", "/feed/schema")),
    "names one type alone": (
        "schemas-asyncapi",
        swapped(b"order.paid", b"order.placed", "/feed/asyncapi"),
    ),
    "says text/plain": ("page-media-type", header("content-type", "text/plain")),
    "compresses unasked": ("page-encoding", header("content-encoding", "gzip")),
    "fails at a bad size": ("pagesizehint-malformed", status(400, 500, b"{}")),
    "fails at a bad partition": ("partition-malformed", status(400, 500, b"{}")),
    "needs no token": ("token-missing", status(400, 200, b'{"cursor":"c0"}\n')),
    "answers to every method": ("methods", status(405, 200, b"")),
    "keeps an old token": ("token-accepted", swapped(b'"t1"', b'"t2"', "/feed")),
    "lists a token that is a number": ("discovery-token", swapped(b'"t1"', b"1", "/feed")),
    "lists splits without stop": ("extensions", swapped(b'"stop"', b'"sto"', "/feed")),
    "lets every page be kept": ("caching-special", header("cache-control", "max-age=60")),
    "lets full pages be kept for a minute": ("caching-full", header("cache-control", "max-age=60")),
    "tells caches nothing of refusals": ("problem-caching", answered(told_nothing)),
    "tells caches nothing of the lag": ("caching-no-store", answered(told_nothing)),
    "gives problems one instance": ("problem-documents", answered(one_instance)),
    "waits at HEAD": ("wait-head", lambda feed: partial(slow_head, application(feed))),
    "knows no 304": ("caching-etag", status(304, 200, b"")),
    "is late at the head": ("lag-head", always("lag", seconds=3.5)),
    **{
        f"takes what is wrong for {name}": (
            f"{name}-malformed",
            status(400, 200, b"{}", f"/feed/{EXTENSIONS[name].path}"),
        )
        for name in STRICT
    },
    "hides that a key has more": ("key-history-pages", always("read_key", more=False)),
    "gives a cursor after the time": (
        "cursor-of-time-before",
        found("cursor_at", partial(moved, by=1)),
    ),
}
"""By name, the check that a mutant fails, and what makes its application of a feed."""

MUTANTS_OF_LOGS = {
    "loses events of a batch": (
        "append",
        appended(lambda batch: replace(batch, events=batch.events[:1])),
    ),
    "knows no CloudEvents": (
        "append-cloudevents",
        heard(CLOUDEVENTS_BATCH_TYPE.encode(), b"text/plain"),
    ),
    "knows no gzip": ("append-gzip", heard(b"gzip", b"other")),
    "appends a batch again": ("append-again", appended(renamed)),
    "takes any event for the one of its id": (
        "append-id-reused",
        status(409, 201, b'{"events": []}', "/feed/append"),
    ),
    "appends a part of a batch": ("append-whole", instead("append", appends_what_it_can)),
    "expects no version": ("append-versions", appended(without_versions)),
    "counts no batches": (
        "append-producers",
        appended(lambda batch: replace(batch, producer=None, sequence=None)),
    ),
    "takes what is no batch": (
        "append-malformed",
        status(400, 201, b'{"events": []}', "/feed/append"),
    ),
    "takes any media type": ("append-media-type", heard(b"text/plain", NDJSON_TYPE.encode())),
    "has no bounds": ("append-too-large", status(413, 201, b'{"events": []}', "/feed/append")),
    "forgets the sequence": ("producer-sequence", found("producer_sequence", lambda _: 0)),
}
"""Of logs that take events: the check that a mutant fails, and what makes its application."""
