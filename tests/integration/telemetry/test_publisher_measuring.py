"""What an observer hears of requests, over real HTTP."""

import json
import threading
import time

import httpx
import pytest
from harness.shop import metadata, orders
from harness.waiting import until
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.server import Observer, Principal, Quota

PLACE = {"token": "1", "partition": "0", "cursor": "_first"}


class Listening(Observer):
    """An observer that keeps what it hears."""

    def __init__(self):
        self.heard = []
        self.waits = []

    def answered(self, answered):
        self.heard.append(answered)

    def waiting(self, feed, requests):
        self.waits.append((feed, requests))


@pytest.fixture
def observer():
    """An observer that keeps what it hears."""
    return Listening()


def write(engine, count):
    """Append orders that are CloudEvents."""
    with engine.begin() as connection:
        connection.execute(insert(orders), [{"data": {"n": n}} for n in range(count)])


@pytest.fixture
def http(sqlite, observer):
    """A client of a feed with five orders, which knows a reader by its name."""
    metadata.create_all(sqlite)
    write(sqlite, 5)

    def authorize(request):
        name = request.headers["x-name"]
        if name == "nobody":
            raise HTTPException(404)
        return Principal(name=name, quota=Quota(rate=1.0, burst=1) if name == "eager" else None)

    routes = feed_routes(
        "/orders",
        TableFeed(orders, data="data", cloudevents=True),
        sqlite,
        name="orders",
        observer=observer,
        authorize=authorize,
        http_feed=True,
    )
    with (
        serving(Starlette(routes=routes)) as url,
        httpx.Client(base_url=url, headers={"x-name": "alice"}) as http,
    ):
        yield http


def cursor_behind(http, count):
    """The cursor behind the first events."""
    lines = http.get("/orders/events", params=PLACE | {"pagesizehint": str(count)}).text.split()
    return json.loads(lines[-1])["cursor"]


@pytest.mark.parametrize(
    ("path", "parameters", "events"),
    [
        ("", {"n": "1", "cursor0": "_first"}, 5),
        ("/events", PLACE | {"pagesizehint": "2"}, 2),
        ("/lag", PLACE, 0),
        ("/splits", PLACE | {"count": "2"}, 0),
        ("/cursor-of-count", PLACE | {"events": "2"}, 0),
        ("/http-feed", {}, 5),
    ],
)
def test_answer_is_described(http, observer, path, parameters, events):
    """An observer hears the route, the reader, the events and the bytes of each answer."""
    answer = http.get(f"/orders{path}", params=parameters)
    (heard,) = observer.heard
    assert (heard.feed, heard.route) == ("orders", path.removeprefix("/") or "discovery")
    assert (heard.principal, heard.status) == ("alice", 200)
    assert (heard.events, heard.size) == (events, len(answer.content))
    assert 0 < heard.seconds < 30
    assert heard.waited == 0


def test_answer_without_a_body_has_no_events(http, observer):
    """Neither the answer to HEAD nor one that says that nothing has changed counts as a page."""
    parameters = PLACE | {"cursor": cursor_behind(http, 1), "pagesizehint": "2"}
    observer.heard.clear()
    tag = http.get("/orders/events", params=parameters).headers["etag"]
    http.get("/orders/events", params=parameters, headers={"if-none-match": tag})
    http.head("/orders/events", params=parameters)
    assert [(one.status, one.events, one.size > 0) for one in observer.heard] == [
        (200, 2, True),
        (304, 0, False),
        (200, 0, False),
    ]


def test_refusals_are_described_with_who_was_refused(http, observer):
    """A reader that asks too often is known by name; an answer of the host's own is counted."""
    for name in ("eager", "eager", "nobody"):
        http.get("/orders", headers={"x-name": name})
    assert [(one.status, one.principal) for one in observer.heard] == [
        (200, "eager"),
        (429, "eager"),
        (404, ""),
    ]


def test_time_at_the_head_is_told_apart(http, observer, sqlite):
    """A request that waits shows as a waiter, and the time that it waits is not the feed's."""
    cursor = cursor_behind(http, 5)

    def write_late():
        until(lambda: observer.waits, "a request waits")
        time.sleep(0.2)  # so that it has waited for a time that can be told from none
        write(sqlite, 3)

    writer = threading.Thread(target=write_late)
    writer.start()
    answer = http.get("/orders/events", params=PLACE | {"cursor": cursor, "wait": "20"}, timeout=30)
    writer.join(30)
    assert len(answer.text.splitlines()) == 4
    assert [feed for feed, _ in observer.waits] == ["orders"] * len(observer.waits)
    assert [number for _, number in observer.waits] == [1, 0]
    heard = observer.heard[-1]
    assert heard.events == 3
    assert 0.1 < heard.waited <= heard.seconds
