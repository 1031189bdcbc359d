"""Pages as Arrow record batches over real HTTP: who gets them, and that they are the same pages."""

import json
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pyarrow as pa
import pyarrow.ipc
import pytest
from harness.shop import metadata, orders, place
from harness.web import answering, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import NullPool, delete, insert
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    AsyncClient,
    Client,
    Event,
    FeedInfo,
    Page,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.arrow import MEDIA_TYPE as ARROW
from zeroeventhub.arrow.page_encoder import encode_page
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.limits import Limits
from zeroeventhub.ndjson import MEDIA_TYPE as LINES
from zeroeventhub.ndjson import encode_page as encode_lines

FEED = TableFeed(orders, data="data", type="kind")
CURSOR = "2-1-38b7-0123456789"


@contextmanager
def mounted(feed, engine=None, *, arrow=True, **options):
    """Serve a feed; yield its URL."""
    routes = feed_routes("/orders", feed, engine, arrow=arrow, **options)
    with serving(Starlette(routes=routes)) as url:
        yield f"{url}/orders"


@pytest.fixture
def shop(engine):
    """An engine of a database with ten orders, on each database in turn."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 10)
    return engine


@pytest.fixture
def small_shop(sqlite):
    """An engine of a database with ten orders."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 10)
    return sqlite


@pytest.fixture
def url(small_shop):
    """The URL of a feed that sends Arrow."""
    with mounted(FEED, small_shop) as url:
        yield url


def get(url, *, accept=None, method="GET", headers=None, **parameters):
    """Ask for a page of FeedAPI v2."""
    parameters = {"token": "1", "partition": 0, "cursor": "1-0", **parameters}
    headers = {**(headers or {}), **({} if accept is None else {"Accept": accept})}
    return httpx.request(method, f"{url}/events", params=parameters, headers=headers)


def facts(page):
    """All that a page of events or of columns says."""
    if isinstance(page, Page):
        data = [event.raw.decode() for event in page.events]
    else:
        data = [row["data"] for batch in page.batches for row in batch.to_pylist()]
    return data, page.cursor, page.caught_up, page.stop_reached


def both(url, partition, cursor, **options):
    """Fetch a page in both forms; return what it says, which is the same."""
    with httpx.Client(timeout=60) as http:
        client = Client(url, http)
        lines = facts(client.fetch(partition, cursor, **options))
        assert facts(client.fetch_arrow(partition, cursor, **options)) == lines
    return lines


def test_pages_are_the_same_in_both_forms(shop):
    """On each database, a page of whatever was asked for says the same as Arrow and as lines."""
    with mounted(FEED, shop) as url:
        data, cursor, *flags = both(url, 0, FIRST, limit=4)
        assert ([json.loads(text)["n"] for text in data], flags) == ([0, 1, 2, 3], [False, False])
        stop = both(url, 0, cursor, limit=3)[1]
        assert both(url, 0, cursor, stop=stop)[2:] == (False, True)
        data, end, *flags = both(url, 0, stop)
        assert (len(data), flags) == (3, [True, False])
        assert both(url, 0, end, wait=0.01) == ([], end, True, False)
        assert both(url, 0, LAST) == ([], end, True, False)
        none = TypeFilter(frozenset({"placed"}), skip=True)
        assert both(url, 0, FIRST, types=none) == ([], end, True, False)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\né"), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(json_values, min_size=1, max_size=30), st.integers(1, 12))
def test_any_events_are_the_same_in_both_forms(engine, events, limit):
    """On each database, whatever the events hold, all pages have them byte for byte."""
    metadata.create_all(engine)
    # PostgreSQL has no text with NUL in it.
    texts = [json.dumps(event).replace("\\u0000", "") for event in events]
    with engine.begin() as connection:
        connection.execute(delete(orders))
        connection.execute(insert(orders), [{"data": json.loads(text)} for text in texts])
    with mounted(FEED, engine) as url:
        found, cursor, caught_up = [], FIRST, False
        while not caught_up:
            data, cursor, caught_up, _ = both(url, 0, cursor, limit=limit)
            found += data
    assert [json.loads(text) for text in found] == [json.loads(text) for text in texts]


