"""Throw query strings at all routes of a feed, in process, and see that no answer is a failure.

    python tests/fuzz/fuzz_requests.py 200000 [SEED]

A finding ends it with a traceback that names the request.
"""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    insert,
)
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes

ALLOWED = {200, 304, 400, 404, 409, 410, 503}
PATHS = ["/feed", "/feed/events", "/feed/cursor", "/feed/splits", "/feed/http-feed"]
PATHS += ["/feed/server-sent-events", "/plain", "/plain/events", "/plain/cursor", "/plain/splits"]
PATHS += ["/feed/lag", "/plain/lag"]
NAMES = ["token", "partition", "cursor", "pagesizehint", "event-types", "skip-event-types", "stop"]
NAMES += ["wait", "time", "count", "n", "cursor0", "cursor1", "cursor2", "headers", "lastEventId"]
NAMES += ["timeout", "newer", ""]
WANTED = {
    "events": ["token", "partition", "cursor"],
    "cursor": ["token", "partition", "time"],
    "splits": ["token", "partition", "count"],
    "lag": ["token", "partition", "cursor"],
    "http-feed": ["partition"],
    "server-sent-events": ["partition"],
}
NUMBERS = ["0", "1", "2", "3", "007", "10", "1000", "10001", "32768", "9" * 30, "9" * 5000, "-1"]
NUMBERS += ["+1", "1.5", "1e3", "0x1", " 1", "1_0", "\u0661", "\uff11", "\u00b2", "NaN", "", "\x00"]
MOMENTS = ["2026-01-31T12:00:10Z", "2026-01-31t12:00:10.123456789z", "2026-01-31T13:00:10+01:00"]
MOMENTS += ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"]
MOMENTS += ["2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T12:00:60Z", "2026-01-31"]
MOMENTS += ["2026-01-31T12:00:10+99:99", "2026-W05-6T12:00:00Z", "0000-01-01T00:00:00Z", "now"]
CURSORS = ["_first", "_last", "1-0", "1-5", "1-40", "1-41", "1-9223372036854775807", "2-0-0000-00"]
CURSORS += ["1-9223372036854775808", "1-" + "9" * 30, "2-5-0000-0000000000", "1-05", "1--1", "3-1"]
CURSORS += ["2-5-ffff-ffffffffff", "2-9223372036854775807-0000-0000000000", "c", "a" * 4097, "\t"]
TYPES = [
    "placed",
    "PAID;placed",
    ";;",
    "",
    "a;" * 101,
    "a" * 257,
    "å",
    "a b",
    "%",
    "_",
    "'",
    "\x7f",
]
WAITS = [
    "0",
    "0.001",
    "5",
    "30",
    "999999999",
    "9999999999",
    ".5",
    "5.",
    "1e1",
    "-1",
    "inf",
    "0.5.5",
]
TAGS = [b"*", b'"x"', b"W/", b'"' * 99, b"\xff", b""]
JUNK = [
    "",
    "%",
    "%zz",
    "%ff",
    "\ud800",
    "\U0010ffff",
    "&",
    "=",
    "+",
    ";",
    "a\nb",
    "' OR 1=1 --",
    "\0",
]

_metadata = MetaData()
_events = Table(
    "events",
    _metadata,
    Column("id", Integer, primary_key=True),
    Column("part", Integer, nullable=False),
    Column("kind", String(40)),
    Column("happened", DateTime),
    Column("data", JSON),
    sqlite_autoincrement=True,
)


class _Awaitable:
    """Be a sync feed for asynchronous code, without threads: in memory nothing waits."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._feed, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return method(*arguments, **options)

        return call

    async def info(self) -> Any:
        return self._feed.info()

    async def read(self, *arguments: Any, **options: Any) -> Any:
        return self._feed.read(*arguments, **options)


class _Plain:
    """Be a feed of two methods, without extensions."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    async def info(self) -> Any:
        from zeroeventhub import FeedInfo

        return FeedInfo.of(2)

    async def read(self, partition: int, cursor: str, limit: int) -> Any:
        return self._feed.read(partition, cursor, limit)


