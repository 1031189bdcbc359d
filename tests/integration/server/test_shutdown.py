"""A server that is told to end while readers wait, stream, or do not read."""

import json
import time

import httpx
import pytest
from harness.shop import metadata, orders
from harness.stalled import answer, ask, asking, everything
from harness.uvicorn_process import uvicorn
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, feed_routes
from zeroeventhub.server import end_waits, shutdown

APPLICATION = "harness.waiting_application:application"
SOON = 10.0
"""Seconds in which a server has to be gone."""


def page_url(url, path="orders", **parameters):
    """Return the URL of a page."""
    asked = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return str(httpx.URL(f"{url}/{path}/events", params=asked))


@pytest.fixture
def server(tmp_path, sqlite_url):
    """Run a server that does not wait for stalled readers for ever."""
    with uvicorn(
        APPLICATION, tmp_path, "--timeout-graceful-shutdown", "5", DATABASE=sqlite_url
    ) as server:
        yield server


def test_waiters_are_answered_at_once(server):
    """Two hundred who wait get a whole, empty page, and the server is gone."""
    cursor = json.loads(httpx.get(page_url(server.url, cursor=LAST)).text)["cursor"]
    with asking(page_url(server.url, cursor=cursor, wait=30), 200) as waiting:
        httpx.get(server.url)
        assert server.end() < SOON / 2
        found = [answer(connection) for connection in waiting]
    assert {status for status, _, _ in found} == {200}
    assert {body for _, _, body in found} == {
        b'{"cursor":"%b","caughtUp":true}\n' % cursor.encode()
    }
    assert "Traceback" not in server.log.read_text()


def test_streams_end(server):
    """A stream of server-sent events ends, and says so by the end of its body."""
    with asking(f"{server.url}/orders/server-sent-events", 5) as streams:
        for stream in streams:
            assert b"200 OK" in stream.recv(65536)
        assert server.end() < SOON / 2
        for stream in streams:
            assert everything(stream).endswith(b"0\r\n\r\n")
    assert "Traceback" not in server.log.read_text()


def test_reader_that_does_not_read_keeps_nobody_else(server):
    """A reader that takes nothing is left behind; those who wait are answered before."""
    cursor = json.loads(httpx.get(page_url(server.url, cursor=LAST)).text)["cursor"]
    with (
        ask(page_url(server.url, "large"), room=4096) as stalled,
        asking(page_url(server.url, cursor=cursor, wait=30), 20) as waiting,
        asking(f"{server.url}/orders/server-sent-events", 2),
    ):
        httpx.get(server.url)
        assert server.end() < SOON
        assert {answer(connection)[0] for connection in waiting} == {200}
        assert len(everything(stalled)) < 16_000_000


@pytest.mark.parametrize("told", [True, False])
def test_server_that_would_wait_for_ever_is_warned_of(tmp_path, sqlite_url, told):
    """Whoever does not say how long stalled readers are waited for is told, once."""
    options = ["--timeout-graceful-shutdown", "5"] if told else []
    with uvicorn(APPLICATION, tmp_path, *options, DATABASE=sqlite_url) as server:
        for _ in range(3):
            assert httpx.get(f"{server.url}/orders").status_code == 200
        assert server.end() < SOON
        assert server.log.read_text().count("--timeout-graceful-shutdown") == (0 if told else 1)


def test_other_servers_say_it_themselves(monkeypatch, sqlite):
    """Where no server of uvicorn's is to be seen, whoever runs another one says that it ends."""
    metadata.create_all(sqlite)
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url:  # in a thread, which no signal reaches
        cursor = json.loads(httpx.get(page_url(url, cursor=LAST)).text)["cursor"]
        with asking(page_url(url, cursor=cursor, wait=30), 20) as waiting:
            httpx.get(url)
            began = time.monotonic()
            monkeypatch.setattr(shutdown.PROCESS, "ending", False)  # and set back behind it
            end_waits()
            assert {answer(connection)[0] for connection in waiting} == {200}
            httpx.get(page_url(url, cursor=cursor, wait=30))
            assert time.monotonic() - began < SOON
