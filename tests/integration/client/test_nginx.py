"""A feed behind the nginx of the shipped example."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from harness.appended import made
from harness.nginx_paths import Deployment, deployed, example
from harness.readers import client_of
from harness.shop import fill, orders, write
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, NewEvent, TableFeed, TypeFilter, feed_routes
from zeroeventhub.errors import BadCursor, TransientError
from zeroeventhub.server.server_sent_events import HEARTBEAT
from zeroeventhub.settings import Capacity

PATIENCE = 60  # seconds that anything may take
SOON = 10.0
"""Seconds until an event has come, on a machine that is busy; it is held back for longer."""

GZIP = {"Accept-Encoding": "gzip"}
reading = partial(client_of, session={"verify": False, "timeout": PATIENCE})


@pytest.fixture
def shop(sqlite):
    """An engine of a database with an empty table of orders."""
    return fill(sqlite, 0)


@contextmanager
def published(engine, deployment=Deployment.PACKED, changes=None):
    """Serve the orders behind an nginx; yield the URL."""
    feed = TableFeed(orders, data="data", type="kind")
    routes = feed_routes("/orders", feed, engine, server_sent_events=True)
    with (
        serving(Starlette(routes=routes)) as publisher,
        deployed(deployment, f"{publisher}/orders", changes) as url,
    ):
        yield url


def get(url, path="/events", headers=None, **parameters):
    """Get a page."""
    parameters = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return httpx.get(f"{url}{path}", params=parameters, headers=headers, timeout=PATIENCE)


def test_pages_and_problems_are_compressed_and_known_by_their_tags(shop):
    """Pages and problems are packed, and a page that a client has is confirmed without its body."""
    write(shop, 300)
    with published(shop) as url, reading(url, compressed=True) as client:
        cursor = client.fetch(0, FIRST, limit=100).cursor
        page = get(url, headers=GZIP, cursor=cursor, pagesizehint=100)
        missing = get(url, "/cursor", headers=GZIP)
        for answer in (page, missing):
            assert answer.headers["content-encoding"] == "gzip"
            assert "accept-encoding" in answer.headers["vary"].lower()
        assert missing.json()["type"] == "urn:zeroeventhub:problem/not-found"
        assert "content-encoding" not in get(url, headers={"Accept-Encoding": "identity"}).headers
        assert page.headers["etag"].startswith('W/"')
        held = GZIP | {"If-None-Match": page.headers["etag"]}
        again = get(url, headers=held, cursor=cursor, pagesizehint=100)
        assert (again.status_code, again.content) == (304, b"")
        events = client.fetch(0, FIRST, limit=1000).events
        assert [event.data["n"] for event in events] == list(range(300))
        with pytest.raises(BadCursor):
            client.fetch(0, "?")


@pytest.mark.parametrize(
    "deployment", [Deployment.PACKED, pytest.param(Deployment.BUFFERED, marks=pytest.mark.test_all)]
)
def test_stream_is_passed_on_event_by_event(shop, deployment):
    """Events arrive when they happen, also through an nginx of few settings, and with gzip."""
    write(shop)
    with (
        published(shop, deployment) as url,
        httpx.stream("GET", f"{url}/server-sent-events", headers=GZIP, timeout=SOON) as answer,
    ):
        assert "content-encoding" not in answer.headers
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        for number in range(3):
            assert f'"n":{number}' in next(lines).replace(" ", "")
            write(shop, first=number + 1)


def test_requests_of_one_client_are_limited(shop):
    """Answers wait for an event; an address with too many under way is asked to come again."""

    def wait():
        while (answer := get(url, cursor=cursor, wait=20)).status_code == 429:
            pass
        return answer

    limited = {"limit_conn readers 32;": "limit_conn readers 2;"}
    with (
        published(shop, changes=limited) as url,
        reading(url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        cursor = client.fetch(0, LAST).cursor
        waiting = [pool.submit(wait) for _ in range(2)]
        until(lambda: get(url).status_code != 200, "a request is one too many")
        with pytest.raises(TransientError):
            client.fetch(0, FIRST)
        write(shop)
        answers = [answer.result(PATIENCE) for answer in waiting]
        assert all(answer.status_code == 200 and b'"data"' in answer.content for answer in answers)
        client.fetch(0, FIRST)


def test_largest_batch_reaches_a_log(sqlite):
    """A batch of the bytes that a log takes is appended through nginx."""
    log = made(sqlite, append=True, partitions=1)
    app = Starlette(routes=feed_routes("/orders", log.feed(), sqlite))
    batch = [NewEvent("placed", {"text": "x" * 1_000_000}) for _ in range(4)]
    with (
        serving(app) as publisher,
        deployed(Deployment.PACKED, f"{publisher}/orders") as url,
        reading(url) as client,
    ):
        assert len(client.append(batch)) == 4


def test_longest_request_reaches_a_feed(shop):
    """A request of as many and as long types as a feed takes is answered through nginx."""
    write(shop, 3)
    types = TypeFilter([f"{n:03}".ljust(256, "x") for n in range(100)], skip=True)
    with published(shop) as url, reading(url) as client:
        assert len(client.fetch(0, FIRST, types=types).events) == 3


def test_guide_explains_what_is_shipped():
    """The settings that the guide explains stand in the example, with the values that it names."""
    guide = (Path(__file__).parents[3] / "docs" / "nginx.md").read_text()
    rows = re.findall(r"^\| (`[a-z].*?) \|", guide, re.MULTILINE)
    settings = [setting for row in rows for setting in re.findall("`(.*?)`", row)]
    assert len(settings) > 10
    for setting in settings:
        assert re.search(rf"^ *{re.escape(setting)}[ ;]", example("nginx.conf", {}), re.MULTILINE)


def test_timeouts_are_longer_than_any_wait():
    """An answer may come as late, and a stream be as silent, as the publisher lets them be."""
    for name in ("nginx.conf", "nginx-mtls.conf"):
        (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", example(name, {}))
        assert int(seconds) >= 2 * max(Capacity().wait_seconds, HEARTBEAT)
