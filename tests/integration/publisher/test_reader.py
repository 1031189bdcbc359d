"""Every question that is asked of a feed: pages, stops, cursors, counts, pieces and moments."""

from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, pairwise, product
from random import Random
from time import time

import pytest
from harness.published import TWO, published
from harness.shop import orders, place, write
from harness.statements import execute
from harness.trimmed import numbers, position_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, insert, text
from sqlalchemy.pool import StaticPool

from zeroeventhub import FIRST, LAST, CountedCursor, TableFeed, TypeFilter
from zeroeventhub.errors import BadCursor, ConfigurationError, Diverged, Trimmed, Unavailable
from zeroeventhub.publisher import lookups, page_query, reader

THREE = {"partition": "part", "partitions": 3}


def shown(page):
    """The numbers of a page's events."""
    return [event.data["n"] for event in page.events]


@pytest.fixture
def shop(publishing):
    """A feed of three partitions on each database, and its engine."""
    make, engine = publishing
    return make(type="kind", **THREE), engine


def test_pages_lead_to_the_head(shop):
    """Pages hold a partition's events in order, each once; the last alone has caught up."""
    feed, engine = shop
    write(engine, 31, partitions=3)
    cursor, seen = FIRST, []
    while not seen or not seen[-1][1]:
        page = feed.read(1, cursor, 4)
        cursor = page.cursor
        seen.append((shown(page), page.caught_up, page.full))
    assert seen == [
        ([1, 4, 7, 10], False, True),
        ([13, 16, 19, 22], False, True),
        ([25, 28], True, False),
    ]
    assert feed.read(1, cursor, 4).cursor == cursor
    write(engine, 1, first=34)
    assert feed.read(1, cursor, 4).cursor == cursor
    write(engine, 3, first=33, partitions=3)
    assert shown(feed.read(1, cursor, 4)) == [34]
    pages = feed.read_pages(1, FIRST, 4, 2)
    assert [shown(page) for page in pages] == [[1, 4, 7, 10], [13, 16, 19, 22]]
    assert feed.read(1, FIRST, 8).cursor == pages[1].cursor
    write(engine, 1, first=37, partitions=3)
    # A page that holds all that is left has caught up, even where it has as many as it may.
    exact = [feed.read(1, FIRST, 11), feed.read(1, FIRST, 12), *feed.read_pages(1, FIRST, 6, 9)]
    ends = [(page.caught_up, page.full) for page in exact]
    assert ends == [(False, True), (True, False), (False, True), (True, False)]


def test_cursors_of_each_event_are_those_of_pages(shop):
    """A read of each event's cursor gives those at which pages of one event end."""
    feed, engine = shop
    write(engine, 30, partitions=3)
    page = feed.read(2, FIRST, 9, each=True)
    cursor, found = FIRST, []
    for _ in range(9):
        cursor = feed.read(2, cursor, 1).cursor
        found.append(cursor)
    assert list(page.cursors) == found
    assert page.cursor == found[-1]
    assert len(feed.read(2, FIRST, 9).cursors) == 0


@pytest.mark.parametrize("limit", [0, -1])
def test_page_has_one_event_or_more(shop, limit):
    """A page of no events, or of fewer, is refused: it would seem to be the head, or never end."""
    with pytest.raises(ConfigurationError, match="1 or more"):
        shop[0].read(0, FIRST, limit)


def test_head_has_a_cursor(shop):
    """The last cursor stands after all settled events, of an empty feed as well."""
    feed, engine = shop
    assert (feed.read(0, LAST, 1).cursor, feed.head()) == ("1-0", 0)
    write(engine, 7, partitions=3)
    cursors = {feed.read(partition, LAST, 1).cursor for partition in range(3)}
    (cursor,) = cursors
    assert feed.head() == 7
    assert feed.cursor_after(7) == cursor
    assert [feed.read(partition, cursor, 9).events for partition in range(3)] == [[]] * 3
    for wrong in (-1, 8):
        with pytest.raises(BadCursor, match="0 to 7"):
            feed.cursor_after(wrong)


