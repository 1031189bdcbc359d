"""A feed as a stream of server-sent events, over real HTTP."""

import json
import re
import time
from dataclasses import replace
from functools import partial
from itertools import count

import httpx
import pytest
from harness.readers import PATIENCE, READER, TOKEN, Numbers, get, mounted, open_stream
from harness.shop import fill, orders, write
from harness.statements import add
from harness.waiting import DEADLINE, until
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from zeroeventhub import Event, Principal, TableFeed
from zeroeventhub.errors import Unauthorized, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.server import server_sent_events

FEED = TableFeed(orders, data="data", type="kind")
_LINE = re.compile("\r\n|\r|\n")


streaming = partial(mounted, server_sent_events=True)


def parse(stream):
    """Read a stream as the HTML standard has it; return the data of its events and their ids."""
    events, last_id, known, data = [], "", "", []
    *lines, _ = _LINE.split(stream.decode())
    for line in lines:
        field, _, value = line.partition(":")
        if field == "data":
            data.append(value.removeprefix(" "))
        elif field == "id":
            last_id = value.removeprefix(" ")
        elif not line:
            known = last_id
            events += [(known, json.loads("\n".join(data)))] if data else []
            data = []
    return events, known


def events(url, count, **parameters):
    """Read a number of events from a stream; return their ids and numbers."""
    received = open_stream(url, lambda so_far: len(parse(so_far)[0]) >= count, **parameters)
    return [(key, data["n"]) for key, data in parse(received)[0]]


def numbers(found):
    """Return the numbers of events."""
    return [number for _, number in found]


def test_stream_brings_what_there_is_and_what_comes(any_engine, watcher, pool):
    """A stream goes on with what is committed later, and its ids are cursors of the feed."""
    fill(any_engine, 5)
    with streaming(FEED, any_engine, observer=watcher) as url:
        reader = pool.submit(events, url, 7)
        watcher.until_waiting(1)
        write(any_engine, 2, first=5)
        found = reader.result(PATIENCE)
        assert numbers(found) == list(range(7))
        for key, number in found[::3]:
            rest = [json.loads(line) for line in get(url, cursor=key).text.splitlines()[:-1]]
            assert [event["data"]["n"] for event in rest] == list(range(number + 1, 7))
        watcher.until_waiting(0)


class HastyServer:
    """Say that a reader has left once a question for it was cancelled, as gunicorn does."""

    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        left = False

        async def answer():
            nonlocal left
            if left:
                return {"type": "http.disconnect"}
            left = True
            message = await receive()
            left = False
            return message

        await self._app(scope, answer, send)


def test_stream_waits_on_a_server_that_is_asked_once(empty_shop, watcher, pool):
    """A stream asks whether its reader has left only once, and is silent until an event comes."""
    asking_once = [Middleware(HastyServer)]
    with streaming(FEED, empty_shop, observer=watcher, middleware=asking_once) as url:
        reader = pool.submit(open_stream, url, lambda received: len(parse(received)[0]) == 3)
        watcher.until_waiting(1)
        for number in range(3):
            write(empty_shop, first=number)
            time.sleep(0.2)
        assert b":\n\n" not in reader.result(PATIENCE)
        watcher.until_waiting(0)


def test_stream_that_is_cut_goes_on_where_it_was(empty_shop):
    """Wherever a stream is cut, its client goes on without a loss and without a repetition."""
    write(empty_shop, 6)
    with streaming(FEED, empty_shop) as url:
        whole = open_stream(url, lambda received: len(parse(received)[0]) == 6)
        resumed = {}
        for end in range(len(whole) + 1):
            seen, last_id = parse(whole[:end])
            if last_id not in resumed:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                resumed[last_id] = events(url, 6 - len(seen), headers=headers)
            rest = numbers(resumed[last_id])
            assert [data["n"] for _, data in seen] + rest == list(range(6)), end
        assert len(resumed) == 7


def test_where_a_stream_starts(empty_shop, pool):
    """A stream starts at a cursor, at the head, or where its client was cut off."""
    write(empty_shop, 4)
    with streaming(FEED, empty_shop) as url:
        found = events(url, 4)
        assert numbers(events(url, 2, cursor=found[1][0])) == [2, 3]
        headers = {"Last-Event-ID": found[2][0]}
        assert numbers(events(url, 1, cursor=found[0][0], headers=headers)) == [3]
        empty = {"Last-Event-ID": ""}
        assert numbers(events(url, 4, cursor="_first", headers=empty)) == [0, 1, 2, 3]
        reader = pool.submit(events, url, 1, cursor="_last")
        later = count(4)
        until(
            lambda: write(empty_shop, first=next(later)) or reader.done(),
            "a stream from the head brings an event that is written while it is open",
        )
        assert numbers(reader.result())[0] >= 4


def test_stream_of_certain_types(empty_shop, watcher, pool):
    """A filtered stream has events of its types, and moves its id past all other events."""
    write(empty_shop, 3)
    with streaming(FEED, empty_shop, observer=watcher) as url:
        received = open_stream(url, lambda so_far: b"\n\n" in so_far, **{"event-types": "paid"})
        found, last_id = parse(received)
        assert (found, last_id[:4]) == ([], "2-3-")
        watcher.until_waiting(0)
        options = {"event-types": "Paid", "headers": {"Last-Event-ID": last_id}}
        reader = pool.submit(events, url, 1, **options)
        watcher.until_waiting(1)
        write(empty_shop, 2, first=3)
        add(empty_shop, orders, {"kind": "paid", "data": {"n": 9}})
        assert numbers(reader.result(PATIENCE)) == [9]
        assert numbers(events(url, 1, **{"skip-event-types": "placed"})) == [9]


