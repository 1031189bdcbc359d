"""A feed behind the nginx of the shipped example, and what becomes of it when something is down."""

import os
import re
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from harness.faults.account import Account, until_done
from harness.faults.publishers import Publishers
from harness.nginx import example, nginx, reserved_port
from harness.nginx_paths import Deployment, deployed, shipped
from harness.shop import metadata, orders, place
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Client, Observer, TableFeed, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import BadCursor, TransientError, Unavailable
from zeroeventhub.server.server_sent_events import HEARTBEAT

PATIENCE = 60
"""Seconds that anything may take."""

SOON = 10.0
"""Seconds until an event has come, on a machine that is busy; it is held back for longer."""

GZIP = {"Accept-Encoding": "gzip"}


@pytest.fixture
def shop(sqlite):
    """An engine of a database with an empty table of orders."""
    metadata.create_all(sqlite)
    return sqlite


@contextmanager
def behind(publisher, changes=None):
    """Put the shipped nginx before a publisher; yield the nginx, and its URL."""
    address = urlsplit(publisher)
    with reserved_port() as port, nginx(shipped(address.netloc, port, changes), port) as server:
        yield server, f"http://127.0.0.1:{port}{address.path}"


@contextmanager
def published(engine, changes=None, *, wrap=lambda application: application, **options):
    """Serve the orders behind nginx; yield the URL."""
    with (
        serving(wrap(shop_of(engine, **options))) as publisher,
        behind(f"{publisher}/orders", changes) as (_, url),
    ):
        yield url


def shop_of(engine, **options):
    """Return an application that publishes the orders."""
    feed = TableFeed(orders, data="data", type="kind")
    return Starlette(
        routes=feed_routes("/orders", feed, engine, server_sent_events=True, **options)
    )


@contextmanager
def reading(url, **options):
    """Read a feed with a client of one's own."""
    with httpx.Client(verify=False, timeout=PATIENCE) as session:
        yield Client(url, session, **options)


def write(engine, count=1, **options):
    """Append events in a transaction of their own."""
    with engine.begin() as connection:
        place(connection, count, **options)


def get(url, path="/events", headers=None, **parameters):
    """Get a page."""
    parameters = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return httpx.get(f"{url}{path}", params=parameters, headers=headers, timeout=PATIENCE)


def get_in_the_end(url, **parameters):
    """Get a page, as soon as there are not too many requests of ours."""

    def let_in():
        answer = get(url, **parameters)
        return answer if answer.status_code != httpx.codes.TOO_MANY_REQUESTS else None

    return until(let_in, "a request is let in")


# What the example is for.


def test_pages_and_problems_are_compressed(shop):
    """Who asks for gzip gets pages in it, and the problem documents that nginx packs: 403, 404."""
    write(shop, 300)
    with published(shop) as url, reading(url, compressed=True) as client:
        for answer in (get(url, headers=GZIP), get(url, "/cursor", headers=GZIP)):
            assert answer.headers["content-encoding"] == "gzip"
            assert "accept-encoding" in answer.headers["vary"].lower()
        assert answer.json()["type"] == "urn:zeroeventhub:problem/not-found"
        assert "content-encoding" not in get(url, headers={"Accept-Encoding": "identity"}).headers
        page = client.fetch(0, FIRST, limit=1000)
        assert [event.data["n"] for event in page.events] == list(range(300))
        with pytest.raises(BadCursor):
            client.fetch(0, "?")