def test_quiet_partition_moves_on(any_engine, monkeypatch):
    """A partition without news moves its checkpoint once enough positions of the rest passed."""
    monkeypatch.setattr(reader, "QUIET", 5)
    feed = published(any_engine, **THREE)
    write(any_engine, 2, partitions=3)
    here = feed.read(1, FIRST, 9).cursor
    write(any_engine, 4)
    assert feed.read(1, here, 9).cursor == here
    write(any_engine, 1)
    page = feed.read(1, here, 9)
    assert (page.events, page.caught_up) == ([], True)
    assert page.cursor == feed.cursor_after(7)


def test_numbers_that_start_again_under_a_page_are_noticed(postgresql):
    """A table emptied between horizon and page, with numbers that start again, gives no page."""
    published(postgresql)
    write(postgresql, 50)
    reading = create_engine(postgresql.url)
    feed = TableFeed(orders, data="data").bind(reading)
    assert len(feed.read(0, FIRST, 100).events) == 50

    @event.listens_for(reading, "before_cursor_execute")
    def empty(connection, cursor, statement, *_):
        if "ORDER BY orders.id" in statement:
            with postgresql.begin() as writer:
                writer.execute(text("DELETE FROM orders"))
                writer.execute(text("SELECT setval('orders_id_seq', 1, false)"))
                place(writer, 2)

    with pytest.raises(Unavailable, match="emptied while it was read"):
        feed.read(0, FIRST, 100)
    reading.dispose()


def test_page_that_is_cut_for_its_bytes_has_not_reached_its_stop(sqlite):
    """Where large events end a page early, it has not caught up, nor reached a stop after it."""
    feed = published(sqlite)
    with sqlite.begin() as connection:
        large = [{"data": {"n": n, "blob": "x" * 3_000_000}} for n in range(3)]
        connection.execute(insert(orders), large)
    first = feed.read(0, FIRST, 3)
    second = feed.read(0, first.cursor, 3)
    assert (len(first.events), first.caught_up, first.full) == (2, False, True)
    assert (len(second.events), second.caught_up, second.full) == (1, True, False)
    bounded = feed.read(0, FIRST, 3, stop=second.cursor)
    assert (len(bounded.events), bounded.stop_reached) == (2, False)


NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
KNOWN = {"type": "kind", "time": "placed", "id": "customer", "mutable": True}
ONLY_A = TypeFilter(frozenset({"a"}))
FILTERS = [None, ONLY_A, TypeFilter(ONLY_A.names, skip=True)]


def minute(number):
    """A moment after noon."""
    return NOON + timedelta(minutes=number)


def order(number, part, placed, kind="a"):
    """An order that is placed some minutes after noon."""
    when = None if placed is None else minute(placed)
    row = {"part": part, "kind": kind, "customer": f"c{number}", "placed": when}
    return row | {"data": {"n": number}}


def place_orders(engine, *rows):
    """Append orders."""
    execute(engine, *(insert(orders).values(row) for row in rows))


def between(feed, partition, start, stop, *, limit=100, types=None):
    """The numbers of the events that reads up to a stop, or the head, bring page by page."""
    found, cursor = [], start
    while True:
        page = feed.read(partition, cursor, limit, stop=stop, types=types)
        assert len(page.events) <= limit
        found += [event.data["n"] for event in page.events]
        if page.stop_reached or page.caught_up:
            assert not page.stop_reached or page.cursor == stop
            return found
        assert page.cursor != cursor
        cursor = page.cursor


