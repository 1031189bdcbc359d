"""Feeds of tests, their clients, faults on demand, and pages that a test requests itself."""

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Consumer, Event, NewEvent, Principal, feed_routes
from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    CutPage,
    TokenChanged,
    Trimmed,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from zeroeventhub.testing import (
    Faults,
    LogFeed,
    async_client_of,
    client_of,
    events_of,
    feed_of,
    run_to_head,
    store_of,
)


def data(page):
    """Return the data of a page's events."""
    return [event.data for event in page.events]


def test_feed_holds_to_cursors_and_limits():
    """Pages have as many events as asked for, in order, and say when they end at the head."""
    feed = feed_of([{"n": 0}, Event.of({"n": 1}), "two"])
    page = feed.read(0, FIRST, 2)
    assert (data(page), page.caught_up) == ([{"n": 0}, {"n": 1}], False)
    page = feed.read(0, page.cursor, 2)
    assert (data(page), page.caught_up) == (["two"], True)
    assert feed.read(0, LAST, 2).cursor == page.cursor
    feed.append({"n": 3})
    assert data(feed.read(0, page.cursor, 2)) == [{"n": 3}]


@pytest.mark.parametrize(
    ("events", "partition", "said"),
    [
        ([{"n": 1}, object()], 0, "no JSON form"),
        ([1], 1, "no partition 1"),
        ([1], -1, "no partition"),
    ],
)
def test_events_that_cannot_be_published_are_refused(events, partition, said):
    """If one of several events has no JSON form, or there is no such partition, none comes."""
    feed = feed_of()
    with pytest.raises(ConfigurationError, match=said):
        feed.append(*events, partition=partition)
    assert feed.head() == 0


def test_lists_are_partitions():
    """A list of lists has the events of each partition; an empty list is a feed of one."""
    feed = feed_of([["a"], []])
    feed.append("b", "c", partition=1)
    assert len(feed.info().partitions) == 2
    assert [data(feed.read(number, FIRST, 9)) for number in (0, 1)] == [["a"], ["b", "c"]]
    assert len(feed_of().info().partitions) == 1


