"""Reading a table's feed: pages, their checkpoints and stops, over HTTP and on every database."""

import httpx
import pytest
from harness.published import published
from harness.readers import mounted
from harness.shop import metadata, orders, place, write
from sqlalchemy import create_engine, event, insert, text

from zeroeventhub import FIRST, LAST, TableFeed, TypeFilter
from zeroeventhub.errors import BadCursor, Unavailable
from zeroeventhub.publisher import reader

PATIENCE = 10
THREE = {"partition": "part", "partitions": 3}
PLACED = TypeFilter(frozenset({"placed"}))
PAID = TypeFilter(frozenset({"paid"}))


def numbers(page):
    """The numbers of a page's events."""
    return [event.data["n"] for event in page.events]


@pytest.fixture
def shop(publishing):
    """A feed of three partitions on each database, and its engine."""
    make, engine = publishing
    return make(type="kind", **THREE), engine


@pytest.fixture
def feed(any_engine):
    """A feed of one partition over an empty table of orders."""
    return published(any_engine, type="kind")


def test_pages_lead_to_the_head(shop):
    """Pages hold a partition's events in order, each once; the last alone has caught up."""
    feed, engine = shop
    write(engine, 31, partitions=3)
    cursor, seen = FIRST, []
    while not seen or not seen[-1][1]:
        page = feed.read(1, cursor, 4)
        cursor = page.cursor
        seen.append((numbers(page), page.caught_up, page.full))
    assert seen == [
        ([1, 4, 7, 10], False, True),
        ([13, 16, 19, 22], False, True),
        ([25, 28], True, False),
    ]
    assert feed.read(1, cursor, 4).cursor == cursor
    write(engine, 1, first=34)
    assert feed.read(1, cursor, 4).cursor == cursor
    write(engine, 3, first=33, partitions=3)
    assert numbers(feed.read(1, cursor, 4)) == [34]
    pages = feed.read_pages(1, FIRST, 4, 2)
    assert [numbers(page) for page in pages] == [[1, 4, 7, 10], [13, 16, 19, 22]]
    assert feed.read(1, FIRST, 8).cursor == pages[1].cursor


def test_page_that_is_exactly_full_has_caught_up(feed, any_engine):
    """A page that holds all that is left has caught up, even where it has as many as it may."""
    write(any_engine, 6)
    pages = feed.read_pages(0, FIRST, 2, 9)
    assert [(numbers(page), page.caught_up, page.full) for page in pages] == [
        ([0, 1], False, True),
        ([2, 3], False, True),
        ([4, 5], True, False),
    ]
    assert feed.read(0, FIRST, 5).caught_up is False
    assert feed.read(0, FIRST, 6).caught_up is True


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


def test_head_has_a_cursor(shop):
    """The last cursor stands behind all settled events, of an empty feed as well."""
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
    """A partition without news moves its checkpoint once so many positions of others passed."""
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


def test_page_ends_at_its_stop(shop):
    """A page ends with the event at its stop, of any partition, and its checkpoint is the stop."""
    feed, engine = shop
    write(engine, 24, partitions=3)
    known = [feed.cursor_after(position) for position in range(25)]
    for stop in (0, 1, 2, 5, 17, 24):
        for start in (0, 2, 4, 17, 24):
            page = feed.read(1, known[start], 99, stop=known[stop])
            assert numbers(page) == [n for n in range(1, 24, 3) if start <= n < stop]
            assert page.cursor == known[max(start, stop)]
            assert page.stop_reached
            assert page.caught_up is (24 in {start, stop} and stop == 24)
    for types, seen in (PLACED, [1, 4, 7, 10, 13, 16]), (PAID, []):
        page = feed.read(1, FIRST, 99, types=types, stop=known[17])
        assert (numbers(page), page.cursor, page.stop_reached) == (seen, known[17], True)


def test_page_that_is_cut_for_its_bytes_has_not_reached_its_stop(sqlite):
    """Where large events end a page early, it has not caught up, nor reached a stop behind it."""
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


@pytest.fixture
def feed_url(sqlite):
    """The URL of a feed of three partitions over an empty table of orders."""
    metadata.create_all(sqlite)
    headers = {"customer": orders.c.customer, "kind": "kind"}
    feed = TableFeed(orders, data="data", headers=headers, **THREE)
    with mounted(feed, sqlite) as url:
        yield url


def get(url, **parameters):
    """Get a page of FeedAPI v2."""
    parameters = {"token": "3", "partition": 0, "cursor": FIRST, **parameters}
    return httpx.get(f"{url}/events", params=parameters, timeout=PATIENCE)


def test_v1_serves_several_cursors_and_headers(feed_url, sqlite):
    """A v1 request reads several partitions, and is refused if one of its cursors is."""
    write(sqlite, 6, partitions=3)
    parameters = {"n": 3, "cursor0": "_first", "cursor2": "1-3", "headers": "customer,nothing"}
    lines = httpx.get(feed_url, params=parameters).text.splitlines()
    assert lines[:2] == [
        '{"partition":0,"headers":{"customer":"c0"},"data":{"n": 0}}',
        '{"partition":0,"headers":{"customer":"c3"},"data":{"n": 3}}',
    ]
    assert lines[2].startswith('{"partition":0,"cursor":"2-4-')
    assert lines[3] == '{"partition":2,"headers":{"customer":"c5"},"data":{"n": 5}}'
    assert lines[4].startswith('{"partition":2,"cursor":"2-6-')
    everything = httpx.get(feed_url, params={"n": 3, "cursor0": "_first", "headers": "_all"}).text
    assert '"headers":{"customer":"c0","kind":"placed"}' in everything
    for lost, kept in (("cursor0", "cursor1"), ("cursor1", "cursor0")):
        parameters = {"n": 3, lost: "1-99", kept: "_first"}
        assert httpx.get(feed_url, params=parameters).status_code == 410
