"""The forms and codings in which pages are sent, over real HTTP."""

import gzip
import json
import sys
import threading
import zlib

import httpx
import pyarrow as pa
import pytest
import zstandard
from harness.readers import mounted, page_url
from harness.shop import metadata, orders
from harness.tables import event_table
from sqlalchemy import JSON, insert, text

from zeroeventhub import FIRST, Client, Event, FeedInfo, Page, TableFeed
from zeroeventhub.errors import MissingExtra
from zeroeventhub.wire import ARROW_TYPE as ARROW
from zeroeventhub.wire import NDJSON_TYPE as LINES

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


def get(url, coding, *, method="GET", accept=LINES, tag=None, **parameters):
    """Ask for a page; return the answer with its body as it came."""
    address = page_url(url, **{"cursor": "1-0", "pagesizehint": 50, **parameters})
    headers = {"Accept-Encoding": coding, "Accept": accept}
    headers |= {"If-None-Match": tag} if tag else {}
    with httpx.stream(method, address, headers=headers) as answer:
        answer.raw = b"".join(answer.iter_raw())
    return answer


CODINGS = [
    ("", None),
    ("*", None),
    ("br, deflate", None),
    ("GZip;Q=0.3", "gzip"),
    ("gzip, deflate, br, zstd", "zstd"),
    ("zstd;q=0.5, gzip", "gzip"),
    ("gzip;q=0.5, identity", None),
    ("gzip, identity;q=0.5", "gzip"),
    ("gzip;q=0, *", None),
    ("gzip;q=x", None),
    ("identity;q=0", None),  # nothing else is wanted: better than no answer
    ("identity;q=0, zstd;q=0, *", "gzip"),
    ("*;q=0, gzip;q=0.1", "gzip"),
]


@pytest.mark.parametrize("accept", [LINES, ARROW])
def test_coding_is_what_the_client_asks_for(url, accept):
    """A page is packed for a client that names a coding; its bytes stay the same."""
    whole = get(url, "identity", accept=accept)
    for accepted, coding in CODINGS:
        answer = get(url, accepted, accept=accept)
        assert answer.headers.get("content-encoding") == coding, accepted
        assert UNPACKED[coding](answer.raw) == whole.raw
        assert answer.headers["content-type"] == accept
        assert int(answer.headers["content-length"]) == len(answer.raw)
        assert (len(answer.raw) < len(whole.raw)) is (coding is not None)
        assert answer.headers["vary"] == "Accept, Accept-Encoding"
        head = get(url, accepted, accept=accept, method="HEAD")
        assert head.raw == b""
        for name in ("content-encoding", "content-length", "etag", "vary"):
            assert head.headers.get(name) == answer.headers.get(name)


def test_what_is_not_packed(url, shop):
    """What travels in one piece, a stream and a problem are not packed."""
    assert "content-encoding" not in get(url, "gzip", pagesizehint=1).headers
    assert get(url, "gzip, identity;q=0", pagesizehint=1).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in get(url, "gzip", cursor="no").headers
    with httpx.stream("GET", f"{url}/server-sent-events") as answer:
        assert "content-encoding" not in answer.headers
        assert next(answer.iter_raw()).startswith(b"id: ")
    with mounted(FEED, shop) as plain:
        assert {"content-encoding", "vary"}.isdisjoint(get(plain, "gzip, zstd").headers)


def test_each_form_has_a_tag_of_its_own(url):
    """A client gets 304 only for the form and the coding of the page that it holds."""
    lesser = f"{ARROW};q=0.5, application/*;q=0.6"
    assert get(url, "identity", accept=lesser).headers["content-type"] == LINES
    forms = [(coding, accept) for accept in (LINES, ARROW) for coding in UNPACKED if coding]
    tags = [get(url, coding, accept=accept).headers["etag"] for coding, accept in forms]
    assert len({*tags}) == len(forms)
    for (coding, accept), own in zip(forms, tags, strict=True):
        for tag in tags:
            again = get(url, coding, accept=accept, tag=tag)
            assert again.status_code == (304 if tag == own else 200)
            assert ("content-encoding" in again.headers) is (tag != own)