@pytest.mark.anyio
async def test_async_client_reads_columns(async_url, shop):
    """An asynchronous client reads the same from a feed with an asynchronous engine."""
    # Its connections are of the server's event loop: none is left for another to close.
    engine = create_async_engine(async_url, poolclass=NullPool)
    with mounted(FEED, engine) as url:
        async with httpx.AsyncClient() as http:
            client = AsyncClient(url, http)
            expected = facts(await client.fetch(0, FIRST, limit=4))
            assert facts(await client.fetch_arrow(0, FIRST, limit=4)) == expected
            assert len(expected[0]) == 4


class OwnFeed:
    """A feed of one's own making, whose events may be anything."""

    def __init__(self, *events):
        self._events = [Event(event) for event in events]

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return Page(self._events if cursor == FIRST else [], CURSOR)


def test_feed_of_ones_own_sends_arrow():
    """A feed that only yields events sends them as Arrow, without white space around them."""
    with mounted(OwnFeed(b'{"a":\n1}', b" 2\r", b"null")) as url:
        assert both(url, 0, FIRST) == (['{"a": 1}', "2", "null"], CURSOR, False, False)
        assert both(url, 0, CURSOR) == ([], CURSOR, False, False)


def test_event_that_is_not_text_is_a_problem():
    """What a feed of one's own holds is found out before the status is sent."""
    with mounted(OwnFeed(b'"\xff"')) as url:
        assert get(url, accept=ARROW, cursor=FIRST).status_code == 500


@pytest.mark.parametrize(
    ("accept", "sent"),
    [
        (None, LINES),
        ("", LINES),
        ("*/*", LINES),
        ("application/*", LINES),
        (LINES, LINES),
        ("text/html", LINES),
        (ARROW, ARROW),
        (ARROW.upper(), ARROW),
        (f"{ARROW};q=0.1", ARROW),
        (f"{ARROW}, {LINES}", ARROW),
        (f"{LINES}, {ARROW}", ARROW),
        (f"{ARROW}, {LINES};q=0.5", ARROW),
        (f"{ARROW};q=0.5, {LINES}", LINES),
        (f"{ARROW};q=0.5, */*;q=0.1", ARROW),
        (f"{ARROW};q=0.5, */*", LINES),
        (f"{ARROW};q=0.5, application/*, {LINES};q=0.2", ARROW),
        (f"{ARROW} ; Q=0.9 , application/* ; q=0.8", ARROW),
        (f"{ARROW};q=0", LINES),
        (f"{ARROW};q=0, */*", LINES),
        (f"{ARROW};q=nan", LINES),
        (f"{ARROW};q=2", LINES),
        (f"{ARROW};q=x", LINES),
        ("application/vnd.apache.arrow.file", LINES),
        (",,;q=1,", LINES),
    ],
)
def test_form_is_what_the_client_prefers(url, accept, sent):
    """Arrow is sent to who names it and names no lines that it likes better; lines to all others,
    and caches are told.
    """
    answer = get(url, accept=accept)
    assert (answer.status_code, answer.headers["content-type"]) == (200, sent)
    assert answer.headers["vary"] == "Accept"


def test_only_feeds_that_say_so_send_arrow(small_shop):
    """A feed that is mounted without it sends lines, whatever is preferred, and is silent of it."""
    with mounted(FEED, small_shop, arrow=False) as url:
        answer = get(url, accept=ARROW)
        assert answer.headers["content-type"] == LINES
        assert "vary" not in answer.headers
        assert "arrow" not in httpx.get(url).json()["extensions"]
        assert len(both(url, 0, FIRST)[0]) == 10
    with mounted(FEED, small_shop) as url:
        assert "arrow" in httpx.get(url).json()["extensions"]


