"""Pieces of a partition: of nearly equal size, with every event in one of them, found by little."""

from bisect import bisect_right
from itertools import pairwise

from harness.shop import metadata, orders
from harness.statements import execute, scalars
from sqlalchemy import select

from zeroeventhub import TableFeed

BALANCED = 1.5

UNEVEN = """INSERT INTO orders (id, part)
WITH RECURSIVE digits (d) AS (SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 199),
    numbers (n) AS (SELECT 1 + low.d + 200 * high.d FROM digits AS low, digits AS high
        WHERE high.d < 100),
    mixed (n, mix) AS (SELECT n, (n % 10007 * 7919 + n % 9973 * 10473) % 1000 FROM numbers)
SELECT n, CASE WHEN mix < CASE WHEN n < 10000 THEN 10 ELSE 900 END THEN 0 ELSE 1 END FROM mixed"""
"""Twenty thousand orders, of which partition 0 has 1 % at first, and then 90 %."""


def feed_of(engine):
    """A feed of four partitions whose cursors are positions."""
    four = {"partition": "part", "partitions": 4}
    return TableFeed(orders, data=["id"], mutable=True, **four).bind(engine)


def split(feed, count, *, after=0, until=None):
    """The positions at which partition 0 is cut, by default all of it."""
    stop = None if until is None else f"1-{until}"
    found = feed.splits(0, count, start=f"1-{after}", stop=stop)
    return [int(cursor.split("-")[1]) for cursor in found]


def sizes(rows, boundaries):
    """Count what is in each piece."""
    ranks = [bisect_right(rows, boundary) for boundary in boundaries]
    return [upper - lower for lower, upper in pairwise(ranks)]


def test_uneven_pieces_are_balanced(engine):
    """Pieces are nearly equal on every database, also if one half has most events."""
    metadata.create_all(engine)
    execute(engine, UNEVEN)
    if engine.dialect.name == "postgresql":
        execute(engine, "SELECT setval('orders_id_seq', (SELECT max(id) FROM orders))")
    rows = scalars(engine, select(orders.c.id).where(orders.c.part == 0).order_by(orders.c.id))
    feed = feed_of(engine)
    for count in (4, 9):
        boundaries = split(feed, count)
        pieces = sizes(rows, boundaries)
        assert boundaries[0] == 0
        assert {*boundaries[1:-1]} <= {*rows}
        assert (len(pieces), sum(pieces)) == (count, len(rows))
        assert max(pieces) <= BALANCED * len(rows) / count
    # Boundaries lie between the first and the last that are given, which need not be rows.
    boundaries = split(feed, 4, after=2_001, until=19_001)
    pieces = sizes(rows, boundaries)
    assert (boundaries[0], len(pieces)) == (2_001, 4)
    assert 18_900 < boundaries[-1] <= 19_001
    assert max(pieces) <= BALANCED * sum(pieces) / 4
