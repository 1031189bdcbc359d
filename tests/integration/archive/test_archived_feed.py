"""A feed whose old events are in an archive answers as if all of them were in its table."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from harness.archives import Died, dying, positions_in, store_for
from harness.log import Log
from harness.ordering_table import ALL
from harness.shop import metadata, orders
from harness.web import serving
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, TypeFilter, feed_routes
from zeroeventhub.archive import Archive, draft
from zeroeventhub.archive.objects import Objects
from zeroeventhub.capacity import Capacity
from zeroeventhub.conformance import check_feed
from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    Diverged,
    Trimmed,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.layout import Layout
from zeroeventhub.publisher import lag_query, page_query, portions
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.retention import Retention

PARTITIONS = 3
KINDS = ["placed", "Paid", None, "sent", ""]
FILTERS = [
    None,
    TypeFilter(frozenset({"placed"})),
    TypeFilter(frozenset({"paid", "order"})),
    TypeFilter(frozenset({"paid"}), skip=True),
]
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let a few events be many."""
    monkeypatch.setattr(draft, "GROUP_EVENTS", 5)
    monkeypatch.setattr(lag_query, "MOST", 9)
    monkeypatch.setattr(lag_query, "MOST_LOOKED_UP", 9)
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 9)
    monkeypatch.setattr("zeroeventhub.publisher.archived.pages.FILTERED_ROWS", 9)


def source(archive, **options):
    """Return a feed over orders, with all that an event can have."""
    given = {"data": "data", "partition": "part", "partitions": PARTITIONS}
    given |= {"type": "kind", "time": "placed", "retention": Retention(), "archive": archive}
    return TableFeed(orders, **{**given, **options})


def place(connection, *events):
    """Append orders, each with a partition, a number for its type, and a length."""
    rows = [
        {
            "part": part,
            "kind": KINDS[kind % len(KINDS)],
            "customer": f"c{number % 4}",
            "placed": BEGAN + timedelta(minutes=number - kind % 3),
            "data": {"n": number, "text": "é" * length},
        }
        for number, (part, kind, length) in enumerate(events)
    ]
    if rows:
        connection.execute(insert(orders), rows)


@contextmanager
def opened(engine, archive, events, page_bytes=200, **options):
    """Yield a feed of some events, in an empty database."""
    metadata.create_all(engine)
    feed = source(archive, **options)
    with engine.begin() as connection:
        feed.install(connection)
        place(connection, *events)
    yield feed.bind(engine, Capacity(page_bytes=page_bytes))


def trim(feed, below):
    """Trim what is sealed below a position."""
    feed.trim(feed.plan_trim(below=below))


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
            found[cursor] = Place.of(cursor).position
        found[page.cursor] = Place.of(page.cursor).position
    found |= {"1-3": 3, "2-4-0000-0123456789": 4, f"2-5-{'0' * 4}-{'1' * 10}": 5, "1-999": 999}
    in_order = sorted(found, key=found.get)
    return in_order[:: 1 + len(in_order) // 8]


@settings(max_examples=10, deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.integers(0, PARTITIONS - 1), st.integers(0, 9), st.sampled_from([0, 1, 20, 90])
        ),
        min_size=1,
        max_size=40,
    ),
    segment=st.integers(1, 25),
    sealed=st.integers(1, 45),
    trimmed=st.lists(st.integers(1, 45), min_size=1, max_size=3),
)
def test_every_answer_is_that_of_the_whole_table(events, segment, sealed, trimmed):
    """Whatever is sealed and trimmed, in whatever steps, nobody can tell by any answer."""
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/test.db")
        archive = Archive(Path(folder) / "archive", cache=Path(folder) / "cache")
        with opened(engine, archive, events[:sealed]) as feed:
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


