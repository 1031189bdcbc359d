"""A feed whose old events are in an archive answers as if all of them were in its table."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from harness.archives import BEGAN, EVENTS, PARTITIONS, opened, place, source, store_for
from harness.log import Log
from harness.ordering_table import (
    ALL,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCING,
    SINGLE_WRITER,
)
from harness.shop import metadata, orders
from harness.trimmed import numbers, of_any, of_each, position_of, trim
from harness.waiting import until
from harness.web import serving
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine, delete, func, select
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TypeFilter, feed_routes
from zeroeventhub.archive import Archive, draft
from zeroeventhub.archive.objects import Objects
from zeroeventhub.capacity import Capacity
from zeroeventhub.conformance import check_feed
from zeroeventhub.errors import Trimmed, Unavailable, ZeroEventHubError
from zeroeventhub.publisher import lag_query, page_query, portions
from zeroeventhub.publisher.archived import files, finding, pages

FILTERS = [
    None,
    TypeFilter(frozenset({"placed"})),
    TypeFilter(frozenset({"paid", "order"})),
    TypeFilter(frozenset({"paid"}), skip=True),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let a few events be many."""
    monkeypatch.setattr(draft, "GROUP_EVENTS", 5)
    monkeypatch.setattr(lag_query, "MOST", 9)
    monkeypatch.setattr(lag_query, "MOST_LOOKED_UP", 9)
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 9)
    monkeypatch.setattr(pages, "FILTERED_ROWS", 9)


def answer(question, *arguments, **options):
    """Return what a feed answers, also if it refuses."""
    try:
        return question(*arguments, **options)
    except ZeroEventHubError as error:
        return type(error), str(error)


def every_answer(feed, cursors):
    """Ask a feed whatever can be asked of it, at every one of some cursors."""
    answers = {}

    def ask(name, *arguments, **options):
        found = answer(getattr(feed, name), *arguments, **options)
        if name == "lag" and not isinstance(found, tuple):
            # When the first of them happened, to the minute.
            first = found.seconds and round((time.time() - found.seconds) / 60)
            found = found.events, found.exact, first
        answers[name, arguments, str(options)] = found

    for partition in range(PARTITIONS):
        for cursor in cursors:
            for types, limit in product(FILTERS, [2, 50]):
                ask("read", partition, cursor, limit, types=types)
            ask("read", partition, cursor, 7, types=FILTERS[-1], each=True)
            ask("read_pages", partition, cursor, 2, 4)
            ask("lag", partition, cursor)
            ask("cursor_of_count", partition, cursor, 4)
            ask("splits", partition, 3, start=cursor)
            ask("vouch", (cursor, cursors[-1]))
            for stop in cursors[1::3]:
                ask("read", partition, cursor, 50, stop=stop)
                ask("splits", partition, 2, start=cursor, stop=stop)
                ask("cursor_of_count", partition, cursor, 100, stop=stop)
        ask("read", partition, LAST, 1)
        for minute in range(-2, 40, 6):
            ask("cursor_at", BEGAN + timedelta(minutes=minute), partition)
            ask("cursor_of", str(minute + 3), partition)
            ask("cursor_of", str(minute + 3), partition, types=FILTERS[1])
            ask("cursor_after", minute + 3)
    return answers


def assert_same(after, before):
    """Show that all answers are what they were."""
    assert [(key, found) for key, found in after.items() if found != before[key]] == []


def cursors_of(feed):
    """Return the cursors behind all events, in order."""
    found = {FIRST: 0}
    for partition in range(PARTITIONS):
        cursor = FIRST
        while not (page := feed.read(partition, cursor, 1)).caught_up:
            cursor = page.cursor
            found[cursor] = position_of(cursor)
        found[page.cursor] = position_of(page.cursor)
    found |= {"1-3": 3, "2-4-0000-0123456789": 4, f"2-5-{'0' * 4}-{'1' * 10}": 5, "1-999": 999}
    in_order = sorted(found, key=found.get)
    return in_order[:: 1 + len(in_order) // 8]


events_of = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 9), st.sampled_from([0, 1, 20, 90])),
    min_size=1,
    max_size=40,
)