@pytest.mark.parametrize("arrow", [True, False])
def test_client_asks_for_what_the_feed_announces(small_shop, arrow):
    """Arrow is asked for only of feeds that list it, and lines as well, as the lesser choice."""
    seen = []
    hooks = {"request": [lambda request: seen.append(request.headers["accept"])]}
    with mounted(FEED, small_shop, arrow=arrow) as url, httpx.Client(event_hooks=hooks) as http:
        Client(url, http).fetch_arrow(0, FIRST)
    assert seen[-1] == (f"{ARROW}, {LINES};q=0.5" if arrow else LINES)


def test_version_1_sends_lines(url):
    """A request of ZeroEventHub v1 is answered in lines."""
    answer = httpx.get(url, params={"n": 1, "cursor0": FIRST}, headers={"Accept": ARROW})
    assert answer.headers["content-type"] == LINES
    with httpx.Client(timeout=60) as http:
        assert len(facts(Client(url, http).fetch_arrow(0, FIRST))[0]) == 10


def test_each_form_has_a_tag_of_its_own(url):
    """A full page is kept by caches in each form, under another tag, and asked for again by it."""
    lines, arrow = (get(url, accept=accept, pagesizehint=4) for accept in (LINES, ARROW))
    tags = lines.headers["etag"], arrow.headers["etag"]
    assert len({*tags}) == 2
    assert lines.headers["cache-control"] == arrow.headers["cache-control"]
    for accept, answer, own in ((LINES, lines, tags[0]), (ARROW, arrow, tags[1])):
        for tag in tags:
            again = get(url, accept=accept, pagesizehint=4, headers={"If-None-Match": tag})
            assert again.status_code == (304 if tag == own else 200)
            assert again.content == (b"" if tag == own else answer.content)
            assert (again.headers["etag"], again.headers["vary"]) == (own, "Accept")
    last = get(url, accept=ARROW)
    assert (last.headers["cache-control"], "etag" in last.headers) == ("no-store", False)


def test_kept_pages_are_sent_in_both_forms(small_shop):
    """A reader of columns gets the pages that were kept or read ahead for one of lines."""
    with small_shop.begin() as connection:
        place(connection, 490, first=10)
    with mounted(FEED, small_shop) as url:
        cursor, caught_up, count = FIRST, False, 0
        while not caught_up:
            data, cursor, caught_up, _ = both(url, 0, cursor, limit=20)
            count += len(data)
        assert count == 500


def test_large_pages_are_sent(small_shop):
    """Pages of megabytes, which are made in a thread, are the same."""
    with small_shop.begin() as connection:
        rows = [{"data": {"n": n, "text": "x" * 2_000}} for n in range(1_000)]
        connection.execute(insert(orders), rows)
    with mounted(FEED, small_shop) as url:
        assert len(both(url, 0, FIRST, limit=1_000)[0]) == 1_000