@settings(max_examples=10, deadline=None)
@given(
    events=st.lists(
        st.tuples(
            st.integers(0, PARTITIONS - 1), st.integers(0, 9), st.sampled_from([0, 1, 20, 90])
        ),
        min_size=1,
        max_size=20,
    ),
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
        options = {"ordering": "sequenced", "page_bytes": page_bytes}
        with opened(engine, archive, events, **options) as feed:
            cursors = [FIRST, *cursors_of(feed)[1:-4:2]]
            with engine.begin() as connection:
                connection.execute(delete(orders).where(orders.c.id.in_(deleted)))
            before = every_page(feed, cursors)
            assert all(page.events or not page.full for page in before.values())
            feed.seal(segment_events=10)
            trim(feed, trimmed)
            assert_same(every_page(feed, cursors), before)
        engine.dispose()


SEQUENCED = [case for case in ALL if case.ordering == "sequenced"]


@pytest.mark.parametrize("case", SEQUENCED, ids=[case.database for case in SEQUENCED])
@pytest.mark.parametrize("first", [1, 3, 8])
def test_page_ends_at_the_event_that_has_no_room(request, monkeypatch, tmp_path, case, first):
    """On every database deleted events take no room, and those of no type that is asked for."""
    monkeypatch.setattr(portions, "FIRST", first)
    engine = request.getfixturevalue(case.database)
    log = Log(engine, case)
    events = [(0, number, 0) for number in range(12)]
    with opened(engine, Archive(tmp_path), events, 55, ordering=log.ordering) as feed:
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


@pytest.fixture(params=ALL, ids=[f"{case.ordering}-{case.database}" for case in ALL])
def case(request):
    """Each ordering, on its database."""
    return request.param


EVENTS = [(number % PARTITIONS, number, number % 5) for number in range(36)]


def test_every_ordering_has_the_same_pages_from_its_archive(request, case, tmp_path):
    """On every database and in every order pages, cursors and places stay what they were."""
    engine = request.getfixturevalue(case.database)
    log = Log(engine, case)
    archive = Archive(tmp_path / "archive")
    with opened(engine, archive, EVENTS, ordering=log.ordering) as feed:
        cursors = cursors_of(feed)
        before = every_answer(feed, cursors)
        assert feed.seal(segment_events=10).events == 36
        trim(feed, 25)
        with engine.connect() as connection:
            assert connection.scalar(select(func.count()).select_from(orders)) == 12
        assert_same(every_answer(feed, cursors), before)


def test_page_that_ends_with_the_archive_is_as_full_as_it_was(sqlite, tmp_path):
    """A page whose last event is that of the horizon is not full, wherever it is read."""
    with opened(sqlite, Archive(tmp_path), EVENTS) as feed:
        before = [feed.read(2, FIRST, count) for count in range(1, 14)]
        after = before[8].cursor
        cases = [*product((1, 2, 3, 4), FILTERS)]
        ends = [feed.read(2, after, count, types=types) for count, types in cases]
        feed.seal()
        trim(feed, 37)
        assert [feed.read(2, FIRST, count) for count in range(1, 14)] == before
        assert [feed.read(2, after, count, types=types) for count, types in cases] == ends


def test_deleted_events_of_positions_that_outlive_them_are_sealed_as_such(sqlite, tmp_path):
    """An event that was deleted before it was sealed leaves its position, as it does in a table."""
    archive = Archive(tmp_path)
    with opened(sqlite, archive, EVENTS, ordering="sequenced") as feed:
        cursors = cursors_of(feed)
        with sqlite.begin() as connection:
            connection.execute(delete(orders).where(orders.c.id.in_([2, 3, 9, 30])))
        before = {
            (partition, cursor): feed.read(partition, cursor, 50)
            for partition, cursor in product(range(PARTITIONS), cursors[:-4])
        }
        assert feed.seal().events == 32
        trim(feed, 37)
        for (partition, cursor), page in before.items():
            assert feed.read(partition, cursor, 50) == page


def test_times_at_which_positions_were_given_are_kept(sqlite, tmp_path):
    """A feed without times finds the place of a moment in its archive as well."""
    with opened(sqlite, Archive(tmp_path), EVENTS[:9], ordering="sequenced", time=None) as feed:
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
    with opened(sqlite, archive, EVENTS) as feed:
        before = feed.read_pages(1, FIRST, 2, 9)
        feed.seal(segment_events=10)
        trim(feed, 30)
        assert feed.read_pages(1, FIRST, 2, 9) == before


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["memory", "s3"])
async def test_async_feed_reads_and_seals(request, async_engine, kind):
    """Asyncio has the same pages from an archive."""
    store = store_for(kind, request)
    archive = Archive(store)
    feed = source(archive)
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(feed.install)
        await connection.run_sync(lambda own: place(own, *EVENTS))
    bound = feed.bind(async_engine)
    before = [await bound.read(partition, FIRST, 5) for partition in range(PARTITIONS)]
    sealed = await bound.seal(segment_events=20)
    assert (sealed.segments, sealed.events, sealed.position) == (2, 36, 36)
    await bound.trim(await bound.plan_trim(below=30))
    for partition, page in enumerate(before):
        assert await bound.read(partition, FIRST, 5) == page
    other = source(Archive(store)).bind(async_engine)
    assert [await other.read(partition, FIRST, 5) for partition in range(PARTITIONS)] == before


