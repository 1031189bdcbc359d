"""A feed as a stream of server-sent events, over real HTTP."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import FIRST, Event, FeedInfo, TableFeed, feed_routes
from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import WAIT, Page, Partition
from zeroeventhub.server import server_sent_events

SOON = 2.0
_LINE = re.compile("\r\n|\r|\n")


@contextmanager
def mounted(feed, engine=None, **application):
    """Serve a feed; yield its URL."""
    routes = feed_routes("/orders", feed, engine, server_sent_events=True)
    with serving(Starlette(routes=routes, **application)) as url:
        yield f"{url}/orders"


@pytest.fixture
def shop(sqlite):
    """An engine of a database with an empty table of orders."""
    metadata.create_all(sqlite)
    return sqlite


def write(engine, count=1, **options):
    """Append events in a transaction of their own."""
    with engine.begin() as connection:
        place(connection, count, **options)


def parse(stream):
    """Read a stream as the HTML standard has it; return its events and the last id."""
    events, last_id, data, name = [], "", [], ""
    *lines, _ = _LINE.split(stream.decode(errors="replace"))
    known = ""
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "" if not line:
                known = last_id
                if data:
                    events.append((known, name or "message", "\n".join(data)))
                data, name = [], ""
            case "data":
                data.append(value)
            case "event":
                name = value
            case "id" if "\0" not in value:
                last_id = value
    return events, known


def stream(url, enough, *, headers=None, **parameters):
    """Read a stream until it is enough, or at its end; return its bytes."""
    received = b""
    with httpx.stream(
        "GET", f"{url}/server-sent-events", params=parameters, headers=headers, timeout=20
    ) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        for chunk in answer.iter_raw():
            received += chunk
            if enough(received):
                break
    return received


def events(url, count, **parameters):
    """Read a number of events from a stream; return their ids and numbers."""
    received = stream(url, lambda so_far: len(parse(so_far)[0]) >= count, **parameters)
    return [(key, json.loads(data)["n"]) for key, _, data in parse(received)[0]]


def numbers(found):
    """Return the numbers of events."""
    return [number for _, number in found]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_stream_brings_what_there_is_and_what_comes(engine, async_url, kind):
    """A stream goes on with what is committed later, and its ids are cursors of the feed."""
    metadata.create_all(engine)
    write(engine, 5)
    reading = create_async_engine(async_url) if kind == "async" else engine

    @asynccontextmanager
    async def lifespan(_):
        yield
        if reading is not engine:
            await reading.dispose()

    feed = TableFeed(orders, data="data")
    with mounted(feed, reading, lifespan=lifespan) as url, ThreadPoolExecutor(1) as pool:
        reader = pool.submit(events, url, 7)
        time.sleep(0.4)
        write(engine, 2, first=5)
        committed = time.monotonic()
        found = reader.result()
        assert time.monotonic() - committed < SOON
        assert numbers(found) == list(range(7))
        for key, number in found[::3]:
            place_ = {"token": "1", "partition": 0, "cursor": key}
            answer = httpx.get(f"{url}/events", params=place_)
            rest = [json.loads(line)["data"]["n"] for line in answer.text.splitlines()[:-1]]
            assert rest == list(range(number + 1, 7))


def test_stream_that_is_cut_goes_on_where_it_was(shop):
    """Wherever a stream is cut, its client goes on without a loss and without a repetition."""
    write(shop, 6)
    with mounted(TableFeed(orders, data="data", type="kind"), shop) as url:
        whole = stream(url, lambda received: len(parse(received)[0]) == 6)
        resumed = {}
        for end in range(len(whole) + 1):
            seen, last_id = parse(whole[:end])
            if last_id not in resumed:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                resumed[last_id] = events(url, 6 - len(seen), headers=headers)
            rest = numbers(resumed[last_id])
            assert [json.loads(data)["n"] for *_, data in seen] + rest == list(range(6)), end
        assert len(resumed) == 7


def test_where_a_stream_starts(shop):
    """A stream starts at a cursor, at the head, or where its client was cut off."""
    write(shop, 4)
    with mounted(TableFeed(orders, data="data"), shop) as url, ThreadPoolExecutor(1) as pool:
        found = events(url, 4)
        assert numbers(events(url, 2, cursor=found[1][0])) == [2, 3]
        headers = {"Last-Event-ID": found[2][0]}
        assert numbers(events(url, 1, cursor=found[0][0], headers=headers)) == [3]
        assert numbers(events(url, 4, cursor="_first", headers={"Last-Event-ID": ""})) == [
            0,
            1,
            2,
            3,
        ]
        reader = pool.submit(events, url, 1, cursor="_last")
        time.sleep(0.4)
        write(shop, first=4)
        assert numbers(reader.result()) == [4]


def test_stream_of_certain_types(shop):
    """A filtered stream brings events of its types, and moves its id on over the others."""
    feed = TableFeed(orders, data="data", type="kind")
    write(shop, 3)
    with mounted(feed, shop) as url, ThreadPoolExecutor(1) as pool:
        received = stream(url, lambda so_far: b"\n\n" in so_far, **{"event-types": "paid"})
        found, last_id = parse(received)
        assert (found, last_id[:4]) == ([], "2-3-")
        options = {"event-types": "Paid", "headers": {"Last-Event-ID": last_id}}
        reader = pool.submit(events, url, 1, **options)
        time.sleep(0.3)
        write(shop, 2, first=3)
        with shop.begin() as connection:
            connection.execute(insert(orders), {"kind": "paid", "data": {"n": 9}})
        assert numbers(reader.result()) == [9]
        assert numbers(events(url, 1, **{"skip-event-types": "placed"})) == [9]


def test_partitions_are_streamed_one_by_one(shop):
    """Of several partitions a request names one."""
    write(shop, 6, partitions=2)
    with mounted(TableFeed(orders, data="data", partition="part", partitions=2), shop) as url:
        assert numbers(events(url, 3, partition=1)) == [1, 3, 5]
        assert httpx.get(f"{url}/server-sent-events").status_code == 400


def test_silence_is_broken_by_comments(shop, monkeypatch):
    """While there is nothing to send, comments show that the stream is alive."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.1)
    write(shop, 1)
    began = time.monotonic()
    with mounted(TableFeed(orders, data="data"), shop) as url:
        received = stream(url, lambda so_far: so_far.count(b":\n\n") >= 3)
        assert 0.2 <= time.monotonic() - began < 5
        assert len(parse(received)[0]) == 1
        received = stream(url, lambda so_far: so_far.count(b":\n\n") >= 2, cursor="_last")
        assert parse(received)[0] == []


