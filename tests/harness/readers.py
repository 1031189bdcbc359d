"""A feed that is not for everybody, and its readers."""

from contextlib import contextmanager

import httpx
from starlette.applications import Starlette

from harness.shop import metadata, orders, place
from harness.web import serving
from zeroeventhub import Principal, TableFeed, feed_routes

READER = Principal(name="reader")
TOKEN = "canary-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
GOOD = {
    "": {},
    "/events": {"token": "1", "partition": 0, "cursor": "_first"},
    "/server-sent-events": {},
    "/http-feed": {},
    "/cursor-of-count": {"token": "1", "partition": 0, "cursor": "_first", "events": 3},
}


def fill(engine):
    """Write ten orders; return the engine."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 10)
    return engine


def routes(shop, authorize=None, path="/orders", **options):
    """All routes of a feed over the orders."""
    feed = TableFeed(orders, data="data", type="kind", time="placed", cloudevents=True)
    options = {"http_feed": True, "server_sent_events": True, **options}
    return feed_routes(path, feed, shop, authorize=authorize, **options)


@contextmanager
def served(shop, authorize=None, **options):
    """Serve a feed; yield its URL."""
    with serving(Starlette(routes=routes(shop, authorize, **options))) as url:
        yield f"{url}/orders"


def kind(answer):
    """The kind of problem that an answer is."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.json()["type"].rpartition("/")[2]


def raising(error):
    """A hook that raises."""

    def hook(request):
        raise error

    return hook


def open_stream(url, stopped, **headers):
    """Read a stream until it ends, or until it is told to stop; return what came."""
    received = b""
    with httpx.stream("GET", f"{url}/server-sent-events", headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        for chunk in answer.iter_bytes():
            received += chunk
            if stopped(received):
                break
    return received