def get(url, **parameters):
    """Ask for a page of FeedAPI v2."""
    given = {"token": PARTITIONS, "partition": 0, "cursor": "1-0", "pagesizehint": 4}
    return httpx.get(f"{url}/events", params=given | parameters)


def test_pages_of_an_archive_are_kept_for_ever_under_the_same_tag(sqlite, tmp_path):
    """Body, tag and headers are those of the table, and who has the page is not sent it again."""
    archive = Archive(tmp_path)
    with opened(sqlite, archive, EVENTS) as feed:
        feed.seal()

        def served():
            app = Starlette(routes=feed_routes("/orders", source(archive), sqlite))
            return serving(app)

        with served() as url:
            before = get(f"{url}/orders")
        trim(feed, 37)
        with served() as url:
            after = get(f"{url}/orders")
            held = httpx.get(after.url, headers={"If-None-Match": before.headers["etag"]})
    assert "immutable" in before.headers["cache-control"]
    for name in ("etag", "cache-control", "content-type"):
        assert after.headers[name] == before.headers[name]
    assert after.content == before.content
    assert (held.status_code, held.content) == (304, b"")


def conforming_source(archive):
    """Return a feed that has everything which the conformance kit can check."""
    return source(
        archive, id="id", headers={"customer": "customer"}, cloudevents=True, key="customer"
    )


@pytest.mark.parametrize("below", [100, 201])
def test_feed_with_an_archive_conforms(sqlite, tmp_path, below):
    """A feed half of which, or all, comes from its archive fails no check."""
    archive = Archive(tmp_path, shared=tmp_path.as_uri())
    metadata.create_all(sqlite)
    feed = conforming_source(archive)
    with sqlite.begin() as connection:
        feed.install(connection)
        place(connection, *[(number % PARTITIONS, number, 3) for number in range(200)])
    bound = feed.bind(sqlite)
    bound.seal(segment_events=70)
    trim(bound, below)
    app = Starlette(routes=feed_routes("/orders", conforming_source(archive), sqlite, arrow=True))
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


def test_no_connection_is_held_while_something_is_fetched(engine, tmp_path):
    """The host's connections wait for no store."""
    objects = Watched(tmp_path, engine)
    archive = Archive(objects)
    with opened(engine, archive, EVENTS) as feed:
        feed.seal(segment_events=10)
        trim(feed, 30)
    objects.held.clear()
    feed = source(Archive(objects)).bind(engine)
    every_answer(feed, [FIRST, "1-7", "1-29", "1-33"])
    assert len(objects.held) > 10
    assert set(objects.held) == {0}


def test_store_that_is_down_keeps_nobody_from_the_table(sqlite, tmp_path):
    """Who reads what is in the table does not notice; others are told to come again."""
    objects = Watched(tmp_path, sqlite)
    with opened(sqlite, Archive(objects), EVENTS) as feed:
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
def test_store_that_hangs_keeps_nobody_from_the_table(sqlite, tmp_path, is_async):
    """However many wait for the store, who reads what is in the table does not."""
    with opened(sqlite, Archive(tmp_path), EVENTS) as feed:
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
        while objects.asked < 2:
            time.sleep(0.01)
        for at in range(30, 36):
            hot = get(f"{url}/f", cursor=f"1-{at}")
            assert hot.status_code == 200
        assert not any(reading.done() and reading.result().status_code == 200 for reading in late)
        objects.answers.set()
        found = {reading.result().status_code for reading in late}
        assert 200 in found <= {200, 503}


