"""Pieces of a partition: of nearly equal size, with every event in one of them, found by little."""

from bisect import bisect_right
from itertools import pairwise

import pytest
from harness.shop import metadata, orders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, func, insert, select, text

from zeroeventhub import TableFeed
from zeroeventhub.publisher.guest_connection import guest_for, visiting
from zeroeventhub.publisher.near_rows import NearRows
from zeroeventhub.publisher.ordering import Events, Source
from zeroeventhub.publisher.split_query import SplitQuery

BALANCED = 1.5
ROWS = 100_000

FILL = """INSERT INTO orders (id, part)
WITH RECURSIVE digits (d) AS (SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 399),
    numbers (n) AS (SELECT 1 + low.d + 400 * high.d FROM digits AS low, digits AS high
        WHERE high.d < 250),
    mixed (n, mix) AS (SELECT n, (n % 10007 * 7919 + n % 9973 * 10473) % 1000 FROM numbers)
SELECT {id}, {part} FROM mixed WHERE {where}"""

DISTRIBUTIONS = {
    "every number": {},
    "one in four": {"part": "CASE WHEN mix < 250 THEN 0 ELSE 1 END"},
    "rollbacks": {"where": "mix >= 200"},
    "from 1 % to 90 %": {
        "part": "CASE WHEN mix < CASE WHEN n < 50000 THEN 10 ELSE 900 END THEN 0 ELSE 1 END"
    },
    "late": {"part": "CASE WHEN n < 75000 THEN 1 ELSE 0 END"},
    "early": {"part": "CASE WHEN n < 25000 THEN 0 ELSE 1 END"},
    "jumps": {"id": "n + 10000000000 * (n / 15000)"},
    "trimmed": {"id": "n + 5000000000"},
    "deleted ranges": {"where": "n / 1000 % 7 > 2"},
    "thinner and thinner": {"id": "n + n * (n / 20)"},
    "imports": {"part": "CASE WHEN n / 4000 % 5 = 0 THEN 0 ELSE 1 END"},
}


def fill(engine, *, id="n", part="0", where="1 = 1"):  # noqa: A002 - the column's name
    """Fill the table of orders from numbers."""
    metadata.create_all(engine)
    integer = "DIV" if engine.dialect.name in {"mariadb", "mysql"} else "/"
    id, part, where = (each.replace(" / ", f" {integer} ") for each in (id, part, where))  # noqa: A001
    with engine.begin() as connection:
        connection.execute(text(FILL.format(id=id, part=part, where=where)))


def split(engine, count, *, partition=0, after=0, until=None, source=None):
    """Cut a partition of orders, by default all of it."""
    if source is None:
        source = Source.of(Events(orders, (orders.c.id,), orders.c.part))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if until is None:
            until = connection.scalar(select(func.max(orders.c.id))) or 0
        return SplitQuery(NearRows(source)).positions(
            connection, partition, count=count, after=after, until=until
        )


def positions(engine, column, *where):
    """Read positions, in order."""
    with engine.connect() as connection:
        return list(connection.scalars(select(column).where(*where).order_by(column)))


