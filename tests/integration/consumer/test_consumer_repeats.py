"""What a feed promises decides whether events go through the inbox, unless the caller does."""

import time
from dataclasses import dataclass

import httpx
import pytest
from harness.billing import landed, make_tables, write
from harness.web import serving
from sqlalchemy import text
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    LAST,
    Client,
    Consumer,
    CursorStore,
    Event,
    FeedInfo,
    Page,
    Partition,
    feed_routes,
)

DAY = 86400.0


@dataclass
class Stutter:
    """A feed that publishes each of ten events twice."""

    exactly_once: bool

    def info(self):
        return FeedInfo((Partition(0),), "1", exactly_once=self.exactly_once)

    def read(self, partition, cursor, limit):
        start = {FIRST: 0, LAST: 20}.get(cursor) if cursor in {FIRST, LAST} else int(cursor)
        end = min(start + 3, 20)
        numbers = [place // 2 for place in range(start, end)]
        return Page(
            [Event.of({"n": n, "id": str(n), "specversion": "1.0"}) for n in numbers], str(end)
        )


@pytest.fixture
def store(engine):
    """A store on each database, beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


def read(store, *, exactly_once, **options):
    """Read a feed that stutters to its end."""
    routes = feed_routes("/orders", Stutter(exactly_once=exactly_once))
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        client = Client(f"{url}/orders", http)
        Consumer(client, store, "billing", follow=False, **options).run(write)
    return landed(store)


@pytest.mark.parametrize(
    ("exactly_once", "inbox", "times"),
    [(False, None, 1), (True, None, 2), (False, False, 2), (True, True, 1)],
)
def test_inbox_is_kept_for_feeds_that_do_not_promise(store, exactly_once, inbox, times):
    """An event that is published twice is applied once, where feed or caller call for it."""
    expected = sorted(list(range(10)) * times)
    assert read(store, exactly_once=exactly_once, inbox=inbox) == expected


def test_inbox_forgets_what_is_too_old(store):
    """A run forgets ids that are older than it was told to keep them, and keeps the others."""
    read(store, exactly_once=False)
    with store.engine.begin() as connection:
        old = text("UPDATE zeroeventhub_inbox SET seen_at = :then WHERE digest < '8'")
        aged = connection.execute(old, {"then": time.time() - 3 * DAY}).rowcount
    assert 0 < aged < 10
    read(store, exactly_once=False, inbox_days=2)
    with store.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM zeroeventhub_inbox")) == 10 - aged