def test_what_was_trimmed_without_being_sealed_is_gone(sqlite, tmp_path):
    """Where neither table nor archive has the events, a reader is told, and nothing is sealed."""
    archive = Archive(tmp_path)
    with opened(sqlite, archive, EVENTS) as feed:
        feed.seal(older_than=datetime.now(UTC) - (BEGAN + timedelta(minutes=9)))
        assert 5 < archive.sealed() < 15
        first = feed.read(0, FIRST, 1).cursor
        trim(feed, 5)
        assert feed.read(0, FIRST, 1).cursor == first
        trim(source(None).bind(sqlite), 20)
        for cursor in (first, "1-0"):
            with pytest.raises(Trimmed):
                feed.read(0, cursor, 5)
        earliest = feed.read(0, FIRST, 1)
        assert earliest.events[0].data["n"] == 21
        with pytest.raises(ConfigurationError, match="in neither"):
            feed.seal()
        last = feed.read(0, LAST, 1).cursor
        trim(source(None).bind(sqlite), 37)
        assert feed.read(0, LAST, 1).cursor == last


def test_history_that_is_another_is_not_sealed_behind_the_archive(sqlite, tmp_path):
    """A table that was restored and went on otherwise never gets into the archive of before."""
    archive = Archive(tmp_path)
    with opened(sqlite, archive, EVENTS) as feed:
        feed.seal()
        with sqlite.begin() as connection:
            connection.execute(update(orders).where(orders.c.id == 36).values(data={"other": 1}))
            place(connection, (0, 0, 0))
        with pytest.raises(Diverged):
            feed.seal()
        with sqlite.begin() as connection:
            connection.execute(delete(orders).where(orders.c.id > 30))
            connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = 30")
        with pytest.raises(Diverged):
            source(Archive(tmp_path)).bind(sqlite).seal()
    assert archive.sealed() == 36


def test_sealing_leaves_what_is_young_or_too_little(sqlite, tmp_path):
    """Only what is older is sealed, and only if it is worth a segment."""
    archive = Archive(tmp_path)
    with opened(sqlite, archive, EVENTS) as feed:
        assert feed.seal(least=37).segments == 0
        heard = []
        found = feed.seal(segment_events=10, least=10, told=heard.append)
        assert (found.segments, found.events, found.position) == (3, 30, 30)
        assert heard[-1] >= 30
        assert feed.seal(segment_bytes=1, segment_events=4).segments == 2
        assert feed.seal().segments == 0
        assert feed.seal(older_than=timedelta(0)).position == 36


def test_young_events_of_partitions_to_come_are_not_sealed(sqlite, tmp_path):
    """A position is old when all events up to it are, those that nobody can read yet as well."""
    metadata.create_all(sqlite)
    layout = Layout.of(1).expecting(Layout.of(1).split(0, into=2))
    feed = source(Archive(tmp_path), partitions=layout)
    now = datetime.now(UTC)
    with sqlite.begin() as connection:
        feed.install(connection)
        for part, age in ((0, 3), (1, 0), (0, 2)):
            row = {"part": part, "placed": now - timedelta(hours=age), "data": {}}
            connection.execute(insert(orders), row)
    assert feed.bind(sqlite).seal(older_than=timedelta(hours=1)).position == 1


def test_attributes_are_columns_of_segments(sqlite, tmp_path):
    """A segment has id, type, time and key of each event beside its JSON, and its headers."""
    archive = Archive(tmp_path)
    given = {"headers": {"customer": "customer"}, "cloudevents": True, "id": "id"}
    with opened(sqlite, archive, EVENTS[:4], key="customer", **given) as feed:
        pages = feed.read(0, FIRST, 9)
        feed.seal()
        trim(feed, 5)
        assert feed.read(0, FIRST, 9) == pages
        assert [event.headers for event in pages.events] == [{"customer": "c0"}]
    (segment,) = archive.look().segments
    footer = archive.load_footer(segment)
    group = archive.load_group(segment, footer, footer.groups(2)[0])
    found = [column[0].as_py() for column in group.columns("id", "type", "time", "key")]
    assert found == ["3", "orders", BEGAN, "c2"]


def test_feeds_that_cannot_be_sealed_are_refused(sqlite, tmp_path):
    """What could not be kept is refused when the feed is made, or at the first look."""
    with pytest.raises(ConfigurationError, match="mutable or archive"):
        source(Archive(tmp_path), mutable=True)
    with pytest.raises(ConfigurationError, match="retention"):
        source(Archive(tmp_path), retention=None)
    with pytest.raises(ConfigurationError, match="no archive"):
        source(None).bind(sqlite).seal()
    with opened(sqlite, Archive(tmp_path), EVENTS) as feed:
        feed.seal()
        with pytest.raises(ConfigurationError, match="above zero"):
            feed.seal(least=0)
    for options in ({"data": ["id"]}, {"partitions": 4}, {"ordering": "sequenced"}):
        other = source(Archive(tmp_path), **options)
        with sqlite.begin() as connection:
            other.install(connection)
        with pytest.raises(ConfigurationError, match="belongs to another feed"):
            other.bind(sqlite).seal()


