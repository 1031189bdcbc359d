"""A feed whose table is trimmed: a reader that comes too late gets 410, and no other one does."""

from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from harness.log import connected
from harness.ordering_table import ALL, for_each
from harness.published import published
from harness.shop import metadata, orders
from harness.statements import before_query, execute
from harness.trimmed import NOON, numbers, of_another_event, place_at, position_of, trim, uses

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure, Trimmed
from zeroeventhub.publisher.retention import Retention

PARTITIONS = 3  # of which the last one is quiet but for one event


def source(**options):
    """Return a feed over orders that knows all extensions, and what was trimmed."""
    given = {"data": "data", "partition": "part", "partitions": PARTITIONS}
    given |= {"type": "kind", "time": "placed", "retention": Retention()}
    return TableFeed(orders, **{**given, **options})


def fill(engine):
    """Place twenty orders, of which only that of minute 4 is in the last partition."""
    place_at(engine, range(20), parts={4: 2})


def test_cursor_below_the_mark_is_refused_with_the_earliest(feed):
    """Every request with a cursor below the mark raises Trimmed, with the earliest cursor."""
    below = [feed.cursor_after(position) for position in (1, 4, 8)] + ["1-0", "1-3", "1-8"]
    assert trim(feed, 11) == 10
    last = feed.read(0, LAST, 1).cursor
    for cursor in below:
        for use in (*uses(feed, cursor), partial(feed.vouch, [cursor, last])):
            with pytest.raises(Trimmed) as trimmed:
                use()
            earliest = trimmed.value.earliest
            assert position_of(earliest) == 10
    assert numbers(feed, 0, earliest) == [*range(10, 20, 2)]
    assert numbers(feed, 1, earliest) == [*range(11, 20, 2)]


def test_cursor_at_the_last_trimmed_event_goes_on(any_feed):
    """A cursor at the last trimmed event stays valid; one of another event there is refused."""
    here = any_feed.cursor_after(10)
    trim(any_feed, 11)
    assert numbers(any_feed, 0, here) == [*range(10, 20, 2)]
    assert numbers(any_feed, 1, "1-10") == [*range(11, 20, 2)]
    for use in uses(any_feed, of_another_event(here)):
        with pytest.raises(Diverged):
            use()


def test_cursor_at_the_last_trimmed_event_of_its_partition_goes_on(any_feed):
    """A cursor at its partition's last trimmed event stays valid if the feed can check it."""
    feed = any_feed
    at_4, between, at_9 = (feed.cursor_after(position) for position in (5, 7, 9))
    trim(feed, 11)
    assert numbers(feed, 0, at_9) == [*range(10, 20, 2)]
    page = feed.read(2, at_4, 10)
    assert (page.events, position_of(page.cursor)) == ([], 10)
    assert feed.read(2, page.cursor, 10).cursor == page.cursor
    assert feed.lag(2, at_4).events == 0
    for cursor, partition in ((between, 2), ("1-0", 2), (at_4, 0), (at_4, 1)):
        with pytest.raises(Trimmed):
            feed.read(partition, cursor, 10)
    for cursor, partition in ((at_9, 0), (at_4, 2)):
        with pytest.raises(Diverged):
            feed.read(partition, of_another_event(cursor), 10)
    trim(feed, 15)
    assert feed.read(2, at_4, 10).events == []


def test_what_partitions_have_lost_is_read_once_for_each_mark(shop, feed):
    """What all partitions have lost, which can be long, is read once for each trim."""
    at_4 = feed.cursor_after(5)
    trim(feed, 11)
    assert position_of(feed.read(2, at_4, 10).cursor) == 10
    execute(shop, Retention().table.update().values(partitions="{"))
    assert position_of(feed.read(2, at_4, 10).cursor) == 10


def test_other_division_into_partitions_spares_no_reader(any_shop, any_feed):
    """Marks of partitions do not count after another feed with other partitions has trimmed."""
    feed, whole = any_feed, source(partition=None, partitions=None).bind(any_shop)
    at_4 = feed.cursor_after(5)
    for trimmer, below, reader, partition in (
        (feed, 11, whole, 0),
        (whole, 13, feed, 2),
        (feed, 15, feed, 2),
    ):
        trim(trimmer, below)
        with pytest.raises(Trimmed):
            reader.read(partition, at_4, 10)


