"""Pieces of a partition: of nearly equal size, with every event in one of them, found by little."""

from bisect import bisect_right
from itertools import pairwise

import pytest
from harness.shop import metadata, orders
from harness.statements import add, execute, scalars
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, text

from zeroeventhub import TableFeed

BALANCED = 1.5

FILL = """INSERT INTO orders (id, part)
WITH RECURSIVE digits (d) AS (SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 199),
    numbers (n) AS (SELECT 1 + low.d + 200 * high.d FROM digits AS low, digits AS high
        WHERE high.d < 100),
    mixed (n, mix) AS (SELECT n, (n % 10007 * 7919 + n % 9973 * 10473) % 1000 FROM numbers)
SELECT {id}, {part} FROM mixed WHERE {where}"""

UNEVEN = {"part": "CASE WHEN mix < CASE WHEN n < 10000 THEN 10 ELSE 900 END THEN 0 ELSE 1 END"}
"""From 1 % to 90 %."""


def fill(engine, *, id="n", part="0", where="1 = 1"):  # noqa: A002 - the column's name
    """Fill the table of orders from numbers."""
    metadata.create_all(engine)
    integer = "DIV" if engine.dialect.name in {"mariadb", "mysql"} else "/"
    id, part, where = (each.replace(" / ", f" {integer} ") for each in (id, part, where))  # noqa: A001
    with engine.begin() as connection:
        connection.execute(text(FILL.format(id=id, part=part, where=where)))
        if engine.dialect.name == "postgresql":
            behind = "SELECT setval('orders_id_seq', (SELECT max(id) FROM orders))"
            connection.execute(text(behind))


def feed_of(engine, **options):
    """A feed of four partitions whose cursors are positions."""
    four = {"partition": "part", "partitions": 4, "mutable": True}
    return TableFeed(orders, **{"data": ["id"], **four, **options}).bind(engine)


def split(feed, count, *, partition=0, after=0, until=None):
    """The positions at which a partition is cut, by default all of it."""
    stop = None if until is None else f"1-{until}"
    found = feed.splits(partition, count, start=f"1-{after}", stop=stop)
    return [int(cursor.split("-")[1]) for cursor in found]


def positions(engine, partition=0):
    """The positions of a partition's events, in order."""
    query = select(orders.c.id).where(orders.c.part == partition)
    return scalars(engine, query.order_by(orders.c.id))


def sizes(rows, boundaries):
    """Count what is in each piece."""
    ranks = [bisect_right(rows, boundary) for boundary in boundaries]
    return [upper - lower for lower, upper in pairwise(ranks)]


def assert_balanced(rows, boundaries, count):
    """Show that pieces have all rows, at which they end, and nearly as many each."""
    pieces = sizes(rows, boundaries)
    assert boundaries[0] == 0
    assert {*boundaries[1:-1]} <= {*rows}
    assert sum(pieces) == len(rows)
    assert len(pieces) == count
    assert max(pieces) <= BALANCED * len(rows) / count


def test_uneven_pieces_are_balanced(engine):
    """Pieces are nearly equal on every database, also if one half has most events."""
    fill(engine, **UNEVEN)
    rows = positions(engine)
    feed = feed_of(engine)
    for count in (4, 9):
        assert_balanced(rows, split(feed, count), count)
    # Boundaries lie between the first and the last that are given, which need not be rows.
    boundaries = split(feed, 4, after=2_001, until=19_001)
    pieces = sizes(rows, boundaries)
    assert (boundaries[0], len(pieces)) == (2_001, 4)
    assert 18_900 < boundaries[-1] <= 19_001
    assert max(pieces) <= BALANCED * sum(pieces) / 4


GAPS = st.one_of(st.integers(1, 3), st.integers(0, 9).map(lambda digits: 10**digits))


@pytest.mark.slow
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(GAPS, st.integers(1, 400), st.integers(1, 3)), min_size=1, max_size=15),
    st.integers(1, 1_000),
    st.randoms(use_true_random=False),
)
def test_joined_pieces_are_the_whole(sqlite, spread, count, dice):
    """Pieces have every event once, and none is empty unless the range is."""
    ids, last = [], 0
    for gap, number, step in spread:
        ids += range(last + gap, last + gap + number * step, step)
        last = ids[-1]
    shares = dice.random()
    rows = [{"id": each, "part": int(dice.random() < shares)} for each in ids]
    metadata.create_all(sqlite)
    execute(sqlite, delete(orders))
    add(sqlite, orders, rows)
    after, until = sorted(dice.choices([0, *ids, ids[0] - 1], k=2))
    boundaries = split(feed_of(sqlite), count, after=after, until=until)
    own = [row["id"] for row in rows if row["part"] == 0 and after < row["id"] <= until]
    pieces = sizes(own, boundaries)
    assert (boundaries[0], boundaries[-1]) == (after, until)
    assert {*boundaries[1:-1]} <= {*own}
    assert sum(pieces) == len(own)
    assert len(pieces) <= count
    assert len(pieces) == 1 or min(pieces) > 0