def test_silence_is_broken_by_comments(empty_shop, monkeypatch):
    """While there is no event, the stream sends comments."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.1)
    write(empty_shop, 1)
    began = time.monotonic()
    with streaming(FEED, empty_shop) as url:
        received = open_stream(url, lambda so_far: so_far.count(b":\n\n") >= 3)
        assert 0.2 <= time.monotonic() - began < 5
        assert len(parse(received)[0]) == 1
        received = open_stream(url, lambda so_far: so_far.count(b":\n\n") >= 2, cursor="_last")
        assert parse(received)[0] == []


def test_what_is_wrong_is_said_before_the_stream(empty_shop):
    """A request that cannot be served is answered with a problem document."""
    write(empty_shop, 2)
    with streaming(FEED, empty_shop) as url:
        for parameters, headers, status in [
            ({"cursor": "nonsense"}, {}, 400),
            ({"cursor": "1-99"}, {}, 410),
            ({}, {"Last-Event-ID": "nonsense"}, 400),
            ({}, {"Last-Event-ID": "2-2-0000-0000000000"}, 200),
            ({"partition": "1"}, {}, 400),
            ({"event-types": "a*"}, {}, 400),
            ({"event-types": "a", "skip-event-types": "a"}, {}, 400),
        ]:
            answer = httpx.head(f"{url}/server-sent-events", params=parameters, headers=headers)
            assert (answer.status_code, answer.content) == (status, b""), parameters
            kind = "text/event-stream" if status == 200 else "application/problem+json"
            assert answer.headers["content-type"].partition(";")[0] == kind
            assert answer.headers["cache-control"] == "no-store"
            if status == 200:  # the length of a stream is not known, nor is it held back
                assert "content-length" not in answer.headers
                assert answer.headers["x-accel-buffering"] == "no"
    feed = TableFeed(orders, data="data", partition="part", partitions=2)
    with streaming(feed, empty_shop) as url:
        assert httpx.get(f"{url}/server-sent-events").status_code == 400
        write(empty_shop, 2, first=2, partitions=2)
        assert numbers(events(url, 1, partition=1)) == [3]


class LaidOut(Numbers):
    """A feed of events that are laid out in lines."""

    def read(self, partition, cursor, limit, *, each=False):
        raw = b'{\r\n"n": 0,\r"text": "a\\nb"}', b'\n{"n":\n\n1}\r\n'
        return Page([Event(one) for one in raw], "2", caught_up=True, cursors=["1", "2"])


def test_event_is_one_message_however_it_is_laid_out():
    """Lines within the JSON of an event do not end it."""
    with streaming(LaidOut()) as url:
        received = open_stream(url, lambda so_far: len(parse(so_far)[0]) == 2)
    assert parse(received)[0] == [("1", {"n": 0, "text": "a\nb"}), ("2", {"n": 1})]


@pytest.mark.parametrize("change", ["token", "failure"])
def test_stream_ends_when_the_feed_changes(change, watcher, pool, monkeypatch):
    """A feed that fails, or whose partitions change, ends its streams: clients come back."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.2)
    feed = Numbers(2)
    with streaming(feed, observer=watcher) as url:
        reader = pool.submit(open_stream, url, lambda _: False)
        until(lambda: max(watcher.counts) == 1, "the stream waits")
        if change == "token":
            info = replace(feed.info(), token="2")
            feed.info, feed.head = lambda: info, lambda: "another"
        else:
            feed.error = Unavailable("The feed is away.")
        found, last_id = parse(reader.result(PATIENCE))
        assert (len(found), last_id) == (2, "2")
        watcher.until_waiting(0)


class Directory:
    """A hook whose mind can be changed; it counts how often it is asked."""

    def __init__(self):
        self.answer = READER
        self.asked = 0

    async def __call__(self, request):
        """Return or raise what the test set."""
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


CHANGES = {
    "refused": Unauthorized(f"Nobody knows {TOKEN}."),
    "refused by the host": HTTPException(403, TOKEN),
    "broken": KeyError(TOKEN),
    "other rights": Principal(name="reader", types={"paid"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_open_stream_ends_with_the_rights_of_its_reader(
    empty_shop, change, pool, monkeypatch, caplog
):
    """A stream asks again who reads, and ends when that one may not, or may see something else."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.1)
    write(empty_shop, 10)
    directory = Directory()
    with streaming(FEED, empty_shop, authorize=directory) as url:
        received = pool.submit(open_stream, url, lambda so_far: so_far.count(b":\n\n") > 90)
        until(lambda: directory.asked >= 3 or received.done(), "it is asked again who reads")
        assert not received.done()
        directory.answer = change
        found = received.result(DEADLINE)
        assert (found.count(b"data: "), found.count(b":\n\n") <= 90) == (10, True)
    assert TOKEN not in caplog.text


@pytest.mark.slow
def test_busy_stream_asks_again_from_time_to_time(empty_shop, pool, monkeypatch):
    """A stream that always has something to send asks who reads no more often than an idle one."""
    monkeypatch.setattr(server_sent_events, "HEARTBEAT", 0.3)
    directory, numbers_, began = Directory(), count(), time.monotonic()
    with streaming(FEED, empty_shop, authorize=directory) as url:
        received = pool.submit(open_stream, url, lambda _: time.monotonic() > began + PATIENCE)

        def asked(times):
            write(empty_shop, first=next(numbers_))
            return directory.asked >= times or received.done()

        until(lambda: asked(3), "it is asked again who reads")
        assert directory.asked <= (time.monotonic() - began) / 0.3 + 2
        directory.answer = None
        until(lambda: asked(1_000_000), "it ends")
        assert b'"n": 0}' in received.result()