def pages_of(feed):
    """Read all pages of all partitions."""
    return [
        page
        for partition in range(PARTITIONS)
        for cursor in (FIRST, "1-11", "1-23")
        for page in feed.read_pages(partition, cursor, 3, 9)
    ]


@pytest.mark.parametrize("step", range(0, 26, 2))
def test_death_at_any_step_of_sealing_loses_and_repeats_nothing(sqlite, tmp_path, step):
    """Whoever seals may die anywhere: what is trimmed then is in the archive, once, as it was."""
    with opened(sqlite, Archive(tmp_path), EVENTS) as feed:
        before = pages_of(feed)
        dead = source(dying(tmp_path, step)).bind(sqlite)
        with suppress(Died):
            dead.seal(segment_events=9)
        trim(feed, 37)
        assert pages_of(feed) == before
        feed.seal(segment_events=7)
        trim(feed, 37)
        assert pages_of(feed) == before
        assert positions_in(Archive(tmp_path)) == [*range(1, 37)]


def test_feeds_that_seal_and_trim_at_once_keep_everything(postgresql, tmp_path):
    """Four processes seal, trim and read one table, and each page is what it was all the time."""
    with opened(postgresql, Archive(tmp_path), EVENTS) as feed:
        before = pages_of(feed)

        def work(number):
            own = source(Archive(tmp_path)).bind(postgresql, Capacity(page_bytes=200))
            for below in range(number, 40, 4):
                own.seal(segment_events=3)
                with suppress(Unavailable):  # another one deletes the same events just now
                    trim(own, below + 1)
                assert pages_of(own) == before
            return own

        with ThreadPoolExecutor(4) as workers:
            for worker in [workers.submit(work, number) for number in range(4)]:
                worker.result()
        assert positions_in(Archive(tmp_path)) == [*range(1, 37)]
        trim(feed, 37)
        assert pages_of(feed) == before


def erasable(engine, archive):
    """Return a bound feed of thirty-six events with ids and keys, all of them in its archive."""
    metadata.create_all(engine)
    feed = source(archive, id="id", key="customer")
    with engine.begin() as connection:
        feed.install(connection)
        place(connection, *EVENTS)
    bound = feed.bind(engine)
    bound.seal(segment_events=10)
    trim(bound, 37)
    return bound


def numbers(feed, partition=0, cursor=FIRST):
    """Return the numbers of all events behind a cursor."""
    return [event.data["n"] for event in feed.read(partition, cursor, 100).events]


def test_erased_events_are_gone_and_their_cursors_stay(sqlite, tmp_path):
    """Nothing of them is left in any file once the grace time is over, and everybody reads on."""
    archive = Archive(tmp_path / "archive", cache=tmp_path / "cache", erasable=True)
    feed = erasable(sqlite, archive)
    reading = Archive(tmp_path / "archive", cache=tmp_path / "cache", erasable=True)
    other = source(reading, id="id", key="customer").bind(sqlite)
    pages = [feed.read(0, FIRST, count) for count in range(1, 12)]
    assert numbers(other) == numbers(feed) == [*range(0, 36, 3)]
    # The first, the last, and every fourth from the second on.
    assert feed.erase(ids=["1", "36"], keys=["c1"]) == 11
    assert feed.erase(ids=["1", "36"], keys=["c1"]) == 0
    reading.look()  # as it does once a minute
    left = [number for number in range(1, 35) if number % 4 != 1]
    for one in (feed, other):
        for partition in range(PARTITIONS):
            assert numbers(one, partition) == [
                number for number in left if number % PARTITIONS == partition
            ]
        for page in pages:
            assert numbers(one, 0, page.cursor) == [
                number for number in range(3 * len(page.events), 36, 3) if number in left
            ]
        assert one.read(0, LAST, 1).cursor == "1-36"
        assert one.cursor_of("3", 2) == feed.cursor_of("3", 2)
        with pytest.raises(BadCursor):
            one.cursor_of("1", 0)
    assert sum(erasure.events for erasure in archive.manifest.erasures) == 11
    names = {segment.name for segment in archive.manifest.segments}
    assert {file.name.partition(".")[0] for file in (tmp_path / "cache").glob("*/*")} <= names
    assert archive.tidy() == []
    gone = Archive(tmp_path / "archive", grace=timedelta(0))
    assert len(gone.tidy()) == 8
    assert numbers(source(gone, id="id", key="customer").bind(sqlite)) == [
        number for number in left if number % PARTITIONS == 0
    ]
    with sqlite.begin() as connection:
        place(connection, (0, 0, 0))
    assert feed.seal().events == 1


