"""Throw requests at all routes of feeds, in process, and see that no answer is a failure.

Nor may an answer show anything of what its reader may not see, or a problem anything of what was
asked.
"""

import asyncio
import logging
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette
from starlette.requests import Request

from harness.statements import add, execute
from harness.tables import event_table
from zeroeventhub import FIRST, Principal, Quota, TableFeed, bearer_tokens, feed_routes
from zeroeventhub.errors import Forbidden
from zeroeventhub.protocol import TypeFilter

ALLOWED = {200, 400, 401, 403, 404, 405, 409, 410, 429}
ENDPOINTS = ["", "/events", "/cursor", "/splits", "/lag", "/cursor-of-count"]
RENDITIONS = ["/http-feed", "/server-sent-events"]
GUARDED = [f"/guarded{path}" for path in [*ENDPOINTS, *RENDITIONS]]
PATHS = [f"/feed{path}" for path in [*ENDPOINTS, *RENDITIONS, "/key-history"]]
PATHS += GUARDED
OFTEN = [*PATHS, *GUARDED, *["/guarded", "/guarded/events"] * 3]
ECHO = "canary~of~a~request"  # what no problem repeats, wherever in a request it stood
METHODS = ["GET"] * 30 + ["HEAD"] * 4 + ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", ECHO]
KINDS = ("placed", "Paid", None)  # the types of events
READERS = {
    "everything": Principal(name="everything"),
    "one": Principal(name="one", partitions={0}),
    "nowhere": Principal(name="nowhere", partitions=()),
    "paid": Principal(name="paid", types={"paid"}),
    "unpaid": Principal(name="unpaid", types=TypeFilter(frozenset({"paid"}), skip=True)),
    "nothing": Principal(name="nothing", types=()),
    "both": Principal(name="both", partitions={1}, types={"placed"}),
    "greedy": Principal(name="greedy", quota=Quota(rate=0.1, burst=1)),
    "banned": Principal(name="banned"),
}
SCHEMES = ["Bearer"] * 20 + ["bearer", "BEARER", "Basic", "", "Bearer Bearer", ECHO]
NAMES = ["token", "partition", "cursor", "pagesizehint", "event-types", "skip-event-types", "stop"]
NAMES += ["wait", "time", "count", "n", "cursor0", "cursor1", "cursor2", "headers", "lastEventId"]
NAMES += ["timeout", "events", "newer", ""]
WANTED = {
    "events": ["token", "partition", "cursor"],
    "cursor": ["token", "partition", "time"],
    "splits": ["token", "partition", "count"],
    "lag": ["token", "partition", "cursor"],
    "cursor-of-count": ["token", "partition", "cursor", "events"],
    "key-history": ["key"],
    "http-feed": ["partition"],
    "server-sent-events": ["partition"],
}
NUMBERED = {"token", "partition", "n", "count", "events", "pagesizehint"}
NUMBERS = ["0", "1", "2", "3", "007", "10", "1000", "10001", "32768", "9" * 30, "9" * 5000, "-1"]
NUMBERS += ["+1", "1.5", "1e3", "0x1", " 1", "1_0", "\u0661", "\uff11", "\u00b2", "NaN", "", "\x00"]
MOMENTS = ["2026-01-31T12:00:10Z", "2026-01-31t12:00:10.123456789z", "2026-01-31T13:00:10+01:00"]
MOMENTS += ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"]
MOMENTS += ["2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z", "2026-01-31T12:00:60Z", "2026-01-31"]
MOMENTS += ["2026-01-31T12:00:10+99:99", "2026-W05-6T12:00:00Z", "0000-01-01T00:00:00Z", "now"]
CURSORS = ["_first", "_last", "1-0", "1-5", "1-40", "1-41", "1-9223372036854775807", "2-0-0000-00"]
CURSORS += ["1-9223372036854775808", "1-" + "9" * 30, "2-5-0000-0000000000", "1-05", "1--1", "3-1"]
CURSORS += ["2-5-ffff-ffffffffff", "2-9223372036854775807-0000-0000000000", "c", "a" * 4097, "\t"]
TYPES = ["placed", "PAID;placed", ";;", "", "a;" * 101, "a" * 257, "å", "a b", "%", "_", "\x7f"]
WAITS = ["0", "0.001", "5", "30", "999999999", "9999999999", ".5", "5.", "1e1", "-1", "inf"]
VALUES = {"time": MOMENTS, "wait": WAITS}
VALUES |= dict.fromkeys(("event-types", "skip-event-types", "headers"), TYPES)
JUNK = ["", ECHO, "%", "%zz", "%ff", "\ud800", "\U0010ffff", "&", "=", "+", ";", "a\nb", "\0"]
JUNK += ["' OR 1=1 --"]

_events = event_table(
    "events", part=sa.Integer, kind=sa.String(40), happened=sa.DateTime, data=sa.JSON
)


def token(name: str) -> str:
    """Return a reader's token."""
    return f"{name}-0123456789abcdef"


_known = bearer_tokens({token(name): reader for name, reader in READERS.items()})


async def authorize(request: Request) -> Principal:
    """Let in who shows a token, but one."""
    principal = await _known(request)
    if principal.name == "banned":
        raise Forbidden("You may not read this feed.")
    return principal


