"""Pages that are packed for those who ask for it, over real HTTP."""

import gzip
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
import zstandard
from harness.shop import metadata, orders
from harness.web import answering, serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, AsyncClient, Client, TableFeed, feed_routes
from zeroeventhub.arrow import MEDIA_TYPE as ARROW
from zeroeventhub.errors import ConfigurationError, CutPage, PageTooLarge
from zeroeventhub.limits import Limits
from zeroeventhub.ndjson import MEDIA_TYPE as LINES

FEED = TableFeed(orders, data="data")
UNPACKED = {
    None: lambda body: body,
    "gzip": gzip.decompress,
    "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body),
}


@pytest.fixture
def shop(sqlite):
    """An engine of a database with a hundred orders of some length."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        rows = [{"data": {"n": n, "text": f"é{n} " * 40}} for n in range(100)]
        connection.execute(insert(orders), rows)
    return sqlite


@contextmanager
def mounted(engine, **options):
    """Serve the feed; yield its URL."""
    options = {"compressed": True, "arrow": True, **options}
    with serving(Starlette(routes=feed_routes("/orders", FEED, engine, **options))) as url:
        yield f"{url}/orders"


@pytest.fixture
def url(shop):
    """The URL of a feed that packs its pages."""
    with mounted(shop) as url:
        yield url


def get(url, accepted, *, path="events", method="GET", headers=None, **parameters):
    """Ask for a page; return the answer with its body as it came."""
    query = {"token": "1", "partition": 0, "cursor": "1-0", **parameters}
    headers = {"Accept-Encoding": accepted, **(headers or {})}
    with (
        httpx.Client() as client,
        client.stream(method, f"{url}/{path}", params=query, headers=headers) as answer,
    ):
        answer.raw = b"".join(answer.iter_raw())
    return answer


CODINGS = [
    ("", None),
    ("identity", None),
    ("*", None),
    ("br, deflate", None),
    ("gzip", "gzip"),
    ("GZip;Q=0.3", "gzip"),
    ("zstd", "zstd"),
    ("gzip, deflate, br, zstd", "zstd"),
    ("zstd;q=0.5, gzip", "gzip"),
    ("zstd, gzip;q=0.5", "zstd"),
    ("gzip;q=0.5, identity", None),
    ("gzip, identity;q=0.5", "gzip"),
    ("gzip, identity", "gzip"),
    ("gzip;q=0", None),
    ("gzip;q=0, *", None),
    ("gzip;q=x", None),
    ("identity;q=0", None),  # nothing else is wanted: better than no answer
    ("identity;q=0, *", "zstd"),
    ("identity;q=0, zstd;q=0, *", "gzip"),
    ("*;q=0", None),
    ("*;q=0, gzip;q=0.1", "gzip"),
]


@pytest.mark.parametrize("accept", [LINES, ARROW])
def test_coding_is_what_the_client_asks_for(url, accept):
    """A page is packed for who names a coding, or takes nothing else; its bytes are the same, and
    caches are told.
    """
    whole = get(url, "identity", headers={"Accept": accept}, pagesizehint=50)
    for accepted, coding in CODINGS:
        answer = get(url, accepted, headers={"Accept": accept}, pagesizehint=50)
        assert answer.headers.get("content-encoding") == coding, accepted
        assert UNPACKED[coding](answer.raw) == whole.raw
        assert answer.headers["content-type"] == accept
        assert int(answer.headers["content-length"]) == len(answer.raw)
        assert (len(answer.raw) < len(whole.raw)) is (coding is not None)
        assert answer.headers["vary"] == "Accept, Accept-Encoding"


def test_small_pages_are_sent_as_they_are(url):
    """What travels in one piece anyway is not packed, unless nothing else is taken."""
    assert "content-encoding" not in get(url, "gzip", pagesizehint=1).headers
    assert get(url, "gzip, identity;q=0", pagesizehint=1).headers["content-encoding"] == "gzip"


def test_each_coding_has_a_tag_of_its_own(url):
    """A full page is asked for again by the tag of the coding in which it is held."""
    codings = ("identity", "gzip", "zstd")
    tags = [get(url, coding, pagesizehint=50).headers["etag"] for coding in codings]
    assert len({*tags}) == 3
    assert all(tag[0] == tag[-1] == '"' for tag in tags)
    for coding, own in zip(codings, tags, strict=True):
        for tag in tags:
            headers = {"If-None-Match": tag}
            for method in ("GET", "HEAD"):
                again = get(url, coding, pagesizehint=50, headers=headers, method=method)
                assert again.status_code == (304 if tag == own else 200)
                assert (again.headers["etag"], "Accept-Encoding" in again.headers["vary"]) == (
                    own,
                    True,
                )


def test_head_is_answered_like_get(url):
    """HEAD has the header fields of the packed page."""
    whole, answer = (get(url, "gzip", method=method, pagesizehint=50) for method in ("GET", "HEAD"))
    for name in ("content-encoding", "content-length", "etag", "vary"):
        assert answer.headers[name] == whole.headers[name]
    assert answer.raw == b""


def test_only_feeds_that_say_so_pack(shop):
    """A feed that is mounted without it packs nothing, and leaves it to what stands before it."""
    with mounted(shop, compressed=False, arrow=False) as url:
        answer = get(url, "gzip, zstd", pagesizehint=50)
        assert {"content-encoding", "vary"}.isdisjoint(answer.headers)


def test_streams_and_problems_are_not_packed(shop):
    """An event stream is sent as it happens, and a problem as it is."""
    with mounted(shop, server_sent_events=True) as url:
        assert "content-encoding" not in get(url, "gzip", cursor="no").headers
        with (
            httpx.Client() as client,
            client.stream("GET", f"{url}/server-sent-events") as answer,
        ):
            assert "content-encoding" not in answer.headers
            assert next(answer.iter_raw()).startswith(b"id: ")


@pytest.mark.parametrize("compressed", [False, True, "gzip", "zstd"])
@pytest.mark.anyio
async def test_clients_read_the_same(url, compressed):
    """In whatever coding a client asks for pages, it reads the same of them, in both forms."""
    with httpx.Client(timeout=20) as http:
        expected = Client(url, http).fetch(0, FIRST)
        client = Client(url, http, compressed=compressed)
        assert client.fetch(0, FIRST) == expected
        (batch,) = client.fetch_arrow(0, FIRST).batches
        assert [text.encode() for text in batch["data"].to_pylist()] == [
            event.raw for event in expected.events
        ]
    async with httpx.AsyncClient() as http:
        assert await AsyncClient(url, http, compressed=compressed).fetch(0, FIRST) == expected


DISCOVERY = b'{"token":"t","partitions":[{"id":"0"}]}'


def _answer(body, length, coding):
    """An answer, byte by byte."""
    head = ["HTTP/1.1 200 OK", "Connection: close", f"Content-Length: {length}"]
    return "\r\n".join([*head, f"Content-Encoding: {coding}", "", ""]).encode() + body


@contextmanager
def publisher(body, coding, *, length=None, limits=None):
    """A client that asks for zstd, and a publisher that answers with this."""

    def reply(target):
        if "/events" not in target:
            return _answer(DISCOVERY, len(DISCOVERY), "identity")
        return _answer(body, len(body) if length is None else length, coding)

    with answering(reply) as url, httpx.Client() as http:
        yield Client(url, http, compressed="zstd", limits=limits or Limits())


PAGE = b'{"data":1}\n{"data":2}\n{"cursor":"a"}\n'


@pytest.mark.parametrize("length", [None, 5_000], ids=["closed", "broken"])
def test_zstd_that_is_cut_is_a_cut_page(length):
    """Wherever zstd is cut, no shortened page is taken for a whole one."""
    body = zstandard.ZstdCompressor(write_checksum=True).compress(PAGE)
    cuts = 0
    for end in range(1, len(body), 7):
        with publisher(body[:end], "zstd", length=length) as client:
            try:
                assert len(client.fetch(0, FIRST).events) == 2
            except CutPage:
                cuts += 1
    assert cuts > 2
    with publisher(body, "zstd") as client:
        assert client.fetch(0, FIRST).cursor == "a"


def test_bomb_is_refused():
    """A body that unpacks to more than a page may have is given up, and not held."""
    body = zstandard.compress(b'{"data":"' + b"x" * 60_000_000)
    assert len(body) < 100_000
    limits = Limits(page_bytes=1_000_000)
    with publisher(body, "zstd", limits=limits) as client, pytest.raises(PageTooLarge):
        client.fetch(0, FIRST)


@pytest.mark.parametrize("compressed", ["br", "", 2, None])
def test_other_choices_are_refused(compressed):
    """A client asks for what it knows."""
    with pytest.raises(ConfigurationError):
        Client("http://feed/", httpx.Client(), compressed=compressed)


_WITHOUT = """
import sys

sys.modules["zstandard"] = None

from importlib import util
known = util.find_spec
util.find_spec = lambda name, *rest: None if name == "zstandard" else known(name, *rest)

import httpx
from starlette.applications import Starlette
from starlette.testclient import TestClient
from zeroeventhub import Client, Event, FeedInfo, Page, feed_routes
from zeroeventhub.errors import MissingExtra

class Own:
    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return Page([Event(b"1")] * 1_000, "c1")

client = TestClient(Starlette(routes=feed_routes("/feed", Own(), compressed=True)))
answer = client.get(
    "/feed/events?token=1&partition=0&cursor=_first", headers={"Accept-Encoding": "zstd, gzip"}
)
assert answer.headers["content-encoding"] == "gzip", answer.headers
assert answer.text.count("data") == 1_000
assert len(Client("http://testserver/feed", client, compressed=True).fetch(0, "_first").events)
try:
    Client("http://testserver/feed", client, compressed="zstd")
except MissingExtra as error:
    assert "zeroeventhub[zstd]" in str(error), error
else:
    raise AssertionError("no MissingExtra")
"""


def test_without_zstandard_pages_are_gzip():
    """Where zstandard is not installed, gzip is sent, and who wants zstd is told."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
