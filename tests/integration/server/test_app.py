"""Every error of a feed, on every route: no answer shows a reader SQL, paths, URLs or other texts.

The tests put unique words into everything that a publisher has, and look for them in all answers.
"""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from itertools import cycle

import anyio
import httpx
import msgspec
import obstore.exceptions
import psycopg
import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa
from harness.readers import Everything, mounted
from harness.statements import execute
from harness.tables import event_table
from obstore.store import S3Store
from sqlalchemy import exc
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect

from zeroeventhub import (
    AppendRight,
    Capacity,
    Event,
    FeedInfo,
    Page,
    Partition,
    Principal,
    TableFeed,
    errors,
    feed_routes,
)
from zeroeventhub.archive import Archive
from zeroeventhub.cli.configuration import FileError
from zeroeventhub.console.changes import Moved
from zeroeventhub.consumer.handler import HandlerCancelled, TransactionEnded
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.feed import ArchiveMiss
from zeroeventhub.protocol import FIRST
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention
from zeroeventhub.relay.target import EventRefused, TargetUnavailable
from zeroeventhub.server import server_sent_events

SECRETS = ["quibber", "zandrow", "molvane", "trissock", "plundle", "vexhorn", "grastin", "ockwell"]
USER, PASSWORD, BUCKET, PREFIX, TABLE, VALUE, ROW, CAUSE = SECRETS
URL = f"https://{USER}:{PASSWORD}@store.{BUCKET}.example/{PREFIX}"
SQL = f"SELECT {TABLE}.id FROM {TABLE} WHERE {TABLE}.key = %(key)s"
INNER = f"{URL} {SQL} {VALUE} {ROW}"
FOREIGN = f"{INNER} {CAUSE}"

# Errors whose text is for the reader, as docs/security.md has it of hooks, and SPEC.md of feeds.
SAID = {
    errors.FeedError: 400,
    errors.BadRequest: 400,
    errors.BadCursor: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.TokenChanged: 409,
    errors.Gone: 410,
    errors.Trimmed: 410,
    errors.Diverged: 410,
    errors.Unavailable: 503,
    errors.TooManyRequests: 429,
    errors.TooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.InvalidEvent: 422,
    errors.OutOfSequence: 409,
    errors.Conflict: 409,
    errors.IdReused: 409,
    errors.StorageFull: 507,
    Moved: 409,
}
# Errors that say what the publisher, or a consumer in its process, could not do: not a word.
UNSAID = {
    *(errors.ZeroEventHubError, errors.ConfigurationError, errors.MissingExtra, errors.FeedFailure),
    *(errors.ProtocolError, errors.PageTooLarge, errors.TransientError, errors.Unreachable),
    *(errors.CutPage, errors.StoreUnavailable, errors.Fenced, errors.LeaseLost),
    *(errors.TooManyDeadLetters, errors.Halted, errors.NotAppended, TransactionEnded),
    *(HandlerCancelled, EventRefused, TargetUnavailable, FileError),
}
GIVEN = {
    errors.Conflict: {"key": "k", "version": 7},
    errors.InvalidEvent: {"path": "$[0].data"},
    errors.OutOfSequence: {"sequence": 7},
    errors.Halted: {"partition": 0},
    errors.NotAppended: {"errors": {}},
}
WITHHELD = "The feed failed: the reason is in the publisher's log."
AWAY = "The feed cannot reach what it reads from."


def descendants(kind):
    """All classes below a class, and itself."""
    return {kind}.union(*map(descendants, kind.__subclasses__()))


BY_A_HOOK = {errors.Unauthorized, errors.Forbidden, *descendants(errors.Unavailable)}


def test_every_error_of_the_library_is_listed():
    """This file says of every error of the library what a reader sees."""
    ours = [
        one
        for one in descendants(errors.ZeroEventHubError)
        if one.__module__.startswith("zeroeventhub.")
    ]
    assert {*ours} == {*SAID, *UNSAID}


def fail_to_load():
    """Fail while a part of an archive is fetched."""
    raise OSError(5, FOREIGN, URL)


class Textless(Exception):
    """An error of a host's whose text cannot be made."""

    def __str__(self):  # noqa: D105 - it is what its class says
        raise LookupError(FOREIGN)