def sizes(rows, boundaries):
    """Count what is in each piece."""
    ranks = [bisect_right(rows, boundary) for boundary in boundaries]
    return [upper - lower for lower, upper in pairwise(ranks)]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_pieces_are_balanced(engine, name):
    """Pieces of some thousand events are nearly equal, and have every event once."""
    fill(engine, **DISTRIBUTIONS[name])
    rows = positions(engine, orders.c.id, orders.c.part == 0)
    for count in (8, len(rows) // 1_000):
        boundaries = split(engine, count)
        pieces = sizes(rows, boundaries)
        assert boundaries[0] == 0
        assert {*boundaries[1:-1]} <= {*rows}
        assert sum(pieces) == len(rows)
        assert len(pieces) == count
        assert max(pieces) <= BALANCED * len(rows) / count


@pytest.mark.parametrize("partition", ["part", None])
def test_pieces_of_a_sequenced_feed_are_balanced(engine, partition):
    """Positions that an ordering has given are cut as well, in a table of their own."""
    metadata.create_all(engine)
    options = {"partition": "part", "partitions": 2} if partition else {}
    feed = TableFeed(orders, data="data", ordering="sequenced", **options)
    fill(engine, part="CASE WHEN n < 20000 AND mix < 900 THEN 1 ELSE 0 END", where="n <= 40000")
    with engine.begin() as connection:
        feed.install(connection)
    ordering = feed.ordering(engine.dialect.name)
    settled = 0
    while settled < 40_000:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if step := ordering.step(connection):
                connection.execute(text(step))
            settled = ordering.horizon(connection).settled
    source = ordering.source
    with engine.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id % 3 == 0))
    own = [] if source.partition is None else [source.partition == 0]
    rows = positions(engine, source.position, *own)
    for count in (2, len(rows) // 1_000):
        boundaries = split(engine, count, until=settled, source=source)
        pieces = sizes(rows, boundaries)
        assert len(pieces) == count
        assert {*boundaries[1:-1]} <= {*rows}
        assert max(pieces) <= BALANCED * len(rows) / count


def test_range_is_cut(engine):
    """Boundaries lie between the first and the last that are given, which need not be rows."""
    fill(engine, part="n % 2", id="2 * n")
    rows = positions(engine, orders.c.id, orders.c.part == 1)
    boundaries = split(engine, 10, partition=1, after=60_001, until=120_001)
    pieces = sizes(rows, boundaries)
    assert (boundaries[0], boundaries[-1]) == (60_001, 120_001)
    assert len(pieces) == 10
    assert max(pieces) <= BALANCED * sum(pieces) / 10


def test_few_events_are_cut_exactly(engine):
    """Fewer events than pieces are one to a piece, and none at all are a piece without any."""
    metadata.create_all(engine)
    assert split(engine, 5) == [0, 0]
    assert split(engine, 5, until=9) == [0, 9]
    with engine.begin() as connection:
        rows = [{"id": 10**number, "part": number % 2} for number in range(8)]
        connection.execute(insert(orders), rows)
    assert split(engine, 100) == [0, 1, 100, 10_000, 10**7]
    assert split(engine, 100, partition=1) == [0, 10, 1_000, 10**5, 10**7]
    assert split(engine, 2, partition=1) == [0, 1_000, 10**7]
    assert split(engine, 100, until=100) == [0, 1, 100]
    assert split(engine, 100, after=100, until=100) == [100, 100]
    assert split(engine, 1) == [0, 10**7]
    assert split(engine, 100, partition=7) == [0, 10**7]


@pytest.mark.parametrize("count", [1_000, 2_000])
def test_pieces_of_an_event_or_two(engine, count):
    """With hardly more events than pieces wanted, there are fewer pieces, none of them empty."""
    fill(engine, where="n <= 1500")
    rows = positions(engine, orders.c.id)
    pieces = sizes(rows, split(engine, count))
    assert min(pieces) >= 1
    assert max(pieces) <= 3
    assert sum(pieces) == len(rows)


@pytest.mark.parametrize("analyzed", [False, True])
def test_little_is_read(engine, analyzed):
    """No more of the table is read than a look shows, although the first half has no such event,
    and although PostgreSQL has not noticed that an index would do.
    """
    fill(engine, part="CASE WHEN n > 50000 AND n % 2 = 0 THEN 3 ELSE n % 3 END")
    if analyzed:
        command = "ANALYZE TABLE orders" if engine.dialect.name == "mariadb" else "ANALYZE"
        with engine.begin() as connection:
            connection.execute(text(command)).close()
    query = SplitQuery(NearRows(Source.of(Events(orders, (orders.c.id,), orders.c.part))))
    lookups = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        lookups.append(statement.count("LIMIT"))

    guest = guest_for(engine.dialect, 10.0)
    with engine.connect() as connection, visiting(connection, guest):
        options = {"count": 2, "after": 0, "until": ROWS}
        query.positions(connection, 3, **options)
        lookups.clear()
        before = rows_read(connection)
        query.positions(connection, 3, **options)
        count = sum(lookups)
        read = rows_read(connection) - before
    assert count <= 2_053 + 25 * 2
    assert read <= 110 * count


def rows_read(connection):
    """Count the rows that a connection has read; SQLite does not tell."""
    if connection.dialect.name == "postgresql":
        return connection.scalar(
            text(
                "SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class WHERE oid = "
                "'orders'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = "
                "'orders'::regclass)"
            )
        )
    if connection.dialect.name == "mariadb":
        query = "SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_next', "
        names = (
            "'Handler_read_prev', 'Handler_read_first', 'Handler_read_last', 'Handler_read_key')"
        )
        return sum(int(row[1]) for row in connection.execute(text(query + names)))
    return 0


@pytest.mark.anyio
async def test_async_connection_is_cut_as_well(engine, async_engine):
    """The same boundaries are found through an async engine."""
    fill(engine, where="n <= 20000")
    query = SplitQuery(NearRows(Source.of(Events(orders, (orders.c.id,), orders.c.part))))
    async with async_engine.connect() as connection:
        found = await connection.run_sync(query.positions, 0, count=8, after=0, until=20_000)
    assert found == split(engine, 8)


GAPS = st.one_of(st.integers(1, 3), st.integers(0, 9).map(lambda digits: 10**digits))


@pytest.fixture(scope="module")
def memory():
    """An SQLite database in memory that all examples share."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(GAPS, st.integers(1, 400), st.integers(1, 3)), min_size=1, max_size=30),
    st.integers(1, 1_000),
    st.randoms(use_true_random=False),
)
def test_joined_pieces_are_the_whole(memory, spread, count, dice):
    """Pieces have every event between two positions once, and none is empty unless all is."""
    ids, last = [], 0
    for gap, number, step in spread:
        ids += range(last + gap, last + gap + number * step, step)
        last = ids[-1]
    shares = dice.random()
    rows = [{"id": each, "part": int(dice.random() < shares)} for each in ids]
    with memory.begin() as connection:
        connection.execute(delete(orders))
        connection.execute(insert(orders), rows)
    after, until = sorted(dice.choices([0, *ids, last + 7, ids[0] - 1], k=2))
    boundaries = split(memory, count, after=after, until=until)
    own = [row["id"] for row in rows if row["part"] == 0 and after < row["id"] <= until]
    pieces = sizes(own, boundaries)
    assert (boundaries[0], boundaries[-1]) == (after, until)
    assert {*boundaries[1:-1]} <= {*own}
    assert sum(pieces) == len(own)
    assert len(pieces) <= count
    assert len(pieces) == 1 or min(pieces) > 0
