"""A publisher over real HTTP against the vectors of the specification."""

import json
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import httpx
import pytest
from harness.shop import metadata, orders
from harness.vectors import content, named, schema, vectors
from harness.web import serving
from jsonschema import Draft202012Validator
from sqlalchemy import MetaData, create_engine, delete, func, insert, select
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    Event,
    EventLog,
    FeedInfo,
    NewEvent,
    Page,
    TableFeed,
    feed_routes,
)
from zeroeventhub.errors import BadCursor, Trimmed
from zeroeventhub.protocol import CAUGHT_UP

DOCUMENT = vectors("requests")
PROBLEM = Draft202012Validator(schema("problem"))
IMMUTABLE = "private, max-age=31536000, immutable"

RECORDED = {"a cursor from before the first event, below the retained range"}
"""What only a publisher can tell that records what it has trimmed: a table does not know whether
there ever was an event before the first that it holds."""


class PlainFeed:
    """A feed in memory that has no extension."""

    def __init__(self, events):
        self._events = [Event.of(event["data"]) for event in events]

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        if cursor not in {FIRST, LAST, *map(str, range(len(self._events) + 1))}:
            raise BadCursor("The cursor is not one that this feed has given.")
        place = {FIRST: 0, LAST: len(self._events)}.get(cursor)
        place = int(cursor) if place is None else place
        events = self._events[place : place + limit]
        return Page(events, str(place + len(events)))


class RecordingFeed:
    """A feed in memory that knows what it has trimmed."""

    def __init__(self):
        self.events = []
        self.trimmed = 0

    def info(self):
        return replace(FeedInfo.of(1), extensions=frozenset({CAUGHT_UP}))

    def read(self, partition, cursor, limit):
        end = self.trimmed + len(self.events)
        place = {FIRST: self.trimmed, LAST: end}.get(cursor)
        place = int(cursor) if place is None else place
        if place < self.trimmed:
            raise Trimmed("What follows is gone.", earliest=str(self.trimmed))
        events = self.events[place - self.trimmed :][:limit]
        place += len(events)
        return Page(events, str(place), caught_up=place == end)


class RecordingPublisher:
    """A publisher of a feed that records what it has trimmed."""

    def __init__(self, url, feed):
        self.url = url
        self.feed = feed

    def append(self, events):
        """Append events."""
        self.feed.events += [Event.of(event["data"]) for event in events]

    def trim(self, count):
        """Forget the first events."""
        del self.feed.events[:count]
        self.feed.trimmed += count


class Publisher:
    """A publisher of one of the feeds of the vectors, over SQLite or in memory.

    Args:
        url: where it is mounted.
        engine: of its database; None in memory.
    """

    def __init__(self, url, engine=None):
        self.url = url
        self.engine = engine

    def append(self, events, first=None):
        """Append events; from a position on, if it is given."""
        rows = [
            {
                "part": event["partition"],
                "kind": event["type"],
                "placed": datetime.fromisoformat(event["time"]).astimezone(UTC),
                "data": event["data"],
            }
            for event in events
        ]
        if first is not None:
            rows = [{"id": first + number, **row} for number, row in enumerate(rows)]
        if rows:
            with self.engine.begin() as connection:
                connection.execute(insert(orders), rows)

    def trim(self, count):
        """Delete the first events."""
        with self.engine.begin() as connection:
            first = select(orders.c.id).order_by(orders.c.id).limit(count)
            connection.execute(delete(orders).where(orders.c.id.in_(first)))

    def lose(self, count, events):
        """Have another history than before."""
        with self.engine.begin() as connection:
            last = connection.scalar(select(func.max(orders.c.id)))
            connection.execute(delete(orders).where(orders.c.id > last - count))
        self.append(events, first=last - count + 1)


@contextmanager
def publishing(name, folder):
    """Serve one of the feeds of the vectors."""
    described = DOCUMENT["feeds"][name]
    if name == "plain":
        routes = feed_routes("/feed", PlainFeed(described["events"]))
        with serving(Starlette(routes=routes)) as url:
            yield Publisher(f"{url}/feed")
        return
    engine = create_engine(f"sqlite:///{folder / 'vectors.db'}")
    if name == "keys":
        with serving(
            Starlette(routes=feed_routes("/feed", keys(engine, described), engine))
        ) as url:
            yield Publisher(f"{url}/feed", engine)
        engine.dispose()
        return
    metadata.create_all(engine)
    partitions = {"partition": "part", "partitions": described["partitions"]}
    feed = TableFeed(orders, data="data", type="kind", time="placed", **partitions)
    with serving(Starlette(routes=feed_routes("/feed", feed, engine))) as url:
        publisher = Publisher(f"{url}/feed", engine)
        publisher.append(described["events"])
        yield publisher
    engine.dispose()


