"""Pages that are packed for those who ask for it, over real HTTP."""

import gzip
import subprocess
import sys

import httpx
import pytest
import zstandard
from harness.readers import mounted, page_url
from harness.shop import metadata, orders
from sqlalchemy import insert

from zeroeventhub import FIRST, AsyncClient, Client, TableFeed
from zeroeventhub.arrow import MEDIA_TYPE as ARROW
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


@pytest.fixture
def url(shop):
    """The URL of a feed that packs its pages."""
    with mounted(FEED, shop, compressed=True, arrow=True, server_sent_events=True) as url:
        yield url


def get(url, accepted, *, method="GET", headers=None, **parameters):
    """Ask for a page; return the answer with its body as it came."""
    address = page_url(url, **{"cursor": "1-0", "pagesizehint": 50, **parameters})
    headers = {"Accept-Encoding": accepted, **(headers or {})}
    with httpx.stream(method, address, headers=headers) as answer:
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
    whole = get(url, "identity", headers={"Accept": accept})
    for accepted, coding in CODINGS:
        answer = get(url, accepted, headers={"Accept": accept})
        assert answer.headers.get("content-encoding") == coding, accepted
        assert UNPACKED[coding](answer.raw) == whole.raw
        assert answer.headers["content-type"] == accept
        assert int(answer.headers["content-length"]) == len(answer.raw)
        assert (len(answer.raw) < len(whole.raw)) is (coding is not None)
        assert answer.headers["vary"] == "Accept, Accept-Encoding"


def test_what_is_not_packed(url, shop):
    """What travels in one piece anyway is not packed, unless nothing else is taken; an event stream
    is sent as it happens, a problem as it is, and a feed that does not say so packs nothing.
    """
    assert "content-encoding" not in get(url, "gzip", pagesizehint=1).headers
    assert get(url, "gzip, identity;q=0", pagesizehint=1).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in get(url, "gzip", cursor="no").headers
    with httpx.stream("GET", f"{url}/server-sent-events") as answer:
        assert "content-encoding" not in answer.headers
        assert next(answer.iter_raw()).startswith(b"id: ")
    with mounted(FEED, shop) as plain:
        assert {"content-encoding", "vary"}.isdisjoint(get(plain, "gzip, zstd").headers)


def test_head_is_answered_like_get(url):
    """HEAD has the header fields of the packed page."""
    whole, answer = (get(url, "gzip", method=method) for method in ("GET", "HEAD"))
    for name in ("content-encoding", "content-length", "etag", "vary"):
        assert answer.headers[name] == whole.headers[name]
    assert answer.raw == b""


@pytest.mark.parametrize("compressed", [False, True, "zstd"])
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


_WITHOUT = """
import sys

sys.modules["zstandard"] = None

from importlib import util
known = util.find_spec
util.find_spec = lambda name, *rest: None if name == "zstandard" else known(name, *rest)

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