def test_what_is_wrong_is_said_before_the_stream(shop):
    """A request that cannot be served is answered with a problem document."""
    write(shop, 2)
    with mounted(TableFeed(orders, data="data"), shop) as url:
        for parameters, headers, status in [
            ({"cursor": "nonsense"}, {}, 400),
            ({"cursor": "1-99"}, {}, 410),
            ({}, {"Last-Event-ID": "nonsense"}, 400),
            ({}, {"Last-Event-ID": "2-2-0000-0000000000"}, 200),
            ({"partition": "1"}, {}, 400),
            ({"event-types": ""}, {}, 400),
            ({"event-types": "a", "skip-event-types": "a"}, {}, 400),
            ({"cursor": ["1-0", "1-0"]}, {}, 400),
        ]:
            answer = httpx.head(f"{url}/server-sent-events", params=parameters, headers=headers)
            assert (answer.status_code, answer.content) == (status, b""), parameters
            kind = "text/event-stream" if status == 200 else "application/problem+json"
            assert answer.headers["content-type"].partition(";")[0] == kind
            assert answer.headers["cache-control"] == "no-store"
            if status == 200:  # the length of a stream is not known
                assert "content-length" not in answer.headers


def test_client_that_goes_is_not_served_any_longer(shop):
    """For a client that has closed its connection nobody looks any longer."""
    statements = []
    sqlalchemy_event.listen(shop, "before_cursor_execute", lambda *_: statements.append(1))
    with mounted(TableFeed(orders, data="data"), shop) as url:
        stream(url, lambda so_far: b":" in so_far)
        ending = time.monotonic() + 5
        before = -1
        while before != len(statements):
            assert time.monotonic() < ending
            before = len(statements)
            time.sleep(0.2)


def test_server_stops_while_streams_are_open(shop):
    """Streams that are open do not keep a server from stopping, if it is told not to wait long."""
    with ThreadPoolExecutor(3) as pool:
        with mounted(TableFeed(orders, data="data"), shop) as url:
            open_ = [pool.submit(stream, url, lambda _: False) for _ in range(3)]
            time.sleep(0.5)
            began = time.monotonic()
        assert time.monotonic() - began < 6
        for one in open_:
            assert isinstance(one.exception(timeout=5), httpx.RemoteProtocolError | None)


class Own:
    """A feed of one's own, of events that are laid out in lines."""

    RAW = (b'{\r\n"n": 0,\r"text": "a\\nb"}', b'\n{"n":\n\n1}\r\n')

    def __init__(self):
        self.told = FeedInfo((Partition(0),), "1", extensions=frozenset({WAIT}))
        self.is_down = False

    def info(self):
        return self.told

    def read(self, partition, cursor, limit, *, each=False):
        if self.is_down:
            raise Unavailable("The feed is away.")
        after = 0 if cursor == FIRST else int(cursor)
        rest = self.RAW[after:]
        cursors = [str(after + number) for number in range(1, len(rest) + 1)]
        return Page(
            [Event(raw) for raw in rest], str(len(self.RAW)), caught_up=True, cursors=cursors
        )

    def head(self):
        return self.is_down, self.told.token


def test_event_is_one_message_however_it_is_laid_out():
    """Lines within the JSON of an event do not end it."""
    with mounted(Own()) as url:
        received = stream(url, lambda so_far: len(parse(so_far)[0]) == 2)
    found = [(key, json.loads(data)) for key, _, data in parse(received)[0]]
    assert found == [("1", {"n": 0, "text": "a\nb"}), ("2", {"n": 1})]


@pytest.mark.parametrize("change", ["token", "failure"])
def test_stream_ends_when_the_feed_changes(change, monkeypatch):
    """A feed that fails, or whose partitions change, ends its streams: clients come back."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.2)
    feed = Own()
    with mounted(feed) as url, ThreadPoolExecutor(1) as pool:
        reader = pool.submit(stream, url, lambda _: False)
        time.sleep(0.4)
        assert not reader.done()
        if change == "token":
            feed.told = replace(feed.told, token="2")
        else:
            feed.is_down = True
        found, last_id = parse(reader.result(timeout=SOON))
        assert (len(found), last_id) == (2, "2")


def test_feed_that_cannot_be_waited_for_is_not_streamed():
    """A feed that does not name the extension is not asked over and over."""
    feed = Own()
    feed.told = replace(feed.told, extensions=frozenset())
    with mounted(feed) as url:
        assert httpx.head(f"{url}/server-sent-events").status_code == 404