def keys(engine, described):
    """Make the feed of a log that has events of keys, some of them with versions."""
    tables = MetaData()
    log = EventLog(tables, "log", partitions=described["partitions"])
    tables.create_all(engine)
    with engine.begin() as connection:
        for event in described["events"]:
            new = NewEvent(event["type"], event["data"], key=event["key"])
            if (version := event.get("version")) is None:
                log.append(connection, [new])
            else:
                log.append_to(connection, event["key"], [new], expected_version=version - 1)
    return log.feed(key_history=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Publishers for vectors that change nothing, by the names of their feeds."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(publishing(name, tmp_path_factory.mktemp(name)))
            for name in DOCUMENT["feeds"]
        }


@pytest.fixture
def publisher(request, shared, tmp_path):
    """The publisher that a vector asks for; its own, if the vector changes it."""
    vector = request.getfixturevalue("vector")
    if not any("do" in step for step in vector["steps"]):
        yield shared[vector["feed"]]
        return
    if vector["name"] in RECORDED:
        feed = RecordingFeed()
        with serving(Starlette(routes=feed_routes("/feed", feed))) as url:
            yield RecordingPublisher(f"{url}/feed", feed)
        return
    with publishing(vector["feed"], tmp_path) as own:
        yield own


@pytest.mark.parametrize("vector", named("requests"))
def test_publisher_answers_as_the_vector_says(vector, publisher):
    """A publisher answers as the specification says."""
    known = {"token": httpx.get(publisher.url).json()["token"]}
    for step in vector["steps"]:
        match step:
            case {"do": "append", "events": events}:
                publisher.append(events)
            case {"do": "trim", "count": count}:
                publisher.trim(count)
            case {"do": "lose", "count": count, "events": events}:
                publisher.lose(count, events)
            case _:
                answer = ask(publisher.url, step, known)
                check(answer, step, known)
                for name, place in step.get("keep", {}).items():
                    known[name] = kept(answer, place)


def test_extensions_are_those_that_the_vectors_use(shared):
    """What a feed has to list, for the vectors to say anything about it, is listed."""
    for name, publisher in shared.items():
        listed = httpx.get(publisher.url).json().get("extensions", [])
        wanted = set(DOCUMENT["feeds"][name]["extensions"])
        assert wanted <= set(listed) if wanted else not listed


def ask(url, step, known):
    """Send a step's request."""
    query = [(name, filled(value, known)) for name, value in step["query"]]
    return httpx.request(
        step.get("method", "GET"),
        f"{url}{step['path']}?{urlencode(query, quote_via=quote)}".rstrip("?"),
        headers={name: filled(value, known) for name, value in step.get("headers", {}).items()},
        timeout=20,
    )


def filled(text, known):
    """Put a text together, with what was kept in its places."""
    if not isinstance(text, str):
        return content(text)
    return re.sub(r"{{(\w+)}}", lambda match: known[match[1]], text)


def lines_of(answer):
    """The lines of a page."""
    assert answer.content.endswith(b"\n")
    return [json.loads(line) for line in answer.content.split(b"\n")[:-1]]


def kept(answer, place):
    """What a step keeps of its answer."""
    match place.split("."):
        case ["etag"]:
            return answer.headers["etag"]
        case ["cursor"] if answer.headers["content-type"] == "application/x-ndjson":
            return lines_of(answer)[-1]["cursor"]
        case ["cursors", number]:
            return answer.json()["cursors"][int(number)]
    return answer.json()[place]


def check(answer, step, known):
    """Compare an answer with what its step expects."""
    expected = step["expect"]
    assert answer.status_code == expected["status"]
    if "media" in expected:
        assert answer.headers["content-type"].partition(";")[0] == expected["media"]
    if "cache" in expected:
        caching = IMMUTABLE if expected["cache"] == "immutable" else expected["cache"]
        assert answer.headers["cache-control"] == caching
        assert ("etag" in answer.headers) == (expected["cache"] == "immutable")
    if "problem" in expected:
        assert answer.headers["content-type"] == "application/problem+json"
        PROBLEM.validate(answer.json())
        assert answer.json()["type"].rpartition("/")[2] == expected["problem"]
        assert answer.json()["status"] == answer.status_code
    if "body" in expected:
        assert answer.text == expected["body"]
    elif answer.status_code == 200 and answer.headers["content-type"] == "application/x-ndjson":
        check_page(answer, expected, known)
    elif "json" in expected:
        assert answer.json() == answer.json() | expected["json"]
        if "cursor" in expected:
            assert answer.json()["cursor"] == filled(expected["cursor"], known)
    if "cursors" in expected:
        least, most = expected["cursors"]
        assert least <= len(answer.json()["cursors"]) <= most
    assert expected.get("absent", "\0") not in answer.text


def check_page(answer, expected, known):
    """Compare the lines of a page with what its step expects."""
    lines = lines_of(answer)
    last = lines[-1]
    assert last["cursor"] not in {FIRST, LAST}
    assert not any(flag in line for line in lines[:-1] for flag in ("caughtUp", "stopReached"))
    events = [line["data"] for line in lines if "data" in line]
    if "events" in expected:
        assert events == expected["events"]
    assert len(events) == expected.get("count", len(events))
    for flag in ("caughtUp", "stopReached"):
        assert last.get(flag) is expected.get(flag)
    if "cursor" in expected:
        assert last["cursor"] == filled(expected["cursor"], known)
