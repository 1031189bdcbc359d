"""Feeds that are trimmed: what tests of retention, trimming, progress and archives ask of them."""

from datetime import UTC, datetime, timedelta

from harness.shop import metadata, orders
from harness.statements import add
from zeroeventhub import FIRST


def position_of(cursor):
    """Return the position at which a cursor stands."""
    return int(cursor.split("-")[1])


def of_another_event(cursor):
    """Return a cursor at the same position, after an event with other content."""
    return cursor[:-1] + ("0" if cursor[-1] != "0" else "1")


def trim(feed, below, **options):
    """Trim a feed below a position; return how many events are gone."""
    return feed.trim(feed.plan_trim(below=below), **options)


def numbers(feed, partition=0, cursor=FIRST, limit=1000):
    """Read on from a cursor to the end; return the numbers of all events."""
    seen = []
    while (page := feed.read(partition, cursor, limit)).events:
        seen += [event.data["n"] for event in page.events]
        cursor = page.cursor
    return seen


def ten_days(engine):
    """Place ten orders in a database, one a day, the oldest of ten days ago; return the engine."""
    metadata.create_all(engine)
    now = datetime.now(UTC) - timedelta(seconds=2)  # SQLite compares whole seconds
    rows = [
        {
            "part": days % 2,
            "customer": f"c{days}",
            "placed": now - timedelta(days=days),
            "data": {"n": days},
        }
        for days in range(10, 0, -1)
    ]
    add(engine, orders, rows)
    return engine
