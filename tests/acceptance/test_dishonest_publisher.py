"""What a publisher that means harm cannot do to terminals, logs and processors of its consumers."""

import fcntl
import json
import logging
import os
import pty
import struct
import subprocess
import termios
from contextlib import contextmanager

import httpx
import pytest
from harness.command_line import PATIENCE, PROGRAM, invoke
from harness.stores import new_store
from harness.web import serving
from sqlalchemy import create_engine
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Client, Consumer
from zeroeventhub.errors import Unavailable

HOSTILE = "\x1b]0;title\x07 \x9b31m \u202etxt.exe\r\nERROR forged record"
TYPE = "application/problem+json"


@contextmanager
def publisher(info, page=None):
    """Serve a discovery document and a page of a dishonest publisher; yield its address."""

    def events(request):
        return page or PlainTextResponse('{"cursor":"1","caughtUp":true}\n')

    discovery = Route("/feed", lambda request: info)
    with serving(Starlette(routes=[discovery, Route("/feed/events", events)])) as url:
        yield f"{url}/feed"


def feed(token="1", **more):
    """A discovery document of a feed with one partition."""
    return JSONResponse({"token": token, "partitions": [{"id": "0"}], **more})


def assert_harmless(text):
    """Show that text neither moves a terminal's cursor nor turns the direction of writing."""
    assert all(one.isprintable() or one == "\n" for one in text), ascii(text)


def test_discovery_cannot_write_to_a_terminal():
    """Tokens and names of extensions are shown with what cannot be printed escaped."""
    with publisher(feed(token=HOSTILE, extensions=[HOSTILE])) as url:
        shown = invoke("discover", url)
    assert shown.exit_code == 0
    assert_harmless(shown.stdout)
    assert "\\x1b]0;title" in shown.stdout


def test_refusal_cannot_write_to_a_terminal_or_a_log(caplog):
    """What a publisher says of a refusal stays on its line everywhere, and is cut if it is long."""
    document = {"type": "urn:zeroeventhub:problem/x", "detail": HOSTILE + "x" * 100_000}
    refusal = JSONResponse(document, 503, {"Retry-After": "0"}, media_type=TYPE)
    with publisher(feed(), refusal) as url, httpx.Client() as http:
        store = new_store(create_engine("sqlite://"))
        with pytest.raises(Unavailable) as error:
            next(iter(Consumer(Client(url, http), store, "c", follow=False, attempts=2)))
    assert_harmless(str(error.value))
    assert len(str(error.value)) < 2000
    records = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert records
    for record in records:
        assert "\n" not in record.getMessage()
        assert_harmless(record.getMessage())


def test_tail_is_harmless_on_a_terminal_alone():
    """On a terminal `tail` escapes what terminals obey, as JSON does; elsewhere it sends bytes."""
    line = json.dumps({"data": "\x9b31m \u202etxt \U000e0001"}, ensure_ascii=False)
    page = PlainTextResponse(f'{line}\n{{"cursor":"1","caughtUp":true}}\n')
    with publisher(feed(), page) as url:
        command = [*PROGRAM, "tail", url]
        piped = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=True).stdout
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 200, 0, 0))
        subprocess.run(command, stdout=theirs, timeout=PATIENCE, check=True)
        os.close(theirs)
        shown = os.read(ours, 10_000)
        os.close(ours)
    assert piped.decode() == json.dumps(json.loads(line)["data"], ensure_ascii=False) + "\n"
    assert_harmless(shown.decode().replace("\r\n", "\n"))
    assert json.loads(shown) == json.loads(piped)


@pytest.mark.timeout(60)
def test_chain_of_partitions_is_checked_in_its_length():
    """A feed of all partitions there can be, each after the one before, is read in a moment."""
    last = 32_767
    partitions = [
        {"id": str(number), "closed": True, "startsAfterPartition": str(number + 1)}
        for number in range(last)
    ]
    info = JSONResponse(
        {"token": "1", "partitions": [*partitions, {"id": str(last), "closed": True}]}
    )
    page = PlainTextResponse('{"data":1}\n{"cursor":"1","caughtUp":true}\n')
    with publisher(info, page) as url, httpx.Client() as http:
        store = new_store(create_engine("sqlite://"))
        pages = iter(Consumer(Client(url, http), store, "c", follow=False))
        assert next(pages).partition == last


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["tail", "sync", "export"])
def test_feed_that_leads_in_a_circle_is_given_up(tmp_path, command):
    """Where pages without events lead from one cursor to another and back, a command ends."""

    def turn(request):
        cursor = "2" if request.query_params["cursor"] == "1" else "1"
        return PlainTextResponse(f'{{"cursor":"{cursor}"}}\n')

    options = {
        "tail": [],
        "sync": ["--into", f"sqlite:///{tmp_path}/c.db", "--table", "t", "--consumer", "c"],
        "export": ["--to", tmp_path / "c.parquet"],
    }
    info = Route("/feed", lambda request: feed(extensions=["stop"]))
    routes = [info, Route("/feed/events", turn)]
    with serving(Starlette(routes=routes)) as url:
        ended = invoke(command, f"{url}/feed", *options[command])
    assert ended.exit_code != 0
    assert "in a circle" in ended.output
