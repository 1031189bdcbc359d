"""How much of a table is read for a page: by its bytes, wherever its rows are large."""

import json
import re
from itertools import accumulate

import pytest
from harness.published import published
from harness.shop import orders, write
from harness.statements import add, execute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event, insert

from zeroeventhub import FIRST, TableFeed, TypeFilter
from zeroeventhub.settings import Capacity

PAGE = 1_000


def pages(feed, limit, **options):
    """Read a feed to its end."""
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


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.integers(2, 60), st.integers(200, 2_500)), min_size=1, max_size=60),
    st.integers(1, 30),
    st.booleans(),
)
def test_pages_hold_what_has_room(memory, sizes, limit, filtered):
    """A page has as many rows as are wanted, or as have room, and always one."""
    rows = [json.dumps("x" * (size - 2)) for size in sizes]
    with memory.begin() as connection:
        connection.execute(delete(orders))
        values = [{"data": json.loads(row), "kind": "placed"} for row in rows]
        if filtered:
            other = {"data": "of another type", "kind": "paid"}
            values = [row for value in values for row in (value, other)]
        connection.execute(insert(orders), values)
    options = {"types": TypeFilter(frozenset({"placed"}))} if filtered else {}
    feed = TableFeed(orders, data="data", type="kind").bind(memory, Capacity(page_bytes=PAGE))
    wanted = [[row.encode() for row in page] for page in expected(rows, limit)]
    # The second time it knows how large rows are.
    for _ in range(2):
        some = list(pages(feed, limit, **options))
        assert [page for page, *_ in some if page] == wanted
        assert all(full for *_, full, caught_up in some if not caught_up)


def limits(engine):
    """Note for how many rows each statement asks that reads events."""
    found = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, *_):
        if "data" in statement and (asked := re.search(r"LIMIT (\$?)(\d+)", statement)):
            found.append(parameters[int(asked[2]) - 1] if asked[1] else int(asked[2]))

    return found


def test_page_has_no_more_events_than_are_wanted(engine):
    """However many statements read a page, they ask for as many rows as are left to be wanted."""
    feed = published(engine)
    write(engine, 200)
    asked = limits(engine)
    for wanted in (3, 8, 9, 20, 150):
        fresh = TableFeed(orders, data="data").bind(engine)
        for bound in (fresh, feed, fresh):
            bound.head()
            asked.clear()
            page = bound.read(0, FIRST, wanted)
            assert [one.data["n"] for one in page.events] == list(range(wanted))
            assert sum(asked) <= wanted + 1  # and one for the event of its cursor


def test_usual_page_is_one_statement(engine):
    """Once a feed knows the size of its rows, and that there are many, a page is read at once."""
    feed = published(engine)
    write(engine, 5_000)
    asked = limits(engine)
    cursor = feed.read(0, FIRST, 1_000).cursor
    assert len(asked) <= 6
    asked.clear()
    for _ in range(3):
        cursor = feed.read(0, cursor, 1_000).cursor
    assert [number for number in asked if number > 1] == [1_000] * 3


def test_large_rows_are_read_few_at_a_time(sqlite):
    """The rows of a statement fit into a quarter of a page."""
    published(sqlite)
    large, small = "x" * 10_000, "x" * 100
    with sqlite.begin() as connection:
        texts = [large] * 40 + [small] * 4_000
        connection.execute(insert(orders), [{"data": text} for text in texts])
    feed = TableFeed(orders, data="data").bind(sqlite, Capacity(page_bytes=200_000))
    feed.head()
    asked = limits(sqlite)
    cursor = feed.read(0, FIRST, 10_000).cursor
    assert asked[0] <= 8
    assert max(asked) <= 8
    asked.clear()
    while not (page := feed.read(0, cursor, 4_000)).caught_up:
        cursor = page.cursor
    # Small rows are forgotten to have been large by and by.
    assert max(asked) > 100


def test_deleted_events_take_no_room(sqlite):
    """Among positions that have lost their events a page holds as many bytes as among others."""
    feed = published(sqlite, Capacity(page_bytes=PAGE), ordering="sequenced")
    add(sqlite, orders, [{"data": str(n) * 400} for n in range(8)])
    feed.head()
    execute(sqlite, delete(orders).where(orders.c.id.in_([1, 2, 4, 7])))
    found = [[raw.decode()[1] for raw in page] for page, *_ in pages(feed, 9)]
    assert found == [["2", "4"], ["5", "7"]]


@pytest.mark.parametrize("options", [{}, {"mutable": True}, {"ordering": "sequenced"}], ids=str)
def test_event_that_is_longer_than_consumers_take_is_logged_once(sqlite, caplog, options):
    """The publisher's log names the position of the first event whose line ends Go's pages."""
    feed = published(sqlite, **options)
    with sqlite.begin() as connection:
        for size in (2, 70_000, 2, 70_000):
            connection.execute(insert(orders), {"data": {"text": "x" * size}})
    for _ in range(2):
        assert len(feed.read(0, FIRST, 10).events) == 4
    told = [one.getMessage() for one in caplog.records if one.name == "zeroeventhub.publisher"]
    (sentence,) = [one for one in told if "65,535" in one]
    assert sentence.startswith("The event at position 2 has 700")