def test_partition_that_lost_nothing_takes_every_cursor(any_shop):
    """Cursors of a partition that lost no event stay valid, unless the mark was raised by hand."""
    feed = source(partitions=4).bind(any_shop)
    before, at_15 = feed.cursor_after(3), feed.cursor_after(15)
    trim(feed, 11)
    execute(any_shop, orders.update().where(orders.c.id == 20).values(part=3))
    for cursor in ("1-0", before, FIRST):
        assert numbers(feed, 3, cursor) == [19]
    with pytest.raises(Trimmed):
        feed.read(0, before, 10)
    raised = Retention().table.update().values(trimmed=15, earliest=at_15)
    execute(any_shop, orders.delete().where(orders.c.id <= 15), raised)
    with pytest.raises(Trimmed) as trimmed:
        feed.read(3, before, 10)
    assert trimmed.value.earliest == at_15
    assert numbers(feed, 1, at_15) == [15, 17]


def test_first_begins_at_the_mark(any_shop, any_feed):
    """FIRST starts at the first event that is left, with a cursor that stays valid."""
    trim(any_feed, 11)
    mark = any_feed.cursor_after(0)
    assert position_of(mark) == 10
    assert any_feed.cursor_after(7) == mark
    assert any_feed.cursor_at(NOON) == mark
    assert any_feed.cursor_at(NOON + timedelta(minutes=12)) == any_feed.cursor_after(12)
    assert any_feed.read(2, FIRST, 10).cursor == mark
    assert numbers(any_feed, 0, FIRST, 2) == [*range(10, 20, 2)]
    assert any_feed.splits(0, 2)[0] == any_feed.splits(2, 2)[0] == mark
    assert any_feed.lag(0, FIRST).events == 5
    assert any_feed.cursor_of_count(0, FIRST, 2).cursor == any_feed.cursor_after(13)
    assert any_feed.cursor_of_count(2, FIRST, 2).cursor == mark
    assert any_feed.cursor_of("12", 1) == any_feed.cursor_after(12)
    trim(any_feed, 21)
    last = any_feed.read(0, LAST, 1).cursor
    assert position_of(last) == 20
    assert any_feed.read(1, FIRST, 1).cursor == last
    place_at(any_shop, [20, 21])
    assert numbers(any_feed, 0, last) == [20]
    assert numbers(any_feed, 1) == [21]


def test_mutable_feed_refuses_them_as_well(any_shop):
    """A mutable feed, whose cursors have no digest, refuses those below the mark as well."""
    feed = source(mutable=True).bind(any_shop)
    trim(feed, 11)
    for cursor in ("1-0", "1-8"):
        with pytest.raises(Trimmed) as trimmed:
            feed.read(0, cursor, 10)
        assert trimmed.value.earliest == "1-10"
    assert feed.cursor_after(3) == "1-10"
    assert numbers(feed, 0, "1-10") == numbers(feed) == [*range(10, 20, 2)]
    assert feed.read(2, "1-7", 10).events == []


def test_events_that_were_deleted_one_by_one_are_not_missed(shop, feed):
    """Where `thin` says that events may be missing, cursors stay valid and no page is immutable."""
    cursor, above = feed.cursor_after(13), feed.cursor_after(15)
    early, told = feed.read(0, "1-0", 1).cursor, []
    assert feed.read(0, "1-2", 2).full
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id.in_([3, 13])))
        source().thin(connection, 13)
        source().thin(connection, 3)
    assert numbers(feed, 0, cursor) == [14, 16, 18]
    assert numbers(feed) == [0, 6, 8, 10, 14, 16, 18]
    assert [page.full for page in feed.read_pages(0, "1-1", 1, 3)] == [False] * 3
    assert not any(page.full for page in feed.read_pages(0, early, 1, 3, on_page=told.append))
    assert not told
    assert [feed.read(0, start, 2).full for start in ("1-2", "1-13")] == [False, True]
    assert trim(feed, 11) == 9
    assert numbers(feed, 0, cursor) == [14, 16, 18]
    execute(shop, orders.delete().where(orders.c.id == 15))
    with pytest.raises(Diverged):
        feed.read(0, above, 10)
    with shop.begin() as connection, pytest.raises(ConfigurationError, match="needs a Retention"):
        source(retention=None).thin(connection, 15)