@pytest.mark.parametrize("step", range(22))
def test_death_at_any_step_of_erasing_loses_nothing_else(sqlite, tmp_path, step):
    """Whoever erases may die anywhere: what is to stay stays, and the next one finishes."""
    feed = erasable(sqlite, Archive(tmp_path, erasable=True))
    dead = source(dying(tmp_path, step, erasable=True), id="id", key="customer").bind(sqlite)
    with suppress(Died):
        dead.erase(ids=["5", "17"])
    found = numbers(source(Archive(tmp_path), id="id", key="customer").bind(sqlite), 1)
    assert set(range(1, 36, 3)) - {4, 16} <= set(found)
    feed.erase(ids=["5", "17"])
    assert numbers(feed, 1) == [number for number in range(1, 36, 3) if number not in {4, 16}]
    assert numbers(feed, 0) == [*range(0, 36, 3)]


def test_erasing_beside_sealing_keeps_what_both_did(sqlite, tmp_path):
    """A segment that comes while another is rewritten is not lost, and nothing comes back."""
    feed = erasable(sqlite, Archive(tmp_path, erasable=True))
    with sqlite.begin() as connection:
        place(connection, *EVENTS)

    class Busy(Objects):
        def create(self, path, content):
            if path.startswith("segments"):
                feed.seal(segment_events=5)
            return super().create(path, content)

    eraser = source(Archive(Busy(tmp_path), erasable=True), id="id", key="customer").bind(sqlite)
    assert eraser.erase(ids=["5"]) == 1
    archive = Archive(tmp_path)
    assert archive.sealed() == 72
    assert positions_in(archive) == [*range(1, 73)]
    assert numbers(source(archive, id="id", key="customer").bind(sqlite), 1).count(4) == 1


def test_pages_of_what_may_be_erased_are_not_kept(sqlite, tmp_path):
    """No cache is told that a page never changes, and without that nothing is erased."""
    feed = erasable(sqlite, Archive(tmp_path))
    assert feed.read(0, "1-0", 1).full
    with pytest.raises(ConfigurationError, match="erasable=True"):
        feed.erase(ids=["5"])
    with pytest.raises(ConfigurationError, match="as lists"):
        feed.erase(ids="5")
    said = source(Archive(tmp_path, erasable=True), id="id", key="customer").bind(sqlite)
    assert not said.read(0, "1-0", 1).full
    assert said.erase(ids=["5"]) == 1


def test_event_with_an_empty_id_hides_none_beside_it(sqlite, tmp_path):
    """Events are erased by their ids also where one of their row group has the empty id."""
    metadata.create_all(sqlite)
    feed = source(Archive(tmp_path, erasable=True), id="customer")
    with sqlite.begin() as connection:
        feed.install(connection)
        rows = [{"customer": identity, "data": {}} for identity in ("", "a1", "a2")]
        connection.execute(insert(orders), rows)
    bound = feed.bind(sqlite)
    assert bound.seal().segments == 1
    assert bound.erase(ids=["a2"]) == 1
    assert bound.erase(ids=[""]) == 1


@pytest.mark.parametrize(
    ("options", "named", "complaint"),
    [
        ({"cloudevents": True, "key": "customer"}, {"ids": ["2"]}, "no column of ids.*id=…"),
        ({"id": "id"}, {"keys": ["c1"]}, "no column of keys.*key=…"),
        ({"id": "id"}, {"ids": ["2"], "keys": ["c1"]}, "no column of keys.*key=…"),
    ],
)
def test_events_are_not_erased_by_what_their_feed_does_not_have(
    sqlite, tmp_path, options, named, complaint
):
    """A feed without a column of ids, or of keys, erases nothing by those, and says why."""
    archive = Archive(tmp_path, erasable=True)
    with opened(sqlite, archive, EVENTS, **options) as feed:
        feed.seal()
        with pytest.raises(ConfigurationError, match=complaint):
            feed.erase(**named)
    assert archive.look().erasures == ()
