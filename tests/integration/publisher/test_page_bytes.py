"""How much of a table is read for a page: by its bytes, wherever its rows are large."""

import json
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from harness.shop import metadata, orders, place
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, insert

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.capacity import Capacity
from zeroeventhub.lines import SEPARATOR, Lines
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.publisher import portions
from zeroeventhub.publisher.portions import Portions
from zeroeventhub.publisher.rows import Rows

PAGE = 1_000


@pytest.fixture(scope="module")
def memory():
    """An SQLite database in memory that all examples share."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def pages(engine, limit, **options):
    """Read a feed whose pages hold 1,000 bytes to its end."""
    feed = TableFeed(orders, data="data", type="kind").bind(engine, Capacity(page_bytes=PAGE))
    cursor = FIRST
    while True:
        page = feed.read(0, cursor, limit, **options)
        yield [event.raw for event in page.events], page.cursor, page.full, page.caught_up
        if page.caught_up:
            return
        cursor = page.cursor


def expected(rows, limit):
    """The pages of rows: as many as are wanted, or as have room, and always one."""
    while True:
        sums = accumulate(len(row) for row in rows)
        fit = sum(size <= PAGE for size in sums)
        page = rows[: min(limit, max(1, fit))]
        rows = rows[len(page) :]
        yield page
        if not rows:
            return


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.integers(2, 60), st.integers(200, 2_500)), min_size=1, max_size=60),
    st.integers(1, 30),
    st.integers(1, 9),
    st.booleans(),
)
def test_pages_do_not_depend_on_how_they_are_read(memory, sizes, limit, first, filtered):
    """Whatever a feed knows of the size of its rows, a page has the same events, and as many as
    have room.
    """
    rows = [json.dumps("x" * (size - 2)) for size in sizes]
    with memory.begin() as connection:
        connection.execute(delete(orders))
        values = [{"data": json.loads(row), "kind": "placed"} for row in rows]
        connection.execute(insert(orders), values)
    options = {"types": TypeFilter(frozenset({"placed"}), skip=False)} if filtered else {}
    before, portions.FIRST = portions.FIRST, first
    try:
        some = list(pages(memory, limit, **options))
        portions.FIRST = before
        assert some == list(pages(memory, limit, **options))
    finally:
        portions.FIRST = before
    wanted = [[row.encode() for row in page] for page in expected(rows, limit)]
    assert [page for page, *_ in some if page] == wanted
    assert all(full for *_, full, caught_up in some if not caught_up)


def test_usual_page_is_one_statement(engine):
    """Once a feed knows the size of its rows, and that there are many, a page is read at once."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 5_000)
    feed = TableFeed(orders, data="data").bind(engine)
    seen = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if "data" in statement and "LIMIT 1 " not in f"{statement} ":
            seen.append(statement)

    cursor = feed.read(0, FIRST, 1_000).cursor
    first = len(seen)
    assert first <= 6
    for _ in range(3):
        cursor = feed.read(0, cursor, 1_000).cursor
    looks = [statement for statement in seen[first:] if "ORDER BY" in statement]
    assert len(looks) == 3


def test_large_rows_are_read_few_at_a_time():
    """The next rows are a quarter of those that fit, by the largest of the last, or all of them."""

    def read(count, size):
        return Rows(count, None, (), size)

    known = Portions()
    assert known.rows(10_000, 8_000_000) == portions.FIRST
    known.learn(read(portions.FIRST, 1_000_000))
    assert known.rows(10_000, 8_000_000) == 3
    assert known.rows(8, 8_000_000) == 8
    assert known.rows(3, 8_000_000) == 3
    assert known.rows(10_000, 100) == known.rows(10_000, -1_000_000) == 1
    for _ in range(20):
        known.learn(read(known.rows(10_000, 8_000_000), 100))
    assert known.rows(10_000, 8_000_000) == 10_000


def test_many_rows_are_read_about_a_megabyte_at_a_time():
    """A page of many rows is read by several statements, none for much more than a megabyte."""
    known, usual = Portions(), Lines(SEPARATOR.join([b"1" * 300] * 2_000), 2_000)
    for _ in range(4):
        known.learn(Rows(2_000, None, usual, 300))
    assert known.rows(10_000, 8_000_000) == portions.LARGE // 300 + 1


READ = """
import re, sys
from pathlib import Path
from sqlalchemy import create_engine
from harness.shop import orders
from zeroeventhub import FIRST, TableFeed
from zeroeventhub.capacity import Capacity
engine = create_engine(sys.argv[1])
capacity = Capacity(page_bytes=int(sys.argv[2]))
feed = TableFeed(orders, data="data", partition="part", partitions=2).bind(engine, capacity)
feed.read(1, FIRST, 1)
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
cursor, events = FIRST, 0
caught_up = False
while not caught_up:
    page = feed.read(0, cursor, 10_000)
    cursor, events, caught_up = page.cursor, events + len(page.events), page.caught_up
    del page
print(events, (peak() - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
def test_large_rows_do_not_fill_the_memory(engine):
    """Pages of rows of a megabyte take no more than three times the bytes that a page has."""
    metadata.create_all(engine)
    large = [{"data": {"text": "x" * 1_000_000}, "part": 0} for _ in range(10)]
    for _ in range(8):
        with engine.begin() as connection:
            connection.execute(insert(orders), large)
            place(connection, 1)
    bytes_ = 16 * 1024 * 1024
    url = engine.url.render_as_string(hide_password=False)
    found = subprocess.run(
        [sys.executable, "-c", READ, url, str(bytes_)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=100,
    )
    events, peak = map(int, found.stdout.split())
    assert events == 88
    assert peak <= 3 * bytes_, peak / bytes_
