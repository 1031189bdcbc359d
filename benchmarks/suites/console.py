"""How long a page of the console takes to open, with many partitions and consumers."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape

import httpx
import pytest
from harness.browser import Tab, launched
from sqlalchemy import MetaData, text

from benchmarks.acting import acting
from benchmarks.actors.console import log_feed
from benchmarks.measuring import spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import Stage
from zeroeventhub import FIRST, CursorStore

PARTITIONS, CONSUMERS, EVENTS = 100, 50, 100_000
LAG = 100
"""Events of each partition that a consumer has not read."""

TABLE = "console_log"
WHY = "each count of a partition, of a cursor or for a plot is a request with statements of its own"
AT_ONCE = 6
"""Connections that a browser opens to a server of HTTP/1.1."""

PAGES = {
    "overview": "",
    "feed": "feeds/orders",
    "events": "feeds/orders/events",
    "consumer": "stores/consumers/consumer?name=consumer-1",
    "audit log": "stores/consumers/audit",
}
LAG_OF_ONE = "the lag of one consumer, in the overview"

_ASSETS = re.compile(r'(?:href|src)="([^"]*assets/[^"]+)"')
_DATA = re.compile(r'data-(?:source|past)="([^"]+)"')

TEXT = f"""\
A log of {PARTITIONS} partitions on PostgreSQL is read by {CONSUMERS} consumers, which have all read
each partition to the same cursor, {LAG} events before its end, and have registered it. In each
round, a new process of uvicorn serves its console, whose pages are opened one after the other as a
browser opens them, over {AT_ONCE} connections: the page, then its style sheets and scripts together
with the documents of its plots; and again, with style sheets and scripts from the browser's cache.
In chromium, a page is opened once more, until its event `load` has ended. When the overview is
there, it requests the lag of each consumer whose row is in sight: one request,
{PARTITIONS} counts."""

_EVENTS = """
    INSERT INTO console_log (partition, id, type, time, data)
    SELECT n % :partitions, CAST(n AS text), 'placed', now() - interval '0.1 s' * (:events - n),
        jsonb_build_object('id', n, 'customer', n % 997)
    FROM generate_series(1, CAST(:events AS bigint)) AS n ORDER BY n
"""
_OTHERS = (
    """
    INSERT INTO zeroeventhub_cursors (consumer, partition, cursor, updated_at)
    SELECT 'consumer-' || n, partition, cursor, updated_at
    FROM zeroeventhub_cursors, generate_series(2, :consumers) AS n
    """,
    """
    INSERT INTO zeroeventhub_progress
        (consumer, feed, principal, partition, cursor, position, heard_at)
    SELECT 'consumer-' || n, feed, principal, partition, cursor, position, heard_at
    FROM zeroeventhub_progress, generate_series(2, :consumers) AS n
    """,
)
"""Let other consumers stand where the first one stands."""


def console(stage: Stage) -> Result:
    """Open every page, in processes that have shown none before and in a browser."""
    _fill(stage)
    found: dict[str, dict[str, list[float]]] = {}
    task = {"database": stage.postgresql, "table": TABLE, "partitions": PARTITIONS}
    tab = _tab(stage)
    for number in range(1, stage.count + 1):
        with acting("console", task) as server:
            url = f"http://127.0.0.1:{server.ready['port']}/"
            for name, column, seconds in _opened(url, tab):
                found.setdefault(name, {}).setdefault(column, []).append(seconds)
                stage.tell(f"{number}/{stage.count} {name}, {column}: {seconds:.2f}")
    rows = [
        Row(name, {column: spread(values) for column, values in columns.items()}, ours=True)
        for name, columns in found.items()
    ]
    return Result(
        "console",
        "Opening a page of the console",
        TEXT,
        "first, s",
        rows,
        [Goal(f"console, {name}", name, "first, s", 1, at_most=True, why=WHY) for name in PAGES],
        size=f"{EVENTS:,} events, {stage.count} rounds",
    )


def _fill(stage: Stage) -> None:
    """Fill a log, and let one consumer stand in it with others that stand where it stands."""
    metadata = MetaData()
    feed = log_feed(metadata, TABLE, PARTITIONS)
    with stage.engine(stage.postgresql) as engine:
        metadata.create_all(engine)
        store, bound = CursorStore(engine), feed.bind(engine)
        with engine.begin() as connection:
            connection.execute(text(_EVENTS), {"partitions": PARTITIONS, "events": EVENTS})
            feed.install(connection)
            store.create_tables(connection)
        for partition in range(PARTITIONS):
            read = EVENTS // PARTITIONS - LAG
            cursor = bound.cursor_of_count(partition, FIRST, read).cursor
            bound.register_progress("consumer-1", partition, cursor)
            with engine.begin() as connection:
                store.set(connection, "consumer-1", partition, cursor)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for copied in _OTHERS:
                connection.execute(text(copied), {"consumers": CONSUMERS})
            connection.execute(text("VACUUM ANALYZE"))


def _tab(stage: Stage) -> Tab | None:
    """Return a browser's tab; None if there is no browser."""
    try:
        return stage.stack.enter_context(launched())
    except pytest.skip.Exception as missing:
        stage.tell(str(missing))
        return None


def _opened(url: str, tab: Tab | None) -> Iterator[tuple[str, str, float]]:
    """Yield what was opened, the column of its figure, and the seconds that it took."""
    limits = httpx.Limits(max_connections=AT_ONCE)
    with (
        httpx.Client(base_url=url, timeout=120, limits=limits) as http,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):

        def seconds(path: str, *parts: re.Pattern[str]) -> float:
            began = time.perf_counter()
            page = http.get(path).raise_for_status()
            links = [unescape(link) for part in parts for link in part.findall(page.text)]
            for answer in pool.map(http.get, map(str, map(page.url.join, links))):
                answer.raise_for_status()
            return time.perf_counter() - began

        for name, path in PAGES.items():
            yield name, "first, s", seconds(path, _ASSETS, _DATA)
            yield name, "again, s", seconds(path, _DATA)
        for column in ("first, s", "again, s"):
            yield LAG_OF_ONE, column, seconds("stores/consumers/lag?name=consumer-2")
        if tab is not None:
            with tab.at(http) as page:
                # The overview is the last one, as it requests lags when it is there.
                for name, path in reversed(PAGES.items()):
                    tab.open(path)
                    page.wait_for_function(f"{_LOADED} > 0")
                    yield name, "in chromium, s", page.evaluate(_LOADED) / 1000


_LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
