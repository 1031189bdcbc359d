"""What an event costs those who pass it on: in instructions of Python's, which no load changes."""

import asyncio
import itertools
import sys
import threading
from urllib.parse import urlencode

import pytest
from harness.shop import metadata, orders
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.ndjson import PageDecoder

EVENTS = 2_000
SMALL, LARGE = 250, 500
"""Sizes of pages; what a page costs by itself is taken out by comparing the two."""

PUBLISHED = {"postgresql": 5.0, "sqlite": 40.0, "mariadb": 40.0}
"""What an event may cost the publisher. PostgreSQL joins the lines of a page, which are then passed
on as one; from the others they come one by one, and each is looked at once. With SQLAlchemy 2.0
they cost a tenth more. To look at each once more is ten to twenty instructions."""

DECODED, TOUCHED = 75.0, 150.0
"""What it may cost the client: one step over its line, and one more where its data is asked for."""

DRIVERS = ("pymysql",)
"""Drivers that are written in Python: what they take is theirs."""


def instructions(work):
    """Count the instructions of Python's that a work takes, in all threads that it starts."""
    counter, before = itertools.count(), sys.gettrace()

    def trace(frame, event, _):
        if frame.f_globals.get("__name__", "").startswith(DRIVERS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            next(counter)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    taken = next(counter)
    assert taken > 0
    return taken


async def ask(application, path, **parameters):
    """Call an ASGI application as a server does; return the body of its answer."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": urlencode({"token": "1", "partition": 0, **parameters}).encode(),
        "headers": [],
    }
    body = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        body.append(message.get("body", b""))

    await application(scope, receive, send)
    return b"".join(body)


def walk(application, limit):
    """Read all pages of a feed; return their bodies."""

    async def pages():
        bodies, cursor = [], FIRST
        while not bodies or b'"caughtUp":true' not in bodies[-1][-200:]:
            wanted = {"cursor": cursor, "pagesizehint": limit}
            bodies.append(await ask(application, "/orders/events", **wanted))
            cursor = bodies[-1].rpartition(b'"cursor":"')[2].partition(b'"')[0].decode()
        return bodies

    return asyncio.run(pages())


@pytest.fixture
def application(engine):
    """A feed over a table of many orders."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        for first in range(0, EVENTS, SMALL):
            numbers = range(first, first + SMALL)
            rows = [{"data": {"n": number, "note": "x" * 250}} for number in numbers]
            connection.execute(insert(orders), rows)
    # How many visits to the database pages need that are read ahead differs from run to run.
    capacity = Capacity(kept_bytes=1)
    feed = TableFeed(orders, data="data")
    return Starlette(routes=feed_routes("/orders", feed, engine, capacity=capacity))


def test_publisher_takes_few_instructions_for_an_event(application, engine):
    """What a page costs the publisher hardly grows with its events, on any database."""
    bodies = walk(application, SMALL // 2)  # and whatever is done only once
    assert sum(body.count(b'{"data"') for body in bodies) == EVENTS
    # The feed looks for news by its clock: the least of some walks has the fewest of these looks.
    small, large = (
        min(instructions(lambda limit=limit: walk(application, limit)) for _ in range(3))
        for limit in (SMALL, LARGE)
    )
    # Half as many pages, and as many events.
    assert (2 * large - small) / EVENTS <= PUBLISHED[engine.dialect.name]


def decode(body, *, touch):
    """Decode a page that comes in chunks, as it does; and the data of its events, or not."""
    decoder = PageDecoder(0)
    for begin in range(0, len(body), 65_536):
        decoder.feed(body[begin : begin + 65_536])
    events = decoder.page().events
    for event in events:
        if touch:
            event.data  # noqa: B018 - decoded when it is asked for
    return len(events)


@pytest.mark.parametrize(("touch", "bound"), [(False, DECODED), (True, TOUCHED)])
def test_client_takes_few_instructions_for_an_event(touch, bound):
    """Decoding a page takes few instructions for an event, also if its data is asked for."""
    line = b'{"data":{"n":12345,"note":"%b"}}\n' % (b"x" * 250)
    checkpoint = b'{"cursor":"1-9"}\n'
    bodies = [line * count + checkpoint for count in (SMALL, LARGE)]
    assert [decode(body, touch=touch) for body in bodies] == [SMALL, LARGE]
    small, large = (instructions(lambda body=body: decode(body, touch=touch)) for body in bodies)
    assert (large - small) / (LARGE - SMALL) <= bound