def assert_like_a_list(feed, rows, places, *, outlived=False):
    """Show that a feed answers as if its orders were a list of those that are left.

    The rows have their positions as numbers; the places are those between which to ask. Pieces may
    be empty where positions have outlived their events.
    """
    cursors = {at: feed.cursor_after(at) for at in places}
    partitions = [one.id for one in feed.info().partitions]
    for partition, start, stop in product(partitions, places, (None, *places)):
        here, end = cursors[start], None if stop is None else cursors[stop]
        rest = [one for one in rows if one["part"] == partition and one["data"]["n"] > start]
        own = [one for one in rest if stop is None or one["data"]["n"] <= stop]
        following = [one["data"]["n"] for one in own]
        if stop is None or stop >= start:
            for types, limit in product(FILTERS, (2, 100)):
                wanted = [
                    one["data"]["n"] for one in own if not types or types.lets_through(one["kind"])
                ]
                assert between(feed, partition, here, end, limit=limit, types=types) == wanted
            cuts = feed.splits(partition, 3, start=here, stop=end)
            pieces = [between(feed, partition, *piece) for piece in pairwise(cuts)]
            assert (cuts[0], [*chain(*pieces)]) == (here, following)
            assert outlived or len(pieces) == 1 or all(pieces)
            assert outlived or {*map(position_of, cuts[1:-1])} <= {*following}
            assert end in (None, cuts[-1])
            assert len(pieces) <= 3
        for events in (1, 3, 100):
            found = feed.cursor_of_count(partition, here, events, stop=end)
            assert found.events == min(events, len(own))
            if not found.events:
                assert found.cursor == here
            elif stop is not None and found.events < events:
                assert found.cursor == end
            assert between(feed, partition, here, found.cursor) == following[:events]
        if stop is None:
            lag = feed.lag(partition, here)
            assert (lag.events, lag.exact) == (len(own), True)
            moment = own and own[0]["placed"].timestamp()
            assert lag.seconds == 0 if not own else abs(time() - lag.seconds - moment) < 60
    for partition, moment in product(partitions, range(-1, 32, 4)):
        own = [one for one in rows if one["part"] == partition]
        late = [one["data"]["n"] for one in own if one["placed"] >= minute(moment)]
        found = numbers(feed, partition, feed.cursor_at(minute(moment), partition))
        assert [number for number in found if number in late] == late
        assert found[:1] == late[:1]


def some_orders(dice, count):
    """Make orders whose times do not rise with their positions."""
    return [
        order(number, dice.choice([0, 0, 1]), dice.randrange(30), dice.choice("abb"))
        for number in range(1, count + 1)
    ]


@pytest.mark.slow
def test_every_answer_is_that_of_a_list(publishing, monkeypatch):
    """In every ordering all questions know of the same events, and of none that was deleted."""
    monkeypatch.setattr(lookups, "AT_ONCE", 3)
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 7)
    make, engine = publishing
    feed, rows = make(**KNOWN, **TWO), some_orders(Random(0), 40)
    place_orders(engine, *rows)
    assert feed.head() == 40
    assert_like_a_list(feed, rows, [0, 19])
    gone = {1, 3, 4, 7, 8, 9, 17, 19, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40}
    execute(engine, delete(orders).where(orders.c.id.in_(gone)))
    left = [one for one in rows if one["data"]["n"] not in gone]
    assert_like_a_list(feed, left, [0, 33], outlived=True)
    for one, partition, types in product(rows[::3], [0, 1], FILTERS):
        number = one["data"]["n"]
        asked = partial(feed.cursor_of, one["customer"], partition, types=types)
        is_seen = types is None or types.lets_through(one["kind"])
        if one in left and partition == one["part"] and is_seen:
            assert position_of(asked()) == number
        else:
            with pytest.raises(Trimmed):
                asked()


