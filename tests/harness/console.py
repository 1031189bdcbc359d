"""Consoles that are served over HTTP, and what is on their pages."""

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import httpx
from sqlalchemy import insert

from harness.published import install
from harness.readers import hosted
from harness.shop import metadata, orders
from zeroeventhub import FIRST, Client, Progress, Retention, TableFeed, everybody, feed_routes
from zeroeventhub.console import console_routes

OWASP = (
    "<script>alert(1)</script>",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "</textarea><script>alert(1)</script>",
    "</pre></code></details><iframe srcdoc='<script>alert(1)</script>'>",
    "<!--<img src='--><img src=x onerror=alert(1)//'>",
    "<a href='jav&#x09;ascript:alert(1)'>x</a>",
    "{{ 7 * 7 }}${7 * 7}<%= 7 * 7 %>",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "<x hx-get='/elsewhere' hx-trigger='load' hx-on:click='alert(1)'>",
)
"""Texts that become scripts where output is not escaped (OWASP, XSS Filter Evasion)."""


def append(engine, *rows, ago=60, step=0.001):
    """Append orders, dicts of columns; the first happened seconds ago, each other a step later."""
    metadata.create_all(engine)
    began = datetime.now(UTC) - timedelta(seconds=ago)
    # Written one by one, as rows may lack columns.
    with engine.begin() as connection:
        for number, row in enumerate(rows):
            placed = began + timedelta(seconds=number * step)
            values = {"placed": placed, "kind": "placed", "data": {"n": number}, **row}
            connection.execute(insert(orders).values(values))


def shop_routes(engine, *, path="/orders", partitions=1, authorize=None, **options):
    """Return the routes of a feed with all that a console can show of one."""
    columns = {"partition": "part", "partitions": partitions} if partitions > 1 else {}
    feed = TableFeed(
        orders, data="data", type="kind", time="placed", key="customer", cloudevents=True, **columns
    )
    return feed_routes(path, feed, engine, authorize=authorize, **options)


@contextmanager
def visited(routes, path="/", *, engine=None):
    """Serve routes, which may use an async engine; yield an httpx client whose base is a path."""
    with hosted(routes, engine) as url, httpx.Client(base_url=f"{url}{path}") as http:
        yield http


@contextmanager
def store_console(store):
    """Serve a console of a store alone; yield an httpx client whose base is the console."""
    routes = console_routes("/", feeds={}, stores={"billing": store}, authorize=everybody)
    with visited(routes, engine=store.engine) as http:
        yield http


@contextmanager
def console(engine, path="/console", *, feed=None, **options):
    """Serve a feed and its console; yield an httpx client whose base is the console."""
    routes = shop_routes(engine, **(feed or {}))
    shown = console_routes(path, feeds={"orders": routes}, **options)
    with visited([*routes, *shown], f"{path.rstrip('/')}/") as http:
        yield http


def fetch(http, path="feeds/orders", **query):
    """Return a document of the console's API, which must have it."""
    answer = http.get(f"api/{path}.json", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@contextmanager
def lagging(engine, *, partitions=1):
    """Serve a feed of five orders and its console, where billing has registered the first two.

    Yields a client of the feed and an httpx client whose base is the console.
    """
    append(engine, *({"part": n % partitions} for n in range(5)))
    columns = {"partition": "part", "partitions": partitions} if partitions > 1 else {}
    columns |= {"retention": Retention(), "progress": Progress()}
    feed = TableFeed(orders, data="data", time="placed", **columns)
    install(feed, engine)
    routes = feed_routes("/orders", feed, engine)
    shown = console_routes("/", feeds={"orders": routes}, authorize=everybody)
    with visited([*routes, *shown]) as http:
        assert fetch(http, "feeds/orders/lags")["times"] == []
        client = Client(str(http.base_url.join("/orders")))
        client.register_progress("billing", 0, client.fetch(0, FIRST, limit=2).cursor)
        yield client, http


class Structure(HTMLParser):
    """The elements and attributes of a page, its texts, its links, and the fields of its forms."""

    def __init__(self, answer):
        super().__init__()
        self.elements, self.links, self.fields, self.texts = [], [], [], []
        self.feed(answer.text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.links += [
            value for name, value in attrs if name in {"href", "src", "action", "hx-get"}
        ]
        if tag == "input":
            self.fields.append((dict(attrs).get("name"), dict(attrs).get("value")))

    def handle_data(self, data):
        self.texts.append(data)


def ids_of(document):
    """Return the ids of the events of a document."""
    return [int(event["id"]) for event in document["events"]]


@contextmanager
def console_of(feed, engine=None):
    """Serve a feed and its console; yield an httpx client whose base is the console."""
    routes = feed_routes("/orders", feed, engine)
    with visited([*routes, *console_routes("/", feeds={"orders": routes})]) as http:
        yield http