def test_numbers_that_start_again_below_the_mark_are_refused(sqlite):
    """If the table was emptied and its numbers start again, readers get an error."""
    published(sqlite, retention=Retention())
    fill(sqlite)
    feed = source().bind(sqlite)
    mark, at_4 = feed.cursor_after(10), feed.cursor_after(5)
    trim(feed, 11)
    execute(sqlite, orders.delete(), "DELETE FROM sqlite_sequence")
    place_at(sqlite, range(3))
    for cursor in (mark, FIRST):
        with pytest.raises(Diverged):
            feed.read(0, cursor, 10)
    place_at(sqlite, range(4))
    with pytest.raises(FeedFailure, match="start again below 10"):
        feed.read(2, at_4, 10)


def test_feed_without_its_row_is_refused(engine):
    """A feed whose mark has no row is neither read nor trimmed until it is installed."""
    metadata.create_all(engine)
    feed = source().bind(engine)
    with pytest.raises(ConfigurationError, match=r"has no row of feed 'orders\.id'"):
        feed.read(0, FIRST, 10)
    with engine.begin() as connection:
        Retention().create_tables(connection)
        Retention().create_tables(connection)
    for use in (partial(feed.read, 0, FIRST, 10), partial(feed.plan_trim, below=3)):
        with pytest.raises(ConfigurationError, match="has no row"):
            use()
    assert [one.level for one in feed.check() if one.subject == "retention"] == ["error"]
    with engine.begin() as connection:
        source().install(connection)
        source().install(connection)
    assert feed.read(0, FIRST, 10).events == []


@for_each(*ALL)
def test_every_ordering_goes_on_after_the_mark(log, case):
    """With every ordering all events may be trimmed; readers at the end see new ones."""
    feed = log.feed
    log.assert_news(*range(6))
    early = feed.read(0, FIRST, 3).cursor
    assert trim(feed, 3, rows=1) == 2
    assert numbers(feed, 0, early) == [3, 4, 5]
    assert trim(feed, log.cursor) == 4
    assert log.count("SELECT count(*) FROM log") == 0
    assert feed.plan_trim(below=log.cursor).first is None
    with pytest.raises(Trimmed):
        feed.read(0, early, 10)
    log.assert_news(6, 7)
    for one in (feed, log.source(retention=Retention(), id="id").bind(log.engine)):
        assert numbers(one) == [6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2, pytest.param(50, marks=pytest.mark.test_all)])
@pytest.mark.parametrize(
    "start", ["position", "event", pytest.param(FIRST, marks=pytest.mark.test_all)]
)
def test_trimmed_between_any_two_statements(any_engine, start, limit, monkeypatch):
    """If events are trimmed during a read, each page is complete, or the read is refused."""
    monkeypatch.setattr("zeroeventhub.publisher.rows.FIRST", 8 if start == "event" else 2)
    monkeypatch.setattr("zeroeventhub.publisher.rows.GROWTH", 1)
    published(any_engine, retention=Retention())
    first, step, trimmed, was_told = 0, 0, True, set()

    def expect_all(pages):
        seen = [event.data["n"] for page in pages for event in page.events]
        expected = [n for n in range(seen[0], seen[-1] + 1) if n % 2 == 0 and n != 4]
        assert seen == expected, step
        assert start == FIRST or seen[0] == first + 6, step

    with connected(any_engine.url) as own:
        beside = source().bind(own)
        while trimmed:
            place_at(any_engine, range(first, first + 40), parts={4: 2})
            feed = source().bind(any_engine)
            cursors = {"position": f"1-{first + 5}", FIRST: FIRST}
            cursors["event"] = beside.read(0, f"1-{first + 2}", 1 if first == 0 else 2).cursor
            feed.lag(0, cursors["event"])  # a process that has just begun hands nothing over early
            trim_now, told = partial(trim, beside, first + 30, rows=9), []
            with (
                suppress(*([Trimmed] if start != FIRST else [])),
                before_query(any_engine, step, trim_now) as trimmed,
            ):
                expect_all(feed.read_pages(0, cursors[start], limit, 30, on_page=told.append))
            if told:
                expect_all(told)
            was_told.add(bool(told))
            trim(beside, first + 41)
            first, step = first + 40, step + 1
    # Only a row of the cursor's own event shows at once that nothing after it was trimmed.
    assert (True in was_told) == (start == "event" and limit == 2)
    assert step > 3  # a read has some statements, of which trimming came before each
