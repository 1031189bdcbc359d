"""Feeds that are trimmed: what tests of retention, trimming, progress and archives ask of them."""

from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import insert

from harness.shop import metadata, orders
from harness.statements import add
from zeroeventhub import FIRST, LAST, TypeFilter

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
PLACED = TypeFilter(frozenset({"placed"}))
NOTHING = TypeFilter(frozenset({"nothing"}))


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


def place_at(engine, minutes, parts=None):
    """Append orders of given minutes after noon, the odd ones in partition 1, some elsewhere."""
    with engine.begin() as connection:
        for minute in minutes:
            row = {"kind": "placed" if minute % 3 else "paid", "data": {"n": minute}}
            row |= {"part": (parts or {}).get(minute, minute % 2)}
            row |= {"placed": NOON + timedelta(minutes=minute)}
            connection.execute(insert(orders), row)


def uses(feed, cursor):
    """Yield everything that one can do with a cursor, in partitions 0 and 1."""
    last = feed.read(0, LAST, 1).cursor
    for p in (0, 1):
        yield partial(feed.read, p, cursor, 10)
        yield partial(feed.read, p, cursor, 10, types=PLACED)
        yield partial(feed.read, p, cursor, 10, types=NOTHING)
        yield partial(feed.read, p, cursor, 10, stop=last)
        yield partial(feed.read, p, FIRST, 10, stop=cursor)
        yield partial(feed.read, p, FIRST, 10, types=NOTHING, stop=cursor)
        yield partial(feed.read_pages, p, cursor, 2, 3)
        yield partial(feed.splits, p, 3, start=cursor)
        yield partial(feed.splits, p, 3, stop=cursor)
        yield partial(feed.lag, p, cursor)
        yield partial(feed.cursor_of_count, p, cursor, 3)
        yield partial(feed.cursor_of_count, p, FIRST, 3, stop=cursor)
    yield partial(feed.vouch, [cursor])


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