def mark(part: int, kind: str | None) -> str:
    """Return what stands in events of a partition and a type, and nowhere else."""
    return f"event-of-{part}-{kind}-"


def hidden_from(name: str | None) -> list[bytes]:
    """Return the marks of events that a reader may not see; None for a stranger."""
    sees = Principal(name="", partitions=()) if name in {None, "banned"} else READERS[name]
    types = sees.narrowed(None)
    return [
        mark(part, kind).encode()
        for part, kind in product(range(2), KINDS)
        if not (sees.may_read(part) and (types is None or types.lets_through(kind or "")))
    ]


HIDDEN = {name: hidden_from(name) for name in (None, *READERS)}


class _Awaitable:
    """Be a sync feed for asynchronous code, without threads: in memory nothing waits."""

    known_info = None

    def __init__(self, feed: Any) -> None:
        self._feed = feed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._feed, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            return method(*arguments, **options)

        return call


class Fuzzer:
    """Ask a feed of 40 events, whose first ones are no longer there, for anything."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.engine = sa.create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        _events.create(self.engine)
        noon = datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
        rows = [
            {
                "part": number % 2,
                "kind": KINDS[number % 3],
                "happened": noon + timedelta(seconds=number),
                "data": {"n": number, "is": mark(number % 2, KINDS[number % 3])},
            }
            for number in range(40)
        ]
        add(self.engine, _events, rows)
        options = {"partition": "part", "partitions": 2, "data": "data", "type": "kind"}
        options |= {"time": "happened", "cloudevents": "/events"}
        feed, guarded = (
            TableFeed(_events, **options, cursor_secret=secret).bind(self.engine)
            for secret in (None, "known to the publisher alone")
        )
        self._cursors = list(CURSORS)
        for real in (feed, guarded):
            self._cursors += [real.read(n % 2, FIRST, n).cursor for n in range(1, 21)]
        execute(self.engine, sa.delete(_events).where(_events.c.id <= 6))
        renditions = {"http_feed": True, "server_sent_events": True}
        guards = {"authorize": authorize, "name": "c"}
        self._application = Starlette(
            routes=[
                *feed_routes("/feed", _Awaitable(feed), name="a", **renditions),
                *feed_routes("/guarded", _Awaitable(guarded), **guards, **renditions),
            ]
        )
        self._application.router.redirect_slashes = False  # the host's redirections, not a feed's
        self.answers: Counter[tuple[str, int]] = Counter()

    async def ask(self) -> None:
        """Make a request, and raise AssertionError if its answer is a failure."""
        path = self._random.choice(OFTEN)
        query = self._query(path)
        method = self._random.choice(METHODS)
        reader, headers = self._authorization()
        about = f"{method} {path}?{query!r} {headers}"
        try:
            status, answer, body = await self._answer(method, path, query, headers)
        except Exception as error:
            raise AssertionError(f"{about}: {error!r}") from error
        said = body + b"\n".join([*answer, *answer.values()])
        about += f": {status} {said!r}"
        assert status in ALLOWED, about
        if path in GUARDED:
            assert not any(marked in said for marked in HIDDEN[reader]), about
            assert status == 405 or b"Authorization" in answer[b"vary"], about
        assert status < 400 or ECHO.encode() not in said, about
        self.answers[path, status] += 1

    def _authorization(self) -> tuple[str | None, list[tuple[bytes, bytes]]]:
        """Choose a reader, or a stranger, and the header by which it says who it is."""
        choose = self._random
        if choose.random() < 0.1:
            return None, []
        name = choose.choice([*READERS])
        shown = token(name)
        if choose.random() < 0.05:
            shown = choose.choice([shown[:-1], f"{shown}x", shown.upper(), *JUNK])
        text = f"{choose.choice(SCHEMES)} {shown}".encode("latin-1", "replace")
        header = (b"authorization", text)
        known = shown == token(name) and text.lower().startswith(b"bearer ")
        twice = choose.random() < 0.02
        return name if known and not twice else None, [header, header] if twice else [header]

    def _query(self, path: str) -> bytes:
        choice = self._random
        last = path.rpartition("/")[2]
        names = list(WANTED.get(last, [])) if choice.random() < 0.9 else []
        if last in {"feed", "guarded"} and choice.random() < 0.7:
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
        if choice.random() < 0.75 and name in NUMBERED:
            return choice.choice({"partition": "01", "token": "2", "n": "2"}.get(name, "123"))
        if name.startswith("cursor") or name == "stop":
            return choice.choice(self._cursors)
        return choice.choice(VALUES.get(name, NUMBERS))

    async def _answer(
        self, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]]
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        """Send a request to the application; the client is gone as soon as it has asked."""
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "root_path": ""}
        scope |= {"method": method, "scheme": "http", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": query, "headers": headers, "server": ("feed", 80), "client": None}
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


def fuzz(count: int, seed: int) -> Counter[tuple[str, int]]:
    """Make so many requests; return how often each path gave each status."""
    log = logging.getLogger("zeroeventhub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    fuzzer = Fuzzer(seed)

    async def run() -> None:
        for _ in range(count):
            await fuzzer.ask()

    try:
        asyncio.run(run())
    finally:
        fuzzer.engine.dispose()
        log.setLevel(level)
    return fuzzer.answers