def test_forms_of_one_length_have_tags_of_their_own():
    """A client that holds a page as lines is sent it as Arrow, also if that has as many bytes."""

    class Even:
        def info(self):
            return FeedInfo.of(1)

        def read(self, partition, cursor, limit):
            return Page([Event(b'"%b"' % (b"x" * 35))] * 353, "end", full=True)

    with mounted(Even(), arrow=True) as url:
        lines, arrow = (get(url, "identity", accept=accept) for accept in (LINES, ARROW))
        assert len(lines.raw) == len(arrow.raw)
        tag = lines.headers["etag"]
        assert get(url, "identity", accept=ARROW, tag=tag).raw == arrow.raw


@pytest.mark.parametrize(
    ("coding", "accept", "module", "name"),
    [("gzip", LINES, zlib, "compress"), ("identity", ARROW, pa, "record_batch")],
    ids=["packed", "Arrow"],
)
def test_large_pages_are_made_beside_the_event_loop(coding, accept, module, name, monkeypatch):
    """A large page is converted in a thread, so that the host answers other requests meanwhile."""

    class Heavy:
        async def info(self):
            self.loop = threading.get_ident()
            return FeedInfo.of(1)

        async def read(self, partition, cursor, limit):
            return Page([Event(b'{"text":"%b"}' % (b"x" * 400))] * 1_000, "1")

    made, threads = getattr(module, name), []

    def noting(*arguments, **options):
        threads.append(threading.get_ident())
        return made(*arguments, **options)

    monkeypatch.setattr(module, name, noting)
    feed = Heavy()
    with mounted(feed, arrow=True, compressed=True) as url:
        assert get(url, coding, accept=accept).status_code == 200
    assert threads
    assert feed.loop not in threads


def test_client_reads_the_same(url):
    """In whatever coding a client asks for pages, it reads the same of them, in both forms."""
    with httpx.Client(timeout=20) as http:
        expected = Client(url, http).fetch(0, FIRST)
        for compressed in (False, True, "zstd"):
            client = Client(url, http, compressed=compressed)
            assert client.fetch(0, FIRST) == expected
            (batch,) = client.fetch_arrow(0, FIRST).batches
            found = [text.encode() for text in batch["data"].to_pylist()]
            assert found == [event.raw for event in expected.events]


def test_without_zstandard_pages_are_gzip(shop, monkeypatch):
    """Without zstandard a feed sends gzip, and a client that wants zstd raises what to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with mounted(FEED, shop, compressed=True) as url, httpx.Client() as http:
        assert get(url, "zstd, gzip").headers["content-encoding"] == "gzip"
        assert len(Client(url, http, compressed=True).fetch(0, FIRST).events) == 100
        with pytest.raises(MissingExtra, match=r"zeroeventhub.s extra \[zstd\]"):
            Client(url, http, compressed="zstd")


documents = event_table("documents", data=JSON)


@pytest.mark.parametrize("cloudevents", [True, False], ids=["cloudevents", "plain"])
def test_line_ends_of_stored_json_stay_at_the_publisher(engine, cloudevents):
    """Stored JSON with the line ends of Windows is sent without them in every rendition."""
    data = {"note": "line\r\nbreak", "n": 1}
    stored = json.dumps(data, indent=1).replace("\n", "\r\n")
    documents.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO documents (data) VALUES (:data)"), {"data": stored})
    feed = TableFeed(documents, data="data", cloudevents=cloudevents)
    options = {"http_feed": cloudevents, "server_sent_events": True, "arrow": True}
    with mounted(feed, engine, **options) as url, httpx.Client() as http:
        for path in ("/events?partition=0&token=1&cursor=_first", "?n=1&cursor0=_first"):
            answer = http.get(url + path)
            assert (answer.status_code, b"\r" in answer.content) == (200, False)
        assert (
            not cloudevents or b"\r" not in http.get(f"{url}/http-feed").raise_for_status().content
        )
        with http.stream("GET", f"{url}/server-sent-events") as stream:
            assert b"\r" not in next(stream.iter_raw())
        client = Client(url, http)
        (event,) = client.fetch(0, "_first").events
        assert event.data.get("data", event.data) == data
        (value,) = client.fetch_arrow(0, "_first").batches[0].column("data").to_pylist()
        assert b"\r" not in value.encode()
