"""A feed whose old events are in an archive answers as if all of them were in its table."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from harness.archives import (
    BEGAN,
    EVENTS,
    PARTITIONS,
    assert_same,
    cursors_of,
    every_answer,
    opened,
    place,
    source,
    store_for,
)
from harness.log import Log, connected
from harness.ordering_table import ALL, OBSERVED, OBSERVED_MARIADB, of_any
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.statements import count_of, execute
from harness.trimmed import numbers, position_of, trim
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, event

from zeroeventhub import FIRST, LAST
from zeroeventhub import feed as parts
from zeroeventhub.archive import Archive, segment_writer
from zeroeventhub.archive.objects import Objects
from zeroeventhub.conformance import check_feed
from zeroeventhub.errors import Trimmed, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.publisher import archive_reader, lookups, page_query, splits
from zeroeventhub.settings import Capacity


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make limits so small that a few events reach them."""
    monkeypatch.setattr(segment_writer, "GROUP_EVENTS", 5)
    monkeypatch.setattr(lookups, "MOST", 9)
    monkeypatch.setattr(lookups, "MOST_LOOKED_UP", 9)
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 9)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    events=st.lists(
        st.tuples(
            st.integers(0, PARTITIONS - 1), st.integers(0, 9), st.sampled_from([0, 1, 20, 90])
        ),
        min_size=1,
        max_size=40,
    ),
    deleted=st.sets(st.integers(1, 20)),
    page_bytes=st.sampled_from([1, 50, 200]),
    memory_bytes=st.sampled_from([1, 10**8]),
    segment=st.integers(1, 25),
    sealed=st.integers(1, 45),
    trimmed=st.lists(st.integers(1, 45), min_size=1, max_size=2),
)
def test_every_answer_is_that_of_the_whole_table(
    *, events, deleted, page_bytes, memory_bytes, segment, sealed, trimmed
):
    """Every answer stays the same, whatever is sealed and trimmed, in whatever steps, and however
    small the memory cache is. If positions outlive their events, pages still end in the same
    places, and those without events are not full.
    """
    ordering = "sequenced" if deleted else None
    with TemporaryDirectory() as folder, connected(f"sqlite:///{folder}/test.db") as engine:
        options = {"cache": Path(folder) / "cache", "memory_bytes": memory_bytes}
        archive = Archive(Path(folder) / "archive", **options)
        feed = opened(engine, archive, events[:sealed], page_bytes, ordering=ordering)
        if deleted:
            cursors = [FIRST, *cursors_of(feed)[1:-4:2]]
            execute(engine, delete(orders).where(orders.c.id.in_(deleted)))
        feed.seal(segment_events=segment)
        with engine.begin() as connection:
            place(connection, *events[sealed:])
        if not deleted:
            cursors = cursors_of(feed)

        def answers():
            found = every_answer(feed, cursors)
            # Where events are deleted, only pages are the same: a table knows where those were.
            return {key: one for key, one in found.items() if not deleted or "read" in key[0]}

        before = answers()
        pages = [one for one in before.values() if isinstance(one, Page)]
        assert all(one.events or not one.full for one in pages)
        for below in trimmed:
            trim(feed, below)
            assert_same(answers(), before)


@of_any([OBSERVED, OBSERVED_MARIADB], *ALL)
def test_every_ordering_has_the_same_answers_from_its_archive(request, case, tmp_path):
    """In every ordering of every database, answers stay the same after a trim."""
    engine = request.getfixturevalue(case.database)
    feed = opened(engine, Archive(tmp_path / "archive"), ordering=Log(engine, case).ordering)
    cursors = cursors_of(feed)[::2]
    before = every_answer(feed, cursors)
    assert feed.seal(segment_events=10).events == 36
    trim(feed, 25)
    assert count_of(engine, orders) == 12
    assert_same(every_answer(feed, cursors), before)


