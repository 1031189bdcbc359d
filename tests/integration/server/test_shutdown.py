"""A server that is told to end while readers wait, stream, or do not read."""

import time

import httpx
import pytest
from harness.readers import Numbers, get, head_of, mounted, open_stream, page_url
from harness.stalled import answer, ask, asking, everything
from harness.uvicorn_process import uvicorn

from zeroeventhub.server import end_waits, sending

SOON = 10.0  # seconds in which a server has to be gone


@pytest.fixture
def server(tmp_path):
    """Run a server that does not wait for stalled readers for ever."""
    with uvicorn(tmp_path, "--timeout-graceful-shutdown", "1") as server:
        yield server


@pytest.mark.slow
def test_waiters_and_streams_are_answered_at_once(server):
    """Fifty who wait get a whole, empty page, streams end as such, and the server is gone."""
    orders = f"{server.url}/orders"
    cursor = head_of(orders)
    with (
        asking(page_url(orders, cursor=cursor, wait=30), 50) as waiting,
        asking(f"{orders}/server-sent-events", 5) as streams,
    ):
        for stream in streams:
            assert b"200 OK" in stream.recv(65536)
        httpx.get(server.url)
        assert server.end() < SOON / 2
        found = {(status, body) for status, _, body in map(answer, waiting)}
        assert found == {(200, b'{"cursor":"%b","caughtUp":true}\n' % cursor.encode())}
        for stream in streams:
            assert everything(stream).endswith(b"0\r\n\r\n")
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "--timeout-graceful-shutdown" not in log


@pytest.mark.slow
def test_reader_that_does_not_read_keeps_nobody_else(server):
    """A reader that takes nothing is left behind; those who wait are answered before."""
    cursor = head_of(f"{server.url}/orders")
    with (
        ask(page_url(f"{server.url}/large"), room=4096) as stalled,
        asking(page_url(f"{server.url}/orders", cursor=cursor, wait=30), 20) as waiting,
        asking(f"{server.url}/orders/server-sent-events", 2),
    ):
        httpx.get(server.url)
        assert server.end() < SOON
        assert {answer(connection)[0] for connection in waiting} == {200}
        assert len(everything(stalled)) < 16_000_000


@pytest.mark.slow
def test_server_that_would_wait_for_ever_is_warned_of(tmp_path):
    """A server that does not say how long stalled readers are waited for is warned of, once."""
    with uvicorn(tmp_path) as server:
        for _ in range(3):
            assert httpx.get(f"{server.url}/orders").status_code == 200
        assert server.end() < SOON
        assert server.log.read_text().count("--timeout-graceful-shutdown") == 1


def test_other_servers_say_it_themselves(monkeypatch, watcher, pool):
    """A host whose server is not uvicorn's says that it ends, and waits are over at once."""
    with (
        # No signal reaches it.
        mounted(Numbers(), observer=watcher, server_sent_events=True) as url,
        asking(page_url(url, wait=SOON), 20) as waiting,
    ):
        stream = pool.submit(open_stream, url, lambda _: False)
        watcher.until_waiting(21)
        began = time.monotonic()
        monkeypatch.setattr(sending.PROCESS, "ending", False)  # and set back behind it
        end_waits()
        assert {answer(connection)[0] for connection in waiting} == {200}
        assert time.monotonic() - began < SOON / 2
        assert stream.result(SOON).endswith(b":\n\n")
        assert get(url, wait=SOON).status_code == 200
        assert time.monotonic() - began < SOON
    assert watcher.counts[-1] == 0
