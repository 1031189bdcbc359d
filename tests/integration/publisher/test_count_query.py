"""The cursor so many events behind another one, and how many they are: on every database."""

import pytest
from harness.published import EVERY_ORDERING, TWO, published
from harness.shop import metadata, orders, place
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, insert
from sqlalchemy.pool import StaticPool

from zeroeventhub import FIRST, LAST, CountedCursor, TableFeed
from zeroeventhub.errors import BadCursor, Diverged, Trimmed, Unavailable
from zeroeventhub.publisher import count_query


@pytest.fixture(params=EVERY_ORDERING)
def publishing(request):
    """Make a feed over orders on each database, in each of its orderings; and its engine."""
    database, ordering = request.param
    engine = request.getfixturevalue(database)
    return lambda **options: published(engine, ordering=ordering, **options), engine


@pytest.fixture
def shop(sqlite):
    """A feed over nine orders on SQLite, and its engine."""
    feed = published(sqlite)
    with sqlite.begin() as connection:
        place(connection, 9)
    return feed, sqlite


def between(feed, partition, cursor, stop, limit=4):
    """The numbers of the events that a read up to a stop brings, page by page."""
    numbers = []
    while True:
        page = feed.read(partition, cursor, limit, stop=stop)
        numbers += [event.data["n"] for event in page.events]
        cursor = page.cursor
        if page.stop_reached:
            assert cursor == stop
            return numbers
        assert page.events


def walk(feed, partition, events, expected):
    """Read all that there is between cursors of a count."""
    cursor, numbers = FIRST, []
    while True:
        found = feed.cursor_of_count(partition, cursor, events)
        assert found.events == min(events, len(expected) - len(numbers))
        if not found.events:
            break
        piece = between(feed, partition, cursor, found.cursor)
        assert len(piece) == found.events
        numbers += piece
        cursor = found.cursor
    assert numbers == expected
    # It is that of the head: nothing lies behind it, and nothing gives another one.
    assert found.cursor == cursor == feed.read(partition, FIRST, 100).cursor


@pytest.mark.parametrize("options", [{}, TWO], ids=["one partition", "two"])
def test_walk_by_counts_reads_history_once(publishing, monkeypatch, options):
    """Each read up to the cursor of a count brings as many events as it says, none twice."""
    monkeypatch.setattr(count_query, "AT_ONCE", 3)
    make, engine = publishing
    feed = make(mutable=True, **options)
    partitions = len(feed.info().partitions)
    with engine.begin() as connection:
        place(connection, 24, partitions=partitions)
    numbers = list(range(partitions - 1, 24, partitions))
    for events in (1, 6, 7, 100):
        walk(feed, partitions - 1, events, numbers)
    # What can no longer be read is in no count, even if it still has a position.
    gone = {1, 3, 7, 8, 9, 17, 19}
    with engine.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id.in_([n + 1 for n in gone])))
    for events in (1, 3, 100):
        walk(feed, partitions - 1, events, [n for n in numbers if n not in gone])


def test_count_ends_at_its_stop(publishing):
    """Where fewer events lie before the stop, the cursor is the stop itself, and else before it."""
    make, engine = publishing
    feed = make(**TWO)
    with engine.begin() as connection:
        place(connection, 24, partitions=2)
    places = [feed.read(1, FIRST, count).cursor for count in range(1, 13)]
    other = feed.read(0, FIRST, 7).cursor  # it stands behind 6 events of partition 1
    assert feed.cursor_of_count(1, places[0], 3, stop=other) == CountedCursor(places[3], 3)
    assert feed.cursor_of_count(1, places[0], 6, stop=other) == CountedCursor(other, 5)
    assert feed.cursor_of_count(1, places[0], 5, stop=places[5]) == CountedCursor(places[5], 5)
    assert feed.cursor_of_count(1, places[0], 9, stop=places[5]) == CountedCursor(places[5], 5)
    assert between(feed, 1, places[0], other) == [3, 5, 7, 9, 11]
    five = feed.cursor_of_count(1, places[0], 5, stop=other)
    assert five.events == 5
    assert between(feed, 1, places[0], five.cursor) == [3, 5, 7, 9, 11]