@pytest.mark.parametrize("cursor", ["x", "-1", "2", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_strange_cursor_is_refused(cursor):
    """A cursor that the feed has not given is refused, in process and by its routes."""
    feed = feed_of(["a"])
    with pytest.raises(BadCursor):
        feed.read(0, cursor, 1)
    if cursor.isascii():
        with pytest.raises(BadCursor):
            client_of(feed).fetch(0, cursor)


def test_reader_waits_at_the_head():
    """A request that waits is answered once an event is appended by another thread."""
    feed = feed_of(["a"])
    client = client_of(feed)
    head = client.fetch(0, FIRST).cursor
    threading.Timer(0.05, feed.append, ["b"]).start()
    assert data(client.fetch(0, head, wait=60)) == ["b"]


def test_log_is_published_from_its_table():
    """Events that are appended to the log are rows of SQLite, and pages of its feed."""
    log_feed = LogFeed(partitions=2, cloudevents=True)
    log_feed.append(NewEvent("order.paid", {"order": 17}, key="17"))
    client = client_of(log_feed.feed)
    pages = [client.fetch(number, FIRST) for number in (0, 1)]
    assert [event.data["data"] for page in pages for event in page.events] == [{"order": 17}]


def test_page_of_a_response_is_read():
    """Events and cursor are read from bytes and from responses of several frameworks."""
    body = b'{"data":{"n":1}}\n{"cursor":"7","caughtUp":true}\n'
    flask = SimpleNamespace(status_code=200, data=body)
    for response in (body, httpx.Response(200, content=body), flask):
        page = events_of(response)
        assert (data(page), page.cursor, page.caught_up) == ([{"n": 1}], "7", True)
    with pytest.raises(CutPage):
        events_of(body[:20])


def test_refusal_is_no_page():
    """A response with another status fails the test, with the reason that it gives."""
    refusal = httpx.Response(410, json={"type": "urn:x/trimmed", "detail": "They are gone."})
    with pytest.raises(AssertionError, match=r"status 410 came: They are gone\."):
        events_of(refusal)
    with pytest.raises(AssertionError, match="status 500 came: Oh"):
        events_of(httpx.Response(500, text="Oh"))


def sync_fetch(feed, **options):
    """Return what fetches pages of a feed with a Client."""
    client = client_of(feed, **options)
    return lambda cursor=FIRST: client.fetch(0, cursor)


def async_fetch(feed, **options):
    """Return what fetches pages of a feed with an AsyncClient."""
    client = async_client_of(feed, **options)
    return lambda cursor=FIRST: asyncio.run(client.fetch(0, cursor))


@pytest.fixture(params=[sync_fetch, async_fetch], ids=["sync", "async"])
def fetching(request):
    """A function that returns one that fetches pages of a feed, with each client in turn."""
    return request.param


FAULTS = {
    "cut_page": CutPage,
    "token_changed": TokenChanged,
    "trimmed": Trimmed,
    "unavailable": Unavailable,
    "reset": Unreachable,
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_comes_once(fetching, name):
    """A fault spoils the next page, as a client sees it; the page after it is whole."""
    faults = Faults()
    fetch = fetching(feed_of(["a"]), faults=faults)
    getattr(faults, name)()
    assert faults.pending == 1
    with pytest.raises(FAULTS[name]):
        fetch()
    assert faults.pending == 0
    assert [event.data for event in fetch().events] == ["a"]


def test_fault_spares_the_discovery_of_a_feed_whose_address_is_that_of_pages():
    """A consumer discovers the feed at /events, and the fault is one of its first page."""
    faults, store = Faults(), store_of()
    client = client_of(feed_of(["a"]), path="/events", faults=faults)
    faults.token_changed()
    (pause,) = run_to_head(Consumer(client, store, "c"), lambda connection, page: None)
    assert isinstance(pause.reason, TokenChanged)
    assert faults.pending == 0


def test_fault_says_what_was_asked_for(fetching):
    """Faults come in order, with their seconds and cursors."""
    faults = Faults()
    fetch = fetching(feed_of(["a"]), faults=faults)
    faults.unavailable(retry_after=20)
    faults.trimmed("7")
    with pytest.raises(Unavailable) as caught:
        fetch()
    assert caught.value.retry_after == 20
    with pytest.raises(Trimmed) as gone:
        fetch()
    assert gone.value.earliest == "7"


def test_application_is_read_with_credentials(fetching):
    """An application of one's own is read at its path, with the headers that it asks for."""

    def authorize(request):
        if request.headers.get("authorization") != "Bearer right":
            raise Unauthorized("Who are you?")
        return Principal(name="reader")

    app = Starlette(routes=feed_routes("/orders", feed_of(["a"]), authorize=authorize))
    fetch = fetching(app, path="/orders", headers={"Authorization": "Bearer right"})
    assert [event.data for event in fetch().events] == ["a"]
    with pytest.raises(Unauthorized):
        fetching(app, path="/orders")()


def test_failing_feed_answers_as_a_server_does(fetching):
    """An application that raises is a server that answers with status 500."""

    async def app(scope, receive, send):
        raise ValueError

    with pytest.raises(Unavailable):
        fetching(app)()


FORKING = """
import os, sys
from zeroeventhub import FIRST
from zeroeventhub.testing import client_of, feed_of

client = client_of(feed_of([1]))
client.fetch(0, FIRST)
if (child := os.fork()) and os.waitpid(child, 0)[1]:
    sys.exit("The child failed.")
client.fetch(0, FIRST)
"""


def test_forked_process_reads_a_feed_as_well():
    """A process that is forked from one that has read a feed gets answers, too."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], check=True, timeout=60)
