"""A publisher over real HTTP against the vectors of the specification."""

import json
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import httpx
import pytest
from harness.published import install
from harness.readers import kind, mounted
from harness.shop import metadata, orders
from harness.statements import add, execute
from harness.trimmed import trim
from harness.vectors import content, named, schema, vectors
from jsonschema import Draft202012Validator
from sqlalchemy import MetaData, create_engine, delete, select

from zeroeventhub import FIRST, LAST, EventLog, NewEvent, TableFeed
from zeroeventhub.publisher.retention import Retention

DOCUMENT = vectors("requests")
PROBLEM = Draft202012Validator(schema("problem"))
IMMUTABLE = "private, max-age=31536000, immutable"

RECORDED = {"a cursor from before the first event, below the retained range"}
"""What only a publisher can tell that records what it has trimmed: a table does not know whether
there ever was an event before the first that it holds."""


class Shop:
    """Write a table of orders, and publish it; record what is trimmed if that is said."""

    def __init__(self, engine, described, *, recorded):
        self._engine = engine
        self._last = 0
        self._recorded = recorded
        metadata.create_all(engine)
        columns = {"data": "data", "type": "kind", "time": "placed", "partition": "part"}
        retention = Retention() if recorded else None
        self.feed = TableFeed(
            orders, partitions=described["partitions"], retention=retention, **columns
        )
        install(self.feed, engine)
        self.append(described["events"])

    def append(self, events):
        """Append events."""
        for event in events:
            self._last += 1
            placed = datetime.fromisoformat(event["time"]).astimezone(UTC)
            row = {"id": self._last, "part": event["partition"], "kind": event["type"]}
            add(self._engine, orders, row | {"placed": placed, "data": event["data"]})

    def trim(self, count):
        """Delete the first events."""
        if self._recorded:
            trim(self.feed.bind(self._engine), count + 1)
            return
        first = select(orders.c.id).order_by(orders.c.id).limit(count)
        execute(self._engine, delete(orders).where(orders.c.id.in_(first)))

    def lose(self, count, events):
        """Have another history than before."""
        self._last -= count
        execute(self._engine, delete(orders).where(orders.c.id > self._last))
        self.append(events)


@contextmanager
def publishing(name, folder, *, recorded=False):
    """Serve one of the feeds of the vectors; yield its URL, and what changes it."""
    described = DOCUMENT["feeds"][name]
    engine = create_engine(f"sqlite:///{folder / 'vectors.db'}")
    if name == "keys":
        writer, feed = None, keys(engine, described).bind(engine)
    else:
        writer = Shop(engine, described, recorded=recorded)
        feed = writer.feed.bind(engine)
    if name == "plain":
        feed = without_extensions(feed)
    with mounted(feed) as url:
        yield url, writer
    engine.dispose()


def without_extensions(feed):
    """Make a feed of the same events that has no extensions."""
    info = replace(feed.info(), extensions=frozenset())

    def read(partition, cursor, limit):
        return replace(feed.read(partition, cursor, limit), caught_up=False)

    return SimpleNamespace(info=lambda: info, read=read)


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
def publisher(vector, shared, tmp_path):
    """The publisher that a vector asks for; its own, if the vector changes it."""
    if not any("do" in step for step in vector["steps"]):
        yield shared[vector["feed"]]
        return
    with publishing(vector["feed"], tmp_path, recorded=vector["name"] in RECORDED) as own:
        yield own


@pytest.mark.slow
@pytest.mark.parametrize("vector", named("requests"))
def test_publisher_answers_as_the_vector_says(vector, publisher):
    """A publisher answers as the specification says."""
    url, writer = publisher
    known = {"token": httpx.get(url).json()["token"]}
    for step in vector["steps"]:
        match step:
            case {"do": "append", "events": events}:
                writer.append(events)
            case {"do": "trim", "count": count}:
                writer.trim(count)
            case {"do": "lose", "count": count, "events": events}:
                writer.lose(count, events)
            case _:
                answer = ask(url, step, known)
                check(answer, step, known)
                for name, place in step.get("keep", {}).items():
                    known[name] = kept(answer, place)


def test_extensions_are_those_that_the_vectors_use(shared):
    """What a feed has to list, for the vectors to say anything about it, is listed."""
    for name, (url, _) in shared.items():
        listed = httpx.get(url).json().get("extensions", [])
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
        assert kind(answer) == expected["problem"]
        PROBLEM.validate(answer.json())
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