def test_what_is_not_settled_is_not_counted(postgresql):
    """Beside an open writer only the events below its number are counted."""
    feed = published(postgresql, **TWO)
    with postgresql.begin() as connection:
        place(connection, 4, partitions=2)
    before = feed.cursor_of_count(0, FIRST, 100)
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 6, partitions=2)
        assert feed.cursor_of_count(0, FIRST, 100) == before
        slow.commit()
    assert feed.cursor_of_count(0, FIRST, 100).events == before.events + 4


def test_cursor_is_refused_as_that_of_a_read_is(shop):
    """A cursor or stop of no feed, of another history, or below what is left is refused."""
    feed, engine = shop
    cursor, last = feed.read(0, FIRST, 5).cursor, feed.read(0, FIRST, 9).cursor
    for wrong in ("nonsense", LAST):
        with pytest.raises(BadCursor):
            feed.cursor_of_count(0, wrong, 7)
    for wrong in ("nonsense", FIRST, LAST):
        with pytest.raises(BadCursor):
            feed.cursor_of_count(0, FIRST, 7, stop=wrong)
    for start, stop in (("1-99", None), (FIRST, "1-99")):
        with pytest.raises(Diverged):
            feed.cursor_of_count(0, start, 7, stop=stop)
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id < 6))
    with pytest.raises(Trimmed):
        feed.cursor_of_count(0, cursor, 7)
    assert feed.cursor_of_count(0, FIRST, 7) == CountedCursor(last, 4)


def test_table_that_is_emptied_while_it_is_counted_is_not_answered_for(shop):
    """Numbers that start again below the horizon of before are not taken for settled ones."""
    feed, engine = shop

    @event.listens_for(engine, "before_cursor_execute")
    def empty(connection, cursor, statement, *_):
        if "count(*)" in statement:
            # Through the driver, as another process would do it.
            cursor.execute("PRAGMA query_only = 0")
            cursor.execute("DELETE FROM orders")
            cursor.execute("DELETE FROM sqlite_sequence")
            cursor.execute("INSERT INTO orders (part, data) VALUES (0, '{}')")

    with pytest.raises(Unavailable, match="emptied while it was read"):
        feed.cursor_of_count(0, FIRST, 7)


@settings(max_examples=25)
@given(
    ordering=st.sampled_from(["single-writer", "sequenced"]),
    parts=st.lists(st.sampled_from([0, 0, 1]), max_size=20),
    gone=st.sets(st.integers(1, 20)),
    bounds=st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)),
    counts=st.tuples(st.integers(1, 22), st.integers(1, 9)),
)
def test_any_walk_by_counts_is_the_whole(ordering, parts, gone, bounds, counts):
    """Between any two places of any history, reads up to counted cursors leave nothing out, and
    bring as many events as each says.
    """
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    publisher = TableFeed(orders, data="data", ordering=ordering, **TWO)
    with engine.begin() as connection:
        publisher.install(connection)
        rows = [{"id": n, "part": part, "data": {"n": n}} for n, part in enumerate(parts, 1)]
        if rows:
            connection.execute(insert(orders), rows)
    feed = publisher.bind(engine)
    feed.head()
    with engine.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id.in_(gone)))
    wanted, at_once = counts
    start, end = (None if at is None else feed.cursor_after(min(at, len(parts))) for at in bounds)
    for partition in (0, 1):
        whole = feed.read(partition, start, 100, stop=end)
        cursor, numbers = start, []
        while True:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(count_query, "AT_ONCE", at_once)
                found = feed.cursor_of_count(partition, cursor, wanted, stop=end)
            assert found.events == min(wanted, len(whole.events) - len(numbers))
            if not found.events:
                assert found.cursor == cursor
                break
            piece = between(feed, partition, cursor, found.cursor)
            assert len(piece) == found.events
            assert end is None or found.events == wanted or found.cursor == end
            numbers += piece
            cursor = found.cursor
        assert numbers == [event.data["n"] for event in whole.events]
    engine.dispose()