@pytest.mark.slow
def test_every_cursor_reads_on_across_the_boundary(sqlite, tmp_path):
    """At each edge of row groups, segments and marks, a reader gets the next event."""
    feed = opened(sqlite, Archive(tmp_path))
    cursors = [feed.cursor_after(position) for position in range(37)]
    feed.seal(segment_events=10)
    for below in (1, 11, 12, 31, 37):
        trim(feed, below)
        for at, partition in product((0, 1, 9, 10, 11, 12, 29, 30, 31, 32, 35, 36), (0, 1, 2)):
            following = [n for n in range(at, 36) if n % PARTITIONS == partition]
            assert numbers(feed, partition, cursors[at], 4) == following, (below, at, partition)
        assert feed.lag(0, cursors[15]).events == 7


def test_searches_end_where_they_would_take_long(sqlite, tmp_path, monkeypatch):
    """A search by id reads the last segments only, and reports earlier events as too far back."""
    feed = opened(sqlite, Archive(tmp_path), id="id")
    found = {str(number): feed.cursor_of(str(number), (number - 1) % 3) for number in range(1, 37)}
    feed.seal(segment_events=3)
    trim(feed, 37)
    assert numbers(feed) == [*range(0, 36, 3)]
    monkeypatch.setattr(archive_reader, "SEGMENTS", 4)
    for number in range(25, 37):
        assert feed.cursor_of(str(number), (number - 1) % 3) == found[str(number)]
    for number in ("24", "1", "99"):
        with pytest.raises(Trimmed, match="too far back"):
            feed.cursor_of(number, 0)
    monkeypatch.setattr(archive_reader, "GROUPS", 0)
    with pytest.raises(Trimmed):
        feed.cursor_of("36", 2)


def test_partition_that_begins_after_many_segments_is_read(sqlite, tmp_path, monkeypatch):
    """A page looks for its events in some segments, and the next page in those after them."""
    events = [(0, 0, 0)] * 60 + [(1, 0, 0), (0, 0, 0)] * 3
    feed = opened(sqlite, Archive(tmp_path, memory_bytes=1), events)
    every = numbers(feed, 1)
    feed.seal(segment_events=3)
    trim(feed, 66)
    monkeypatch.setattr(archive_reader, "SEGMENTS", 4)
    monkeypatch.setattr(parts, "_MOST", 10)
    pages = [feed.read(1, FIRST, 10)]
    while not pages[-1].caught_up:
        pages.append(feed.read(1, pages[-1].cursor, 10))
    assert [event.data["n"] for page in pages for event in page.events] == every == [60, 62, 64]
    assert [position_of(page.cursor) for page in pages[:5]] == [12, 24, 36, 48, 60]
    assert not any(page.full for page in pages)


def test_events_that_another_process_seals_and_trims_are_read_at_once(sqlite, tmp_path):
    """A publisher that has just looked at its archive looks again for events that were trimmed."""
    archive = Archive(tmp_path)
    feed, other = opened(sqlite, archive), source(Archive(tmp_path)).bind(sqlite)
    cursor, every = feed.cursor_after(4), numbers(feed)
    archive.look()
    other.seal()
    trim(other, 30)
    assert numbers(feed) == every
    assert numbers(feed, 0, cursor) == [number for number in every if number > 4]


def test_process_that_just_began_finds_moments_in_its_archive(sqlite, tmp_path):
    """A publisher finds the events of a moment in its archive before it has read anything else."""
    feed = opened(sqlite, Archive(tmp_path))
    moment = BEGAN + timedelta(minutes=10)
    before = [feed.cursor_at(moment, partition) for partition in range(PARTITIONS)]
    feed.seal(segment_events=10)
    trim(feed, 25)
    found = [source(Archive(tmp_path)).bind(sqlite).cursor_at(moment, p) for p in range(PARTITIONS)]
    assert found == before


@pytest.mark.parametrize("stop", [37, 40, 44])
def test_pieces_of_many_segments_end_where_they_have_to(sqlite, tmp_path, monkeypatch, stop):
    """The pieces of a range that ends within a segment hold the events up to its end, each once."""
    monkeypatch.setattr(archive_reader, "SEGMENTS", 2)
    monkeypatch.setattr(splits, "FEW", 5)
    feed = opened(sqlite, Archive(tmp_path), [(0, 0, 0)] * 60)
    feed.seal(segment_events=15)
    trim(feed, 58)
    end = feed.cursor_after(stop)
    cuts = feed.splits(0, 50, stop=end)
    assert [*map(position_of, cuts)] == sorted({*map(position_of, cuts)})
    assert cuts[-1] == end