def test_head_is_answered_like_get(url):
    """HEAD has the header fields of the form that GET would be answered in."""
    whole = get(url, accept=ARROW)
    answer = get(url, accept=ARROW, method="HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    for name in ("content-type", "content-length", "vary"):
        assert answer.headers[name] == whole.headers[name]


def test_any_reader_of_arrow_reads_it(url):
    """The answer is an ordinary stream: a table with a row for each event, and the checkpoint."""
    with pa.ipc.open_stream(get(url, accept=ARROW).content) as stream:
        rows = stream.read_all().to_pylist()
    assert [json.loads(row["data"])["n"] for row in rows[:-1]] == [*range(10)]
    assert {row["checkpoint"] for row in rows[:-1]} == {None}
    assert rows[-1]["data"] is None
    assert json.loads(rows[-1]["checkpoint"])["caughtUp"] is True


# The client against publishers that do not do as they should.

DISCOVERY = b'{"token":"t","partitions":[{"id":"0"}],"extensions":["arrow"]}'


def http(body, media_type, length=None):
    """An answer, byte by byte."""
    length = len(body) if length is None else length
    head = ["HTTP/1.1 200 OK", "Connection: close", f"Content-Length: {length}"]
    return "\r\n".join([*head, f"Content-Type: {media_type}", "", ""]).encode() + body


@contextmanager
def publisher(answer):
    """A client of a publisher that announces Arrow, and answers requests for events like this."""

    def reply(target):
        return answer if "/events" in target else http(DISCOVERY, "application/json")

    with answering(reply) as url, httpx.Client() as client:
        yield Client(url, client, limits=Limits(page_bytes=2**20))


PAGE = encode_lines(Page([Event(b'{"n":1}'), Event(b'{"n":2}')], CURSOR, caught_up=True))


def test_lines_that_come_in_place_of_arrow_are_taken():
    """Another process of the feed may not know Arrow: its lines are made into columns."""
    with publisher(http(PAGE, LINES)) as client:
        page = client.fetch_arrow(0, FIRST)
        assert facts(page) == (['{"n":1}', '{"n":2}'], CURSOR, True, False)


def test_arrow_that_was_not_asked_for_is_not_taken():
    """A client that asked for lines does not take columns for a page."""
    with publisher(http(encode_page(PAGE), ARROW)) as client, pytest.raises(ProtocolError):
        client.fetch(0, FIRST)


def test_connection_that_breaks_is_a_cut_page():
    """Wherever the connection breaks, no shortened page is taken for a whole one."""
    body = encode_page(PAGE)
    for end in range(0, len(body) + 1, 40):
        with publisher(http(body[:end], ARROW, len(body))) as client:
            if end < len(body) - 8:
                with pytest.raises(CutPage):
                    client.fetch_arrow(0, FIRST)
            else:
                assert facts(client.fetch_arrow(0, FIRST))[1:] == (CURSOR, True, False)


def test_answer_that_is_no_arrow_is_refused():
    """What says that it is Arrow, and is not, is told so."""
    with publisher(http(PAGE, ARROW)) as client, pytest.raises(ProtocolError):
        client.fetch_arrow(0, FIRST)


_WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
sys.modules["pyarrow"] = None

import httpx
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette
from starlette.testclient import TestClient
from zeroeventhub import Client, Event, FIRST, FeedInfo, Page, feed_routes
from zeroeventhub.errors import MissingExtra

class Own:
    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return Page([Event(b"1")], "c1")

client = TestClient(Starlette(routes=feed_routes("/feed", Own())))
answer = client.get(
    "/feed/events?token=1&partition=0&cursor=_first",
    headers={"Accept": "application/vnd.apache.arrow.stream"},
)
assert answer.headers["content-type"] == "application/x-ndjson", answer.headers
assert b'"data":1' in answer.content
assert "extensions" not in client.get("/feed").json()
for call in (
    lambda: feed_routes("/feed", Own(), arrow=True),
    lambda: Client("http://testserver/feed", client).fetch_arrow(0, FIRST),
):
    try:
        call()
    except MissingExtra as error:
        assert "zeroeventhub[arrow]" in str(error), error
    else:
        raise AssertionError("no MissingExtra")
assert len(Client("http://testserver/feed", client).fetch(0, FIRST).events) == 1
"""


def test_without_pyarrow_feeds_send_lines():
    """Where pyarrow is not installed, lines are sent and read, and what needs it says so."""
    arguments = [sys.executable, "-c", _WITHOUT]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pyarrow_is_imported_only_when_it_is_asked_for():
    """Who serves or reads lines does not pay for pyarrow, though it is installed."""
    code = (
        "import sys, zeroeventhub.server, zeroeventhub.client, zeroeventhub.cli;"
        "assert 'pyarrow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