@settings(max_examples=4)
@given(
    events=events_of,
    segment=st.integers(1, 25),
    sealed=st.integers(1, 45),
    trimmed=st.lists(st.integers(1, 45), min_size=1, max_size=2),
)
def test_every_answer_is_that_of_the_whole_table(events, segment, sealed, trimmed):
    """Whatever is sealed and trimmed, in whatever steps, no answer tells a reader of it."""
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/test.db")
        archive = Archive(Path(folder) / "archive", cache=Path(folder) / "cache")
        feed = opened(engine, archive, events[:sealed])
        feed.seal(segment_events=segment)
        with engine.begin() as connection:
            place(connection, *events[sealed:])
        cursors = cursors_of(feed)
        before = every_answer(feed, cursors)
        for below in trimmed:
            trim(feed, below)
            assert_same(every_answer(feed, cursors), before)
        engine.dispose()


def every_page(feed, cursors):
    """Read whatever pages there are at every one of some cursors."""
    asked = product(range(PARTITIONS), cursors, FILTERS, [1, 2, 7, 50])
    return {
        (partition, cursor, types, limit): feed.read(
            partition, cursor, limit, types=types, each=True
        )
        for partition, cursor, types, limit in asked
    }


@settings(max_examples=6)
@given(
    events=events_of,
    deleted=st.sets(st.integers(1, 20), min_size=1),
    page_bytes=st.sampled_from([1, 50, 200]),
    trimmed=st.integers(1, 25),
)
def test_pages_with_deleted_events_are_those_of_the_whole_table(
    events, deleted, page_bytes, trimmed
):
    """Wherever positions outlive their events, pages end in the same places in an archive, and
    those that have none are not full.
    """
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/test.db")
        archive = Archive(Path(folder) / "archive")
        feed = opened(engine, archive, events, page_bytes, ordering="sequenced")
        cursors = [FIRST, *cursors_of(feed)[1:-4:2]]
        with engine.begin() as connection:
            connection.execute(delete(orders).where(orders.c.id.in_(deleted)))
        before = every_page(feed, cursors)
        assert all(page.events or not page.full for page in before.values())
        feed.seal(segment_events=10)
        trim(feed, trimmed)
        assert_same(every_page(feed, cursors), before)
        engine.dispose()


@of_each(*SEQUENCING)
@pytest.mark.parametrize(
    "first", [3, *(pytest.param(one, marks=pytest.mark.test_all) for one in (1, 8))]
)
def test_page_ends_at_the_event_that_has_no_room(request, monkeypatch, tmp_path, case, first):
    """On every database deleted events take no room, and those of no type that is asked for."""
    monkeypatch.setattr(portions, "FIRST", first)
    engine = request.getfixturevalue(case.database)
    log = Log(engine, case)
    events = [(0, number, 0) for number in range(12)]
    feed = opened(engine, Archive(tmp_path), events, 55, ordering=log.ordering)
    cursors = cursors_of(feed)
    with engine.begin() as connection:
        connection.execute(delete(orders).where(orders.c.id.in_([1, 2, 3, 5, 8, 12])))
    assert [event.data["n"] for event in feed.read(0, FIRST, 50).events] == [3, 5]
    skipped = feed.read(0, FIRST, 2, types=FILTERS[-1])
    assert [event.data["n"] for event in skipped.events] == [3, 5]
    before = every_page(feed, cursors)
    feed.seal(segment_events=4)
    for below in (3, 6, 13):
        trim(feed, below)
        assert_same(every_page(feed, cursors), before)