def test_footers_of_many_segments_are_fetched_several_at_once(sqlite, tmp_path):
    """A process that just began does not ask its database again for each segment of an archive."""
    feed, queries = opened(sqlite, Archive(tmp_path / "archive")), []
    feed.seal(segment_events=1)
    trim(feed, 36)
    feed = source(Archive(tmp_path / "archive")).bind(sqlite)
    event.listen(sqlite, "begin", queries.append)
    assert feed.cursor_of_count(2, FIRST, 12).events == 12
    assert len(queries) < 15


def test_files_of_an_archive_are_named_in_order(sqlite, tmp_path, monkeypatch):
    """An answer names some files, the requested positions in each, and the next cursor."""
    monkeypatch.setattr(archive_reader, "FILES", 2)
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
    """A feed without times finds the position of a moment in its archive as well."""
    feed = opened(sqlite, Archive(tmp_path), EVENTS[:9], ordering="sequenced", time=None)
    moments = [BEGAN]
    for part in (EVENTS[9:20], EVENTS[20:], ()):
        feed.read(0, FIRST, 1)
        time.sleep(0.01)
        moments.append(datetime.now(UTC))
        with sqlite.begin() as connection:
            place(connection, *part)
    before = [feed.cursor_at(moment, 1) for moment in moments]
    assert len(set(before)) == 4
    feed.seal(segment_events=7)
    for below in (5, 15, 30, 37):
        trim(feed, below)
        assert [feed.cursor_at(moment, 1) for moment in moments] == before


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["folder", "s3"])
async def test_async_feed_reads_and_seals(request, any_async_engine, kind):
    """An async feed reads the same pages from an archive, and trims only what is sealed."""
    store = store_for(kind, request)
    feed = source(Archive(store))
    async with any_async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(feed.install)
        await connection.run_sync(place, *EVENTS)
    bound = feed.bind(any_async_engine)
    before = [await bound.read(partition, FIRST, 5) for partition in range(PARTITIONS)]
    sealed = await bound.seal(segment_events=20)
    assert (sealed.segments, sealed.events, sealed.position) == (2, 36, 36)
    async with any_async_engine.begin() as connection:
        await connection.run_sync(place, *EVENTS)
    assert (await bound.plan_trim(sealed=40)).until == 36
    await bound.trim(await bound.plan_trim(below=30))
    for own in (bound, source(Archive(store)).bind(any_async_engine)):
        assert [await own.read(partition, FIRST, 5) for partition in range(PARTITIONS)] == before


@pytest.mark.test_all
def test_feed_with_an_archive_conforms(sqlite, tmp_path):
    """A feed half of which comes from its archive fails no check."""
    archive = Archive(tmp_path, shared=tmp_path.as_uri())
    named = {"id": "id", "headers": {"customer": "customer"}, "key": "customer"}
    events = [(number % PARTITIONS, number, 3) for number in range(200)]
    feed = opened(sqlite, archive, events, cloudevents=True, **named)
    feed.seal(segment_events=70)
    trim(feed, 100)
    published = source(archive, cloudevents=True, **named)
    with mounted(published, sqlite, arrow=True) as url, httpx.Client() as http:
        results = [*check_feed(url, http)]
    failed = {one.name: one.reason for one in results if one.outcome not in {"pass", "skip"}}
    assert failed == {}
    skipped = {one.name for one in results if one.outcome == "skip"}
    assert {one for one in skipped if not one.startswith(("key-history", "schemas"))} == {
        "closed",
        "event-types-unlisted",
        "token-rotation",
    }


class Watched(Objects):
    """Objects that note whether a connection is held while they are read, break off, or hang."""

    def __init__(self, store, engine=None) -> None:
        super().__init__(store)
        self.engine, self.held, self.is_down, self.asked = engine, [], False, 0
        self.answers = threading.Event()
        self.answers.set()

    def read(self, *arguments):
        self._note()
        self.asked += 1
        assert self.answers.wait(60)
        return super().read(*arguments)

    def names(self, *arguments):
        self._note()
        return super().names(*arguments)

    def _note(self):
        if self.engine:
            self.held.append(self.engine.pool.checkedout())
        if self.is_down:
            raise Unavailable("The archive's store did not answer.")