@pytest.mark.slow
@settings(max_examples=10)
@given(
    ordering=st.sampled_from(["single-writer", "sequenced"]),
    seed=st.integers(0, 999),
    count=st.integers(0, 20),
    gone=st.sets(st.integers(1, 20)),
    places=st.sets(st.integers(0, 20), min_size=1, max_size=2),
    at_once=st.integers(1, 9),
)
def test_any_answer_is_that_of_a_list(*, ordering, seed, count, gone, places, at_once):
    """Whatever was written and deleted, nothing is left out between any two places."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    feed = published(engine, ordering=ordering, **KNOWN, **TWO)
    rows = some_orders(Random(seed), count)
    place_orders(engine, *rows)
    feed.head()
    execute(engine, delete(orders).where(orders.c.id.in_(gone)))
    left = [one for one in rows if one["data"]["n"] not in gone]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookups, "AT_ONCE", at_once)
        patch.setattr(page_query, "FILTERED_ROWS", at_once)
        asked_at = sorted({min(place, count) for place in places})
        assert_like_a_list(feed, left, asked_at, outlived=ordering == "sequenced")
    engine.dispose()


@pytest.mark.parametrize("ordering", ["observed", "gated"])
def test_nothing_that_is_asked_lies_above_the_horizon(postgresql, ordering):
    """Beside an open writer no question leads past what that one may still write."""
    feed = published(postgresql, time="placed", ordering=ordering, id="id")
    place_orders(postgresql, order(1, 0, 0))
    assert numbers(feed) == [1]
    with postgresql.connect() as slow:
        slow.execute(insert(orders), order(2, 0, None))
        place_orders(postgresql, order(3, 0, 10))
        here = feed.cursor_after(1)
        assert feed.cursor_at(minute(10)) == feed.read(0, LAST, 1).cursor == here
        assert feed.cursor_of_count(0, FIRST, 9) == CountedCursor(here, 1)
        assert feed.splits(0, 1)[-1] == feed.splits(0, 9)[-1] == here
        assert feed.lag(0, FIRST).events == 1
        for above in (partial(feed.cursor_after, 2), partial(feed.cursor_of, "3")):
            with pytest.raises(BadCursor):
                above()
        slow.commit()
    last = feed.cursor_after(3)
    assert feed.cursor_at(minute(10)) == feed.cursor_after(2)
    assert numbers(feed, 0, feed.cursor_after(2)) == [3]
    assert feed.cursor_of_count(0, FIRST, 9) == CountedCursor(last, 3)
    assert feed.splits(0, 2)[-1] == feed.cursor_of("3") == last
    assert feed.lag(0, FIRST).events == 3


def test_cursors_are_refused_as_those_of_a_read_are(sqlite):
    """A start or stop that is bad, of another history, or trimmed is refused by every question."""
    feed = published(sqlite)
    write(sqlite, 9)
    cursor = feed.read(0, FIRST, 5).cursor
    assert feed.splits(0, 2, start=cursor, stop=cursor) == [cursor, cursor]

    def refused(error, start):
        for use in (
            *([partial(feed.lag, 0, start)] if start != LAST else []),
            partial(feed.cursor_of_count, 0, start, 7),
            partial(feed.cursor_of_count, 0, FIRST, 7, stop=start),
            partial(feed.splits, 0, 2, start=start),
            partial(feed.splits, 0, 2, stop=start),
        ):
            with pytest.raises(error):
                use()

    refused(BadCursor, "nonsense")
    refused(BadCursor, LAST)
    refused(Diverged, "1-99")
    with pytest.raises(BadCursor):
        feed.cursor_of_count(0, FIRST, 7, stop=FIRST)
    execute(sqlite, orders.delete().where(orders.c.id < 6))
    refused(Trimmed, cursor)
    assert feed.cursor_of_count(0, FIRST, 7).events == feed.lag(0, FIRST).events == 4


def test_table_that_is_emptied_while_it_is_counted_is_not_answered_for(sqlite):
    """Numbers that start again below the horizon of before are not taken for settled ones."""
    feed = published(sqlite)
    place_orders(sqlite, *some_orders(Random(0), 9))

    @event.listens_for(sqlite, "before_cursor_execute")
    def empty(connection, cursor, statement, *_):
        if "count(*)" in statement and "pragma" not in statement:
            cursor.executescript(
                "PRAGMA query_only = 0; DELETE FROM orders; DELETE FROM sqlite_sequence;"
                "INSERT INTO orders (part, data) VALUES (0, '{}')"
            )

    with pytest.raises(Unavailable, match="emptied while it was read"):
        feed.cursor_of_count(0, FIRST, 7)