@of_any([SINGLE_WRITER, OBSERVED, OBSERVED_MARIADB], *ALL)
def test_every_ordering_has_the_same_answers_from_its_archive(request, case, tmp_path):
    """On every database and in every order pages, cursors and places stay what they were."""
    engine = request.getfixturevalue(case.database)
    feed = opened(engine, Archive(tmp_path / "archive"), ordering=Log(engine, case).ordering)
    cursors = cursors_of(feed)[::2]
    before = every_answer(feed, cursors)
    assert feed.seal(segment_events=10).events == 36
    trim(feed, 25)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(orders)) == 12
    assert_same(every_answer(feed, cursors), before)


def test_every_cursor_reads_on_across_the_boundary(sqlite, tmp_path):
    """At, before and behind the edge of every row group, segment and mark, a reader gets the event
    that follows its cursor, and none twice.
    """
    feed = opened(sqlite, Archive(tmp_path))
    cursors = [feed.cursor_after(position) for position in range(37)]
    feed.seal(segment_events=10)
    for below in (1, 11, 12, 31, 37):
        trim(feed, below)
        for position in (0, 1, 9, 10, 11, 12, 29, 30, 31, 32, 35, 36):
            for partition in range(PARTITIONS):
                behind = [n for n in range(position, 36) if n % PARTITIONS == partition]
                found = numbers(feed, partition, cursors[position], 4)
                assert found == behind, (below, position, partition)
        assert feed.lag(0, cursors[15]).events == 7


def test_searches_end_where_they_would_take_long(sqlite, tmp_path, monkeypatch):
    """Of many segments the feed finds the newest events by their ids, says of others that they are
    too far back, and splits the partition by what the manifest says.
    """
    feed = opened(sqlite, Archive(tmp_path), id="id")
    found = {str(number): feed.cursor_of(str(number), (number - 1) % 3) for number in range(1, 37)}
    feed.seal(segment_events=3)
    trim(feed, 37)
    assert numbers(feed) == [*range(0, 36, 3)]
    monkeypatch.setattr(finding, "SEGMENTS", 4)
    for number in range(25, 37):
        assert feed.cursor_of(str(number), (number - 1) % 3) == found[str(number)]
    for number in ("24", "1", "99"):
        with pytest.raises(Trimmed, match="too far back"):
            feed.cursor_of(number, 0)
    cuts = [*feed.splits(1, 3)]
    positions = [position_of(cut) for cut in cuts]
    assert positions == sorted(set(positions))
    pieces = [
        event.data["n"]
        for start, stop in zip(cuts, [*cuts[1:], None], strict=True)
        for event in feed.read(1, start, 50, stop=stop).events
    ]
    assert pieces == [*range(1, 36, 3)]
    monkeypatch.setattr(finding, "GROUPS", 0)
    with pytest.raises(Trimmed):
        feed.cursor_of("36", 2)


def test_files_of_an_archive_are_named_in_order(sqlite, tmp_path, monkeypatch):
    """A reader is told some files at a time, from its cursor to its stop, with the positions in
    each that it has asked for, and where to ask on.
    """
    monkeypatch.setattr(files, "AT_ONCE", 2)
    feed = opened(sqlite, Archive(tmp_path, shared="https://cdn.example"))
    start, stop = feed.cursor_after(5), feed.cursor_after(27)
    feed.seal(segment_events=10)
    named, cursor = [], start
    while found := feed.segments(0, cursor, stop=stop).parts:
        assert len(found) <= 2
        named += [(part.after, part.upto) for part in found]
        assert all(part.url.startswith("https://cdn.example/segments/") for part in found)
        cursor = found[-1].cursor
        assert position_of(cursor) == named[-1][1]
    assert named == [(5, 10), (10, 20), (20, 27)]
    assert cursor == stop