class Fuzzer:
    """Ask a feed of 40 events, whose first ones are no longer there, for anything.

    Args:
        seed: of the requests.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        _metadata.create_all(self._engine)
        noon = datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
        rows = [
            {
                "part": number % 2,
                "kind": ("placed", "Paid", None)[number % 3],
                "happened": noon + timedelta(seconds=number),
                "data": {"n": number},
            }
            for number in range(40)
        ]
        with self._engine.begin() as connection:
            connection.execute(insert(_events), rows)
        source = TableFeed(
            _events,
            partition="part",
            partitions=2,
            data="data",
            type="kind",
            time="happened",
            cloudevents=True,
        )
        feed = source.bind(self._engine)
        self._cursors = [*CURSORS, *self._real_cursors(feed)]
        with self._engine.begin() as connection:
            connection.execute(delete(_events).where(_events.c.id <= 6))
        self._kept: tuple[str, bytes, list[tuple[bytes, bytes]]] | None = None
        self._application = Starlette(
            routes=[
                *feed_routes(
                    "/feed", _Awaitable(feed), http_feed=True, server_sent_events=True, name="a"
                ),
                *feed_routes("/plain", _Plain(feed), name="b"),
            ]
        )
        self.answers: Counter[tuple[str, int]] = Counter()

    @staticmethod
    def _real_cursors(feed: Any) -> list[str]:
        return [feed.read(n % 2, FIRST, n).cursor for n in range(1, 21)]

    async def run(self, count: int) -> None:
        """Make so many requests."""
        for _ in range(count):
            await self.ask()

    async def ask(self) -> None:
        """Make a request, and raise AssertionError if its answer is a failure."""
        path = self._random.choice(PATHS)
        query = self._query(path)
        method = self._random.choice(["GET"] * 9 + ["HEAD"])
        headers = self._headers()
        if self._kept and self._random.random() < 0.05:
            path, query, headers = self._kept
        try:
            status, answer, body = await self._answer(method, path, query, headers)
        except Exception as error:
            raise AssertionError(f"{method} {path}?{query!r} {headers}: {error!r}") from error
        assert status in ALLOWED, f"{method} {path}?{query!r} {headers}: {status} {body!r}"
        if b"etag" in answer:
            self._kept = path, query, [(b"if-none-match", answer[b"etag"])]
        self.answers[path, status] += 1

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = []
        if self._random.random() < 0.3:
            headers.append((b"if-none-match", self._random.choice(TAGS)))
        if self._random.random() < 0.2:
            text = self._random.choice([*self._cursors, *JUNK]).encode("latin-1", "replace")
            headers.append((b"last-event-id", text))
        return headers

    def _query(self, path: str) -> bytes:
        choice = self._random
        last = path.rpartition("/")[2]
        names = list(WANTED.get(last, [])) if choice.random() < 0.9 else []
        if last in {"feed", "plain"} and choice.random() < 0.7:
            names = ["n", "cursor0"]
        names += choice.choices(NAMES, k=choice.choice([0, 0, 1, 1, 2, 3, 6]))
        if choice.random() < 0.9:
            names = list(dict.fromkeys(names))
        parts = [f"{self._escape(name)}={self._escape(self._value(name))}" for name in names]
        query = "&".join(parts).encode()
        if choice.random() < 0.03:
            query += bytes(choice.randrange(256) for _ in range(choice.randrange(12)))
        return query

    def _escape(self, text: str) -> str:
        raw = self._random.random() < 0.02
        return text if raw and text.isascii() else quote(text, safe="", errors="surrogatepass")

    def _value(self, name: str) -> str:
        choice = self._random
        if choice.random() < 0.04:
            return choice.choice(JUNK)
        if choice.random() < 0.75 and name in {"token", "partition", "n", "count", "pagesizehint"}:
            return choice.choice({"partition": "01", "token": "2", "n": "2"}.get(name, "123"))
        match name:
            case "cursor" | "stop" | "cursor0" | "cursor1" | "cursor2":
                return choice.choice(self._cursors)
            case "time":
                return choice.choice(MOMENTS)
            case "event-types" | "skip-event-types" | "headers":
                return choice.choice(TYPES)
            case "wait":
                return choice.choice(WAITS)
            case "lastEventId":
                return choice.choice(NUMBERS)
        return choice.choice(NUMBERS)

    async def _answer(
        self, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]]
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """Send a request to the application; the client is gone as soon as it has asked."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": ("feed", 80),
        }
        sent: list[Any] = []
        asked = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return asked.pop() if asked else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self._application(scope, receive, send), 10)
        start, *rest = sent
        body = b"".join(message.get("body", b"") for message in rest)
        return start["status"], dict(start["headers"]), body

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()


def fuzz(count: int, seed: int) -> Counter[tuple[str, int]]:
    """Make so many requests; return how often each path gave each status."""
    logging.getLogger("zeroeventhub").setLevel(logging.CRITICAL)
    fuzzer = Fuzzer(seed)
    try:
        asyncio.run(fuzzer.run(count))
    finally:
        fuzzer.close()
    return fuzzer.answers


def main() -> None:
    """Fuzz as the command line says, and print what the answers were."""
    count, seed = [*map(int, sys.argv[1:]), 1][:2]
    started = time.monotonic()
    answers = fuzz(count, seed)
    seconds = time.monotonic() - started
    lines = [f"{path} {status}: {times:,}" for (path, status), times in sorted(answers.items())]
    lines.append(f"{count:,} requests in {seconds:.0f} s, seed {seed}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