def halved(engine, folder):
    """Put events into a database, and most of them into an archive alone."""
    feed = opened(engine, Archive(folder))
    feed.seal(segment_events=10)
    trim(feed, 30)


def following(url, position):
    """Ask for a page after a position."""
    asked = {"token": PARTITIONS, "partition": 0, "cursor": f"1-{position}", "pagesizehint": 4}
    return httpx.get(f"{url}/events", params=asked)


def test_no_connection_is_held_while_something_is_fetched(any_engine, tmp_path):
    """No connection of the host is held while the store is read."""
    halved(any_engine, tmp_path)
    objects = Watched(tmp_path, any_engine)
    every_answer(source(Archive(objects)).bind(any_engine), [FIRST, "1-7", "1-29", "1-33"])
    assert len(objects.held) > 10
    assert set(objects.held) == {0}


def test_lag_of_the_archive_is_how_long_events_have_waited(sqlite, tmp_path):
    """The lag grows while settled events wait for the sealer, and is 0 once all are sealed."""
    feed = opened(sqlite, Archive(tmp_path))
    first = feed.horizon().archive_lag
    until(lambda: feed.horizon().archive_lag > first + 0.01, "the lag grows")
    feed.seal()
    assert feed.horizon().archive_lag == 0
    with sqlite.begin() as connection:
        place(connection, (0, 0, 0))
    feed.horizon()
    until(lambda: feed.horizon().archive_lag > 0, "a new event waits")
    assert source(None).bind(sqlite).horizon().archive_lag is None


def test_store_that_is_down_keeps_no_reader_from_the_table(sqlite, tmp_path):
    """While the store is down, readers of the table get pages, and readers of the archive 503."""
    halved(sqlite, tmp_path)
    last = source(Archive(tmp_path)).bind(sqlite).read(0, LAST, 1).cursor
    objects = Watched(tmp_path)
    objects.is_down = True
    feed = source(Archive(objects)).bind(sqlite)
    assert feed.read(0, last, 5).events == []
    assert len(feed.read(0, "1-30", 50).events) == 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            feed.read(0, FIRST, 5)
    objects.is_down = False
    assert [event.data["n"] for event in feed.read(0, FIRST, 2).events] == [0, 3]


def test_store_that_hangs_keeps_no_reader_from_the_table(sqlite, tmp_path):
    """While readers wait for the store, a reader of the table gets its page."""
    halved(sqlite, tmp_path)
    objects = Watched(tmp_path)
    objects.answers.clear()
    capacity = Capacity(connections=2, patience=1.0)
    served = mounted(source(Archive(objects)), sqlite, capacity=capacity)
    with served as url, ThreadPoolExecutor(5) as readers:
        late = [readers.submit(following, url, at) for at in range(5)]
        until(lambda: objects.asked >= 2, "two readers ask the store")
        for at in range(30, 36):
            assert following(url, at).status_code == 200
        assert not any(reading.done() and reading.result().status_code == 200 for reading in late)
        objects.answers.set()
        found = {reading.result().status_code for reading in late}
        assert 200 in found <= {200, 503}


@pytest.mark.parametrize("ending", ["json", "parquet", "places"])
def test_damaged_file_of_an_archive_is_answered_with_503(sqlite, tmp_path, caplog, ending):
    """A reader gets a constant text if a file is damaged, and the log names the file."""
    halved(sqlite, tmp_path)
    cursor = source(Archive(tmp_path)).bind(sqlite).cursor_after(8)
    asked = {"token": PARTITIONS, "partition": 0, "cursor": cursor}
    for path in tmp_path.rglob(f"*.{ending}"):
        content = path.read_bytes()
        half = len(content) // 2
        path.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
    with mounted(source(Archive(tmp_path)), sqlite) as url:
        answer = httpx.get(f"{url}/events", params=asked)
    assert answer.status_code == 503
    assert answer.json()["detail"] == "A file of the archive is damaged."
    assert re.search(rf"archive's file \S+\.{ending} is damaged", caplog.text)