def foreign():
    """Make errors of other packages that a request may raise, with all that they can hold."""
    driver = psycopg.errors.UndefinedTable(FOREIGN)
    answer = httpx.Response(403, text=ROW)
    yield from (
        exc.ProgrammingError(SQL, {"key": VALUE}, driver),
        exc.DBAPIError(SQL, (VALUE,), pymysql.err.OperationalError(1045, FOREIGN)),
        exc.IntegrityError(SQL, (VALUE,), sqlite3.IntegrityError(FOREIGN)),
        *(driver, pymysql.err.OperationalError(2003, FOREIGN), sqlite3.DatabaseError(FOREIGN)),
        UnicodeDecodeError("utf-8", ROW.encode(), 0, 1, FOREIGN),
        json.JSONDecodeError(FOREIGN, ROW, 0),
        httpx.HTTPStatusError(FOREIGN, request=httpx.Request("GET", URL), response=answer),
        *(FileNotFoundError(2, FOREIGN, URL), ConnectionRefusedError(111, FOREIGN)),
        *(ArchiveMiss(fail_to_load), ExceptionGroup(FOREIGN, [ValueError(FOREIGN)]), Textless()),
        asyncio.CancelledError(FOREIGN),
    )
    texts = (
        *(exc.SQLAlchemyError, exc.TimeoutError, pymysql.err.InterfaceError, TimeoutError),
        *(httpx.ConnectError, anyio.ClosedResourceError, ClientDisconnect, StopIteration),
        *(KeyError, AssertionError, RecursionError, MemoryError, StopAsyncIteration),
        *(msgspec.ValidationError, obstore.exceptions.GenericError, pa.ArrowInvalid),
    )
    yield from (kind(FOREIGN) for kind in texts)


def chained(error):
    """Hang other errors with texts onto an error."""
    error.__context__ = ValueError(FOREIGN)
    error.__cause__ = exc.ProgrammingError(SQL, {"key": CAUSE}, psycopg.DataError(FOREIGN))
    error.add_note(FOREIGN)
    return error


def cases():
    """Every error, with the status of its answer and what is said of it."""
    for kind, status in SAID.items():
        yield chained(kind("Why.", **GIVEN.get(kind, {}))), status, "Why."
    for kind in UNSAID:
        answer = (503, AWAY) if issubclass(kind, errors.TransientError) else (500, WITHHELD)
        yield chained(kind(INNER, **GIVEN.get(kind, {}))), *answer
    yield from ((chained(error), 500, WITHHELD) for error in foreign())


PLACE = {"token": "1", "partition": 0, "cursor": "7"}
ROUTES = [
    ("", {}),
    ("/server-sent-events", {}),
    ("/events", PLACE),
    ("/events", {**PLACE, "cursor": "head", "wait": 20}),
    ("", {"n": 1, "cursor0": "7"}),
    ("/cursor", {**PLACE, "time": "2026-01-31T12:00:00Z"}),
    ("/splits", {**PLACE, "count": 2}),
    ("/lag", PLACE),
    ("/cursor-of-count", {**PLACE, "events": 3}),
    ("/segments", PLACE),
    ("/key-history", {"key": "k"}),
    ("/progress", {**PLACE, "consumer": "c"}),
    ("/append", {}),
    ("/append", {"producer": "p"}),
    ("/http-feed", {}),
    ("/http-feed", {"lastEventId": "7"}),
    ("/server-sent-events", {"cursor": "7"}),
]


class Failing(Everything):
    """A feed of one's own each of whose methods fails."""

    error = None
    known = waits = False

    async def info(self):
        if not self.known:
            raise self.error
        return FeedInfo((Partition(0),), "1", extensions=frozenset(EXTENSIONS))

    def answer(self, _, partition=0, cursor="", *arguments, **options):
        if cursor == "head" and not self.waits:
            self.waits = True
            return Page([], cursor, caught_up=True)
        if cursor == FIRST and options.get("each"):
            return Page([Event(b"1")], "7", cursors=["7"])
        raise self.error


def request_of(route, parameters, url="http://feed/feed"):
    """A request for something of a feed."""
    if route == "/append" and not parameters:
        event = {"id": "e1", "type": "placed", "data": {}}
        kind = {"Content-Type": "application/x-ndjson"}
        return httpx.Request("POST", f"{url}{route}", content=json.dumps(event), headers=kind)
    method = "PUT" if route == "/progress" else "GET"
    return httpx.Request(method, f"{url}{route}", params=parameters)


def assert_silent(answer):
    """Show that an answer, which is a problem, says nothing of what is inside."""
    shown = f"{answer.status_code} {answer.headers} {answer.text}"
    assert [secret for secret in SECRETS if secret in shown] == [], shown
    assert answer.headers["content-type"] == "application/problem+json", shown
    document = answer.json()
    assert document["status"] == answer.status_code
    own = {"earliestCursor", "key", "version", "path", "sequence"}
    assert document.keys() - own == {"type", "title", "status", "detail", "instance"}
    return document["detail"]