def test_times_at_which_positions_were_given_are_kept(sqlite, tmp_path):
    """A feed without times finds the place of a moment in its archive as well."""
    feed = opened(sqlite, Archive(tmp_path), EVENTS[:9], ordering="sequenced", time=None)
    moments = [BEGAN, datetime.now(UTC)]
    for part in (EVENTS[9:20], EVENTS[20:]):
        feed.read(0, FIRST, 1)
        time.sleep(0.01)
        moments.append(datetime.now(UTC))
        with sqlite.begin() as connection:
            place(connection, *part)
    feed.read(0, FIRST, 1)
    moments.append(datetime.now(UTC) + timedelta(hours=1))
    before = [feed.cursor_at(moment, 1) for moment in moments]
    assert len(set(before)) >= 4
    feed.seal(segment_events=7)
    for below in (5, 15, 30, 37):
        trim(feed, below)
        assert [feed.cursor_at(moment, 1) for moment in moments] == before


def test_archive_is_read_without_room_to_keep_anything(sqlite, tmp_path):
    """What a question needs is there until it is answered, however little may be kept."""
    archive = Archive(tmp_path, memory_bytes=1)
    feed = opened(sqlite, archive, EVENTS)
    before = feed.read_pages(1, FIRST, 2, 9)
    feed.seal(segment_events=10)
    trim(feed, 30)
    assert feed.read_pages(1, FIRST, 2, 9) == before


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["folder", "s3"])
async def test_async_feed_reads_and_seals(request, any_async_engine, kind):
    """Asyncio has the same pages from an archive."""
    store = store_for(kind, request)
    archive = Archive(store)
    feed = source(archive)
    async with any_async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(feed.install)
        await connection.run_sync(lambda own: place(own, *EVENTS))
    bound = feed.bind(any_async_engine)
    before = [await bound.read(partition, FIRST, 5) for partition in range(PARTITIONS)]
    sealed = await bound.seal(segment_events=20)
    assert (sealed.segments, sealed.events, sealed.position) == (2, 36, 36)
    await bound.trim(await bound.plan_trim(below=30))
    for partition, page in enumerate(before):
        assert await bound.read(partition, FIRST, 5) == page
    other = source(Archive(store)).bind(any_async_engine)
    assert [await other.read(partition, FIRST, 5) for partition in range(PARTITIONS)] == before


def get(url, **parameters):
    """Ask for a page of FeedAPI v2."""
    given = {"token": PARTITIONS, "partition": 0, "cursor": "1-0", "pagesizehint": 4}
    return httpx.get(f"{url}/events", params=given | parameters)


def test_pages_of_an_archive_are_kept_for_ever_under_the_same_tag(sqlite, tmp_path):
    """Body, tag and headers are those of the table, and a reader that has the page is spared it."""
    archive = Archive(tmp_path)
    feed = opened(sqlite, archive, EVENTS)
    feed.seal()

    found = []
    for below in (1, 37):
        trim(feed, below)
        app = Starlette(routes=feed_routes("/orders", source(archive), sqlite))
        with serving(app) as url:
            found.append(get(f"{url}/orders"))
            held = httpx.get(found[-1].url, headers={"If-None-Match": found[0].headers["etag"]})
    before, after = found
    assert "immutable" in before.headers["cache-control"]
    for name in ("etag", "cache-control", "content-type"):
        assert after.headers[name] == before.headers[name]
    assert after.content == before.content
    assert (held.status_code, held.content) == (304, b"")


def test_feed_with_an_archive_conforms(sqlite, tmp_path):
    """A feed half of which comes from its archive fails no check."""
    archive = Archive(tmp_path, shared=tmp_path.as_uri())
    named = {"id": "id", "headers": {"customer": "customer"}, "key": "customer"}
    events = [(number % PARTITIONS, number, 3) for number in range(200)]
    feed = opened(sqlite, archive, events, cloudevents=True, **named)
    feed.seal(segment_events=70)
    trim(feed, 100)
    published = source(archive, cloudevents=True, **named)
    app = Starlette(routes=feed_routes("/orders", published, sqlite, arrow=True))
    with serving(app) as url, httpx.Client() as http:
        results = [*check_feed(f"{url}/orders", http)]
    failed = {one.name: one.reason for one in results if one.outcome not in {"pass", "skip"}}
    assert failed == {}
    skipped = {one.name for one in results if one.outcome == "skip"}
    assert {one for one in skipped if not one.startswith("key-history")} == {
        "closed",
        "token-rotation",
    }