def test_page_that_is_held_is_not_sent_again(shop):
    """A page that a client has is confirmed without its body, though gzip has changed its tag."""
    write(shop, 300)
    with published(shop) as url:
        cursor = get(url, pagesizehint=100).text.splitlines()[-1].split('"')[3]
        page = get(url, headers=GZIP, cursor=cursor, pagesizehint=100)
        assert page.headers["etag"].startswith('W/"')
        held = {"If-None-Match": page.headers["etag"]}
        again = get(url, headers=GZIP | held, cursor=cursor, pagesizehint=100)
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.test_all
@pytest.mark.parametrize("compressed", [False, True])
def test_reader_that_waits_hears_of_an_event_when_it_comes(shop, compressed):
    """An answer that was held back at the head is passed on as soon as the publisher gives it."""
    write(shop)
    with (
        published(shop) as url,
        reading(url, compressed=compressed) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        cursor = client.fetch(0, LAST).cursor
        waiting = pool.submit(client.fetch, 0, cursor, wait=25)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        write(shop, first=1)
        assert [event.data["n"] for event in waiting.result(SOON).events] == [1]


@pytest.mark.parametrize(
    "deployment",
    [Deployment.PACKED, pytest.param(Deployment.BUFFERED, marks=pytest.mark.test_all)],
)
def test_stream_is_passed_on_event_by_event(shop, deployment):
    """Server-sent events arrive when they happen, also through an nginx that nobody has told, and
    at a client that would take gzip.
    """
    write(shop)
    with (
        serving(shop_of(shop)) as publisher,
        deployed(deployment, f"{publisher}/orders") as url,
        httpx.stream("GET", f"{url}/server-sent-events", headers=GZIP, timeout=SOON) as answer,
    ):
        assert "content-encoding" not in answer.headers
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        for number in range(3):
            assert f'"n":{number}' in next(lines).replace(" ", "")
            write(shop, first=number + 1)


def test_guide_explains_what_is_shipped():
    """The settings that the guide explains stand in the example, with the values that it names."""
    guide = (Path(__file__).parents[3] / "docs" / "nginx.md").read_text()
    rows = re.findall(r"^\| (`[a-z].*?) \|", guide, re.MULTILINE)
    settings = [setting for row in rows for setting in re.findall("`(.*?)`", row)]
    assert len(settings) > 10
    for setting in settings:
        assert re.search(rf"^ *{re.escape(setting)}[ ;]", example("nginx.conf", {}), re.MULTILINE)


@pytest.mark.parametrize("name", ["nginx.conf", "nginx-mtls.conf"])
def test_timeouts_are_longer_than_any_wait(name):
    """An answer may come as late, and a stream be as silent, as the publisher lets them be."""
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", example(name, {}))
    assert int(seconds) >= 2 * max(Capacity().wait_seconds, HEARTBEAT)


@pytest.mark.test_all
def test_slow_reader_does_not_hold_up_the_publisher(shop):
    """A publisher has sent a page to nginx before the reader takes it."""
    with shop.begin() as connection:
        rows = [{"data": {"n": number, "text": "x" * 16_000}} for number in range(1500)]
        connection.execute(insert(orders), rows)
    sent = threading.Event()

    def telling(application):
        async def call(scope, receive, send):
            await application(scope, receive, send)
            if scope["type"] == "http":
                sent.set()

        return call

    # Longer than all that the kernel has room for.
    capacity = Capacity(page_bytes=32 * 1024 * 1024)
    with published(shop, wrap=telling, capacity=capacity) as url, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = urlsplit(url)
        client.connect((address.hostname, address.port))
        target = f"{address.path}/events?token=1&partition=0&cursor={FIRST}&pagesizehint=10000"
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert sent.wait(SOON)


@pytest.mark.test_all
def test_headers_are_nginx_s_own(shop):
    """The publisher hears of the request's id and address from nginx, whatever a client says."""
    heard = []

    def hearing(application):
        async def call(scope, receive, send):
            if scope["type"] == "http":
                heard.append([(name.decode(), value.decode()) for name, value in scope["headers"]])
            await application(scope, receive, send)

        return call

    made_up = {"X-Request-Id": "mine", "X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "gopher"}
    with published(shop, wrap=hearing) as url:
        get(url, headers=made_up)
        get(url)
    for headers in heard:
        assert Counter(name for name, _ in headers).most_common(1)[0][1] == 1
        assert dict(headers)["x-forwarded-for"] == "127.0.0.1"
        assert dict(headers)["x-forwarded-proto"] == "http"
        assert re.fullmatch("[0-9a-f]{32}", dict(headers)["x-request-id"])
    assert len({dict(headers)["x-request-id"] for headers in heard}) == 2


@pytest.mark.test_all
def test_requests_of_one_client_are_limited(shop):
    """Beyond what one address may have under way, it is asked to come again later."""
    limited = {"limit_conn readers 32;": "limit_conn readers 2;"}
    with (
        published(shop, limited) as url,
        reading(url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        cursor = client.fetch(0, LAST).cursor
        waiting = [pool.submit(get_in_the_end, url, cursor=cursor, wait=20) for _ in range(2)]
        until(lambda: get(url).status_code != httpx.codes.OK, "a request is one too many")
        with pytest.raises(TransientError):
            client.fetch(0, FIRST)
        write(shop)
        assert [answer.result().status_code for answer in waiting] == [200, 200]
        client.fetch(0, FIRST)


# What is down.


class Waits(Observer):
    """Take note of the errors that a consumer waits out."""

    def __init__(self):
        self.seen = []

    def waited(self, consumer, partition, error, seconds):
        """See a pause."""
        self.seen.append(error)


@pytest.fixture
def publishers(tmp_path):
    """Publishers of thirty events, in processes of their own."""
    path = tmp_path / "publisher.db"
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    with engine.begin() as connection:
        rows = [{"data": {"n": number, "text": "x" * 1000}} for number in range(30)]
        connection.execute(insert(orders), rows)
    engine.dispose()
    with Publishers.open(path) as found:
        yield found


@pytest.fixture
def account(tmp_path):
    """The database of consumers."""
    found = Account(tmp_path / "consumer.db")
    yield found
    found.dispose()


def consume_beside(account, url, waits, *, limit=None):
    """Start a whole consumer, which is patient; return what waits until it has everything."""

    def consume():
        with httpx.Client(verify=False, timeout=PATIENCE) as session:
            options = {"attempts": None, "observer": waits, "limit": limit}
            account.read_beside(Client(url, session), "patient", **options)

    pool = ThreadPoolExecutor(1)
    done = pool.submit(consume)
    pool.shutdown(wait=False)
    return done


def await_first(waits):
    """Return the first error that a consumer waits out."""
    return until(lambda: waits.seen, "the consumer waits")[0]


@pytest.mark.test_all
def test_publisher_that_is_down(publishers, account):
    """A consumer waits while nginx finds no publisher (502), and goes on when there is one."""
    waits = Waits()
    with behind(publishers.url) as (_, url):
        assert get(url).status_code == 502
        assert get(url).headers["content-type"] == "text/html"
        done = consume_beside(account, url, waits)
        assert isinstance(await_first(waits), Unavailable)
        with publishers.publishing():
            done.result(PATIENCE)
    assert account.seen("patient") == {0: list(range(30))}


@pytest.mark.test_all
def test_publisher_that_hangs(publishers, account):
    """A consumer waits while the publisher does not answer nginx in time (504), and goes on."""
    waits = Waits()
    with (
        behind(publishers.url, {"proxy_read_timeout 75s;": "proxy_read_timeout 1s;"}) as (_, url),
        publishers.publishing() as process,
    ):
        os.kill(process, signal.SIGSTOP)
        assert get(url).status_code == 504
        done = consume_beside(account, url, waits)
        assert isinstance(await_first(waits), Unavailable)
        os.kill(process, signal.SIGCONT)
        done.result(PATIENCE)
    assert account.seen("patient") == {0: list(range(30))}


SLOW = {"limit_conn readers 32;": "limit_rate 15k;"}
"""Let a page take a second, and nginx be killed in the middle of it."""


@pytest.mark.test_all
def test_nginx_killed_in_the_middle_of_answers(publishers, account):
    """An nginx that is killed while it answers costs time, and no event."""
    with publishers.publishing(), behind(publishers.url, SLOW) as (server, url):
        for number in range(3):
            pages = []

            def restart(answer, pages=pages):
                if "/events" in answer.request.url.path and not pages:
                    pages.append(answer)
                    server.kill()
                    server.start()

            with httpx.Client(verify=False, event_hooks={"response": [restart]}) as session:
                read = partial(account.read_in_turn, Client(url, session), f"{number}")
                assert until_done(read) == {"CutPage": 1}
            assert account.seen(f"{number}") == {0: list(range(30))}


@pytest.mark.test_all
def test_nginx_that_reads_its_configuration_anew(publishers, account):
    """A consumer does not notice a reload, as for a renewed certificate."""
    with publishers.publishing(), behind(publishers.url) as (server, url):
        for number in range(5):
            server.reload()
            with reading(url) as client:
                account.read_in_turn(client, f"consumer {number}", limit=3)
            assert account.seen(f"consumer {number}") == {0: list(range(30))}