@pytest.mark.slow
def test_readers_hear_nothing_of_what_fails(caplog, monkeypatch):
    """Whatever a feed or a hook raises, no answer has a text of it."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", -1.0)  # the hook is asked after each page
    feed, refusals = Failing(), []

    async def authorize(request):
        if refusals and (error := refusals.pop()) is not None:
            raise error
        return Principal(name="reader", append=AppendRight())

    options = {"authorize": authorize, "http_feed": True, "server_sent_events": True}
    options |= {"capacity": Capacity(look_seconds=0.001)}
    application = Starlette(debug=True, routes=feed_routes("/feed", feed, **options))
    transport = httpx.ASGITransport(application)
    discovery, stream, *requests = (request_of(*route) for route in ROUTES)

    async def ask(request, *hook):
        refusals.extend(hook)
        answer = await transport.handle_async_request(request)
        await answer.aread()
        return answer

    async def refused(request, *hook):
        answer = await ask(request, *hook)
        return answer.status_code, assert_silent(answer)

    async def attack():
        for (error, *expected), late in zip(cases(), cycle(requests)):
            feed.error, feed.known, feed.waits = error, True, False
            for request in requests:
                assert await refused(request) == (*expected,), (request.url, error)
            for hook in ([], [error, None]):
                answer = await ask(stream, *hook)
                assert (answer.status_code, answer.content) == (200, b"id: 7\ndata: 1\n\n")
            feed.known = False
            assert await refused(discovery) == (*expected,), error
            late_answer = (*expected,) if type(error) in BY_A_HOOK else (500, WITHHELD)
            assert await refused(late, error) == late_answer, (late.url, error)

    anyio.run(attack)
    assert CAUSE not in caplog.text


UNREACHABLE = S3Store(
    BUCKET,
    prefix=PREFIX,
    endpoint=f"http://{USER}:{PASSWORD}@127.0.0.1:9",
    region="us-east-1",
    access_key_id=USER,
    secret_access_key=PASSWORD,
    client_options={"allow_http": True},
    retry_config={"max_retries": 0},
)
STATEMENTS = {
    "the table is gone": f"DROP TABLE {TABLE}",
    "a column is gone": f"ALTER TABLE {TABLE} RENAME COLUMN data TO {VALUE}",
    "the history is gone": "DROP TABLE zeroeventhub_retention",
    "the progress is gone": "DROP TABLE zeroeventhub_progress",
    "no JSON": f"UPDATE {TABLE} SET data = '{{\"{ROW}'",
    "no text": f"UPDATE {TABLE} SET kind = CAST(x'ff' || '{ROW}' AS TEXT)",
    "no moment": f"UPDATE {TABLE} SET at = '{ROW}'",
    "no archive": "UPDATE zeroeventhub_retention SET trimmed = 5",
}
FILES = {"no manifest": "manifest/*", "no segment": "segments/*"}
EVENTS = sa.UniqueConstraint("kind", "number")
TABLES = event_table(
    TABLE, EVENTS, data=sa.JSON, at=sa.DateTime, kind=sa.String(9), number=sa.Integer
)


def source(store, **keys):
    """A feed that has all that a feed can have, with an archive in a store."""
    options = {"type": "kind", "time": "at", "data": "data", "cloudevents": "/shop", **keys}
    options |= {"retention": Retention(), "progress": Progress()}
    return TableFeed(TABLES, archive=Archive(store, shared="https://cdn.example"), **options)


def damage_to(engine, folder, damage):
    """Fill a database, and damage it or its archive; return the feed."""
    TABLES.metadata.create_all(engine)
    store = UNREACHABLE if damage == "no archive" else folder
    versions = {"key": "kind", "version": "number", "key_history": True}  # which are never trimmed
    feed = source(store, **(versions if damage in STATEMENTS else {}))
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
    with engine.begin() as connection:
        feed.install(connection)
        rows = [{"data": n, "at": noon, "kind": "paid", "number": n} for n in range(1, 9)]
        connection.execute(TABLES.insert(), rows)
    if damage in STATEMENTS:
        execute(engine, STATEMENTS[damage])
        return feed
    bound = feed.bind(engine)
    bound.seal()
    bound.trim(bound.plan_trim(below=6))
    files = [*folder.glob(FILES[damage])]
    assert files
    for file in files:
        file.write_bytes(ROW.encode() * 100)
    return source(folder)


@pytest.mark.parametrize("damage", [*STATEMENTS, *FILES])
def test_readers_hear_nothing_of_what_is_damaged(tmp_path, caplog, damage):
    """No answer on any route has addresses, names, statements or rows, whatever is damaged."""
    folder = tmp_path / PREFIX
    folder.mkdir()
    engine = sa.create_engine(f"sqlite:///{folder}/{BUCKET}.db")
    feed = damage_to(engine, folder, damage)
    problems = []
    with mounted(feed, engine, http_feed=True) as url, httpx.Client(timeout=20) as http:
        for route, parameters in ROUTES:
            if route == "/server-sent-events":
                continue  # what can be read is streamed for ever
            known = {"7": "1-2", "head": "1-7", "k": "paid"}
            asked = {name: known.get(value, value) for name, value in parameters.items()}
            answer = http.send(request_of(route, asked, url))
            if answer.status_code != 200:
                problems.append(assert_silent(answer))
            assert not any(secret in answer.text for secret in SECRETS), answer.text
    assert problems
    logged = "".join(f"{vars(one)!r} {one.getMessage()}" for one in caplog.records) + caplog.text
    assert ROW not in logged
    if damage in {"no JSON", "no text", "no moment"}:
        assert "zeroeventhub.errors.FeedFailure: A row" in logged or "The row at position" in logged