class Watched(Objects):
    """Objects that note whether a connection is held while they are read, or break off."""

    def __init__(self, store, engine) -> None:
        super().__init__(store)
        self.engine, self.held, self.is_down = engine, [], False

    def read(self, path, start=0, length=None):
        self._note()
        return super().read(path, start, length)

    def names(self, folder, behind=""):
        self._note()
        return super().names(folder, behind)

    def _note(self):
        self.held.append(self.engine.pool.checkedout())
        if self.is_down:
            raise Unavailable("The archive's store did not answer.")


def test_no_connection_is_held_while_something_is_fetched(any_engine, tmp_path):
    """No connection of the host waits for the store."""
    objects = Watched(tmp_path, any_engine)
    archive = Archive(objects)
    feed = opened(any_engine, archive, EVENTS)
    feed.seal(segment_events=10)
    trim(feed, 30)
    objects.held.clear()
    feed = source(Archive(objects)).bind(any_engine)
    every_answer(feed, [FIRST, "1-7", "1-29", "1-33"])
    assert len(objects.held) > 10
    assert set(objects.held) == {0}


def test_store_that_is_down_keeps_no_reader_from_the_table(sqlite, tmp_path):
    """A reader of what is in the table does not notice; others are told to come again."""
    objects = Watched(tmp_path, sqlite)
    feed = opened(sqlite, Archive(objects), EVENTS)
    feed.seal(segment_events=10)
    trim(feed, 30)
    last = feed.read(0, LAST, 1).cursor
    objects.is_down = True
    feed = source(Archive(objects)).bind(sqlite)
    assert feed.read(0, last, 5).events == []
    assert len(feed.read(0, "1-30", 50).events) == 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            feed.read(0, FIRST, 5)
    objects.is_down = False
    assert [event.data["n"] for event in feed.read(0, FIRST, 2).events] == [0, 3]


class Hanging(Objects):
    """Objects in a store that answers late."""

    def __init__(self, store):
        super().__init__(store)
        self.answers, self.asked = threading.Event(), 0

    def read(self, *arguments):
        self.asked += 1
        assert self.answers.wait(60)
        return super().read(*arguments)


@pytest.mark.parametrize("is_async", [False, True])
def test_store_that_hangs_keeps_no_reader_from_the_table(sqlite, tmp_path, is_async):
    """However many wait for the store, a reader of what is in the table does not."""
    feed = opened(sqlite, Archive(tmp_path), EVENTS)
    feed.seal(segment_events=10)
    trim(feed, 30)
    objects = Hanging(tmp_path)
    engine = sqlite
    if is_async:
        url = sqlite.url.set(drivername="sqlite+aiosqlite")
        engine = create_async_engine(url, poolclass=NullPool)
    capacity = Capacity(connections=2, patience=1.0)
    routes = feed_routes("/f", source(Archive(objects)), engine, capacity=capacity)
    with serving(Starlette(routes=routes)) as url, ThreadPoolExecutor(5) as readers:
        late = [readers.submit(get, f"{url}/f", cursor=f"1-{at}") for at in range(5)]
        until(lambda: objects.asked >= 2, "two readers ask the store")
        for at in range(30, 36):
            hot = get(f"{url}/f", cursor=f"1-{at}")
            assert hot.status_code == 200
        assert not any(reading.done() and reading.result().status_code == 200 for reading in late)
        objects.answers.set()
        found = {reading.result().status_code for reading in late}
        assert 200 in found <= {200, 503}
