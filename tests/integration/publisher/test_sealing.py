"""Events move from a feed's table into its archive: nothing is lost or repeated on the way, and a
table with another history than its archive is neither sealed nor trimmed.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise, product
from random import Random

import pytest
from harness.archives import (
    BEGAN,
    EVENTS,
    PARTITIONS,
    opened,
    pages_from,
    place,
    positions_in,
    s3_store,
    source,
)
from harness.clocks import Clock
from harness.killed import erase, erasing, move, moving, until_killed
from harness.killed import opened as opened_store
from harness.killed import source as log_source
from harness.log import Log, connected
from harness.ordering_table import ALL, SEQUENCED_SQLITE, SINGLE_WRITER
from harness.published import install
from harness.shop import metadata, orders
from harness.statements import before_query, count_of, execute
from harness.tables import event_table
from harness.trimmed import numbers, trim
from sqlalchemy import CHAR, insert

from zeroeventhub import FIRST, LAST, ArchiveFeed, Compaction, TableFeed, TypeFilter
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure, Trimmed, Unavailable
from zeroeventhub.partitions import Layout
from zeroeventhub.publisher import sealing
from zeroeventhub.publisher.retention import Retention
from zeroeventhub.settings import Capacity


def test_sealing_leaves_what_is_young_or_too_little(sqlite, tmp_path):
    """Only old events are sealed, and only if they fill a segment; `on_progress` counts them."""
    archive = Archive(tmp_path)
    feed = opened(sqlite, archive)
    assert feed.seal(least=37).segments == 0
    heard = []
    found = feed.seal(segment_events=10, least=10, on_progress=heard.append)
    assert (found.segments, found.events, found.position) == (3, 30, 30)
    assert found.size == sum(segment.size for segment in archive.manifest.segments)
    assert heard == [10, 20, 30, 36]
    assert feed.seal(segment_bytes=1, segment_events=4).segments == 2
    assert feed.seal().segments == 0
    assert feed.seal(older_than=timedelta(0)).position == 36


def test_time_of_an_event_that_was_trimmed_holds_nothing_back(sqlite, tmp_path):
    """An event of a future time in the archive keeps no later one from being trimmed or sealed."""
    feed = opened(sqlite, Archive(tmp_path))
    future = datetime.now(UTC) + timedelta(days=9)
    execute(sqlite, orders.update().where(orders.c.id == 5).values(placed=future))
    assert feed.plan_trim(older_than=timedelta(days=1)).events == 0
    feed.seal()
    trim(feed, 8)
    assert len(numbers(feed)) == len(EVENTS) // PARTITIONS  # it has read from the archive
    with sqlite.begin() as connection:
        place(connection, (0, 1, 2))
    assert feed.seal(older_than=timedelta(days=1)).events == 1
    assert feed.plan_trim(older_than=timedelta(days=1)).events == 30


def test_segment_is_closed_once_it_has_its_bytes(sqlite, tmp_path, monkeypatch):
    """A segment takes no more rows after the statement that brings it to its bytes, or the next."""
    monkeypatch.setattr(sealing, "AT_ONCE", 4)
    found = opened(sqlite, Archive(tmp_path)).seal(segment_bytes=1)
    assert (found.events, 4 < found.segments <= 9) == (36, True)


def test_statement_reads_no_more_large_events_than_a_segment_holds(sqlite, tmp_path):
    """Large events are read a few at once, so that segments have about the bytes that they may."""
    archive = Archive(tmp_path)
    feed = opened(sqlite, archive, ())
    with sqlite.begin() as connection:
        connection.execute(insert(orders), [{"part": 0, "data": "x" * 20_000}] * 500)
    found = feed.seal(segment_bytes=128 * 1024)
    assert (found.events, found.segments > 2) == (500, True)
    # Those that are read before their sizes are known, and some more.
    assert max(segment.events for segment in archive.manifest.segments) < 40


def test_statement_reads_few_events_after_small_ones(sqlite, tmp_path):
    """Events that are much larger than those before them come by the thousand, not all at once."""
    feed, heard = opened(sqlite, Archive(tmp_path), ()), [0]
    with sqlite.begin() as connection:
        connection.execute(insert(orders), [{"part": 0, "data": "x"}] * 5_000)
    assert feed.seal(on_progress=heard.append).events == heard[-1] == 5_000
    assert max(after - before for before, after in pairwise(heard)) <= 2_000


def test_full_segment_is_written_whatever_the_least(sqlite, tmp_path, monkeypatch):
    """Events that fill a segment are sealed, though `least` asks for more; the rest waits."""
    monkeypatch.setattr(sealing, "AT_ONCE", 4)
    feed = opened(sqlite, Archive(tmp_path))
    assert feed.seal(segment_events=10, least=20).events == 30
    monkeypatch.setattr(sealing, "AT_ONCE", 2)
    assert feed.seal(segment_bytes=1, least=20).events == 6


def test_young_events_of_partitions_to_come_are_not_sealed(sqlite, tmp_path):
    """`older_than` also considers events of partitions that readers cannot read yet."""
    layout = Layout.of(1).expecting(Layout.of(1).split(0, into=2))
    feed = opened(sqlite, Archive(tmp_path), (), partitions=layout)
    with sqlite.begin() as connection:
        for part, age in ((0, 3), (1, 0), (0, 2)):
            placed = datetime.now(UTC) - timedelta(hours=age)
            connection.execute(insert(orders), {"part": part, "placed": placed, "data": {}})
    assert feed.seal(older_than=timedelta(hours=1)).position == 1


def test_attributes_are_columns_of_segments(engine, tmp_path):
    """A segment has columns for id, type, time, key and headers beside the JSON."""
    archive = Archive(tmp_path)
    given = {"headers": {"customer": "customer"}, "cloudevents": True, "id": "id"}
    feed = opened(engine, archive, EVENTS[:4], key="customer", **given)
    page = feed.read(0, FIRST, 9)
    feed.seal()
    trim(feed, 5)
    assert feed.read(0, FIRST, 9) == page
    assert [event.headers for event in page.events] == [{"customer": "c0"}]
    (segment,) = archive.look().segments
    footer = archive.load(segment, "footer")
    group = archive.load(segment, footer.groups[2][0])
    found = [column[0].as_py() for column in group.columns("id", "type", "time", "key")]
    assert found == ["3", "orders", BEGAN, "c2"]


def test_types_that_the_database_fills_with_spaces_are_found_after_a_trim(engine, tmp_path):
    """Events whose type is in a column of CHAR are chosen from an archive as from their table."""
    table = event_table("letters", kind=CHAR(8))
    options = {"retention": Retention(), "archive": Archive(tmp_path)}
    feed = TableFeed(table, data=["id"], type="kind", **options)
    table.create(engine)
    install(feed, engine)
    execute(engine, insert(table).values([{"kind": kind} for kind in ("sent", "lost", "sent")]))
    bound = feed.bind(engine)
    assert bound.seal().events == 3
    assert trim(bound, 3) == 2
    found = bound.read(0, FIRST, 9, types=TypeFilter({"sent"}))
    assert [event.data["id"] for event in found.events] == [1, 3]


def test_feeds_that_cannot_be_sealed_are_refused(sqlite, tmp_path):
    """Sealing refuses a feed without an archive, invalid sizes and times, and a foreign archive."""
    with pytest.raises(ConfigurationError, match="no archive"):
        source(None).bind(sqlite).seal()
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal()
    for name, number in product(("least", "segment_events", "segment_bytes"), (0, math.nan)):
        with pytest.raises(ConfigurationError, match=f"{name} has to be above zero"):
            feed.seal(**{name: number})
    with pytest.raises(ConfigurationError, match="years 1 to 9999"):
        feed.seal(older_than=timedelta.max)
    with pytest.raises(ConfigurationError, match="years 1 to 9999"):
        Archive(tmp_path, grace=timedelta.max)
    for options in ({"data": ["id"]}, {"partitions": 4}, {"ordering": "sequenced"}):
        other = source(Archive(tmp_path), **options)
        install(other, sqlite)
        for use in (other.bind(sqlite).seal, partial(other.bind(sqlite).plan_trim, below=7)):
            with pytest.raises(ConfigurationError, match="belongs to another feed"):
                use()


def test_archive_whose_folder_is_gone_is_not_trimmed_or_sealed_into(sqlite, tmp_path):
    """While the folder is not mounted, nothing is deleted from the table, and nothing put there."""
    folder, elsewhere = tmp_path / "archive", tmp_path / "elsewhere"
    feed = opened(sqlite, Archive(folder))
    feed.seal()
    trim(feed, 5)
    folder.rename(elsewhere)
    for use in (partial(feed.plan_trim, below=20), feed.seal):
        with pytest.raises(Unavailable, match="not mounted"):
            use()
    assert not folder.exists()
    elsewhere.rename(folder)
    assert trim(feed, 20) == 15


def test_process_that_begins_without_the_archives_folder_is_refused(sqlite, tmp_path):
    """Events that only the archive has are not passed over because its folder is not mounted."""
    folder, elsewhere = tmp_path / "archive", tmp_path / "elsewhere"
    feed = opened(sqlite, Archive(folder))
    late, before = feed.read(0, FIRST, 1).cursor, numbers(feed)
    feed.seal()
    trim(feed, 20)
    folder.rename(elsewhere)
    again = source(Archive(folder)).bind(sqlite)
    for use in (partial(again.read, 0, FIRST, 9), partial(again.read, 0, late, 9), again.seal):
        with pytest.raises(ConfigurationError, match="not mounted"):
            use()
    elsewhere.rename(folder)
    assert numbers(source(Archive(folder)).bind(sqlite)) == before


def pages_of(feed):
    """Read all pages of all partitions."""
    return [
        page
        for partition in range(PARTITIONS)
        for cursor in (FIRST, "1-11", "1-23")
        for page in pages_from(feed, partition, cursor, 3, 9)
    ]


def test_feeds_that_seal_and_trim_at_once_keep_everything(postgresql, tmp_path):
    """Pages stay the same while workers seal, trim and read one table."""
    feed = opened(postgresql, Archive(tmp_path))
    before = pages_of(feed)

    def work(number):
        own = source(Archive(tmp_path)).bind(postgresql, Capacity(page_bytes=200))
        for below in range(number, 40, 12):
            own.seal(segment_events=3)
            with suppress(Unavailable):  # another one deletes the same events just now
                trim(own, below + 1)
            assert pages_of(own) == before

    with ThreadPoolExecutor(4) as workers:
        for worker in [workers.submit(work, 4 * number) for number in range(4)]:
            worker.result(60)
    assert positions_in(Archive(tmp_path)) == [*range(1, 37)]
    trim(feed, 37)
    assert pages_of(feed) == before


def test_what_was_trimmed_without_being_sealed_is_gone(sqlite, tmp_path):
    """If neither table nor archive has an event, readers get 410, and sealing is refused."""
    archive = Archive(tmp_path)
    feed = opened(sqlite, archive)
    feed.seal(older_than=datetime.now(UTC) - (BEGAN + timedelta(minutes=9)))
    assert 5 < archive.sealed() < 15
    first = feed.read(0, FIRST, 1).cursor
    trim(feed, 5)
    assert feed.read(0, FIRST, 1).cursor == first
    trim(source(None).bind(sqlite), 20)
    for cursor in (first, "1-0"):
        with pytest.raises(Trimmed):
            feed.read(0, cursor, 5)
    assert feed.read(0, FIRST, 1).events[0].data["n"] == 21
    with pytest.raises(ConfigurationError, match="in neither"):
        feed.seal()
    last = feed.read(0, LAST, 1).cursor
    trim(source(None).bind(sqlite), 37)
    assert feed.read(0, LAST, 1).cursor == last


@pytest.mark.slow
def test_events_that_are_trimmed_while_they_are_sealed_leave_no_gap(tmp_path):
    """If another feed trims the table during sealing, the archive gets no gap."""
    step, struck = 0, True
    while struck:
        folder = tmp_path / str(step)
        url = f"sqlite:///{folder}.db"
        with connected(url) as engine, connected(url) as beside:
            feed = opened(engine, Archive(folder))
            feed.info()
            trimming = partial(trim, source(None).bind(beside), 16)
            with before_query(engine, step, trimming) as struck, suppress(ConfigurationError):
                feed.seal(segment_events=10)
        found = positions_in(Archive(folder))
        assert found == [*range(1, len(found) + 1)], step
        step += 1
    assert step > 10


@pytest.mark.slow
def test_sealer_is_overtaken_by_another_that_trims(tmp_path):
    """If another process seals and trims the table during sealing, both succeed."""
    step, struck = 0, True
    while struck:
        folder = tmp_path / str(step)
        url = f"sqlite:///{folder}.db"
        with connected(url) as engine, connected(url) as beside:
            feed, other = opened(engine, Archive(folder)), source(Archive(folder)).bind(beside)
            feed.info()

            def overtake(other=other):
                other.seal()
                trim(other, 16)

            with before_query(engine, step, overtake) as struck:
                assert feed.seal(segment_events=10).position == 36
        assert positions_in(Archive(folder)) == [*range(1, 37)], step
        step += 1
    assert step > 10


class Reading:
    """Read a partition from its start, with the archive of a process that lives on."""

    def __init__(self, feed, partition):
        self.feed, self.partition = feed, partition
        self.cursor, self.seen = FIRST, []

    def read(self, limit):
        """Read a page, unless files are just gone; return whether there may be more."""
        try:
            page = self.feed.read(self.partition, self.cursor, limit)
        except Unavailable:
            return True
        self.cursor = page.cursor
        self.seen += [event.data["n"] for event in page.events]
        return not page.caught_up

    def read_on(self):
        """Read to the end."""
        while self.read(9):
            pass


def jumping(engine, folder, clock, dice):
    """Write, seal, trim, restore, tidy and read while the clock jumps."""
    install(source(Archive(folder)), engine)
    archives = [Archive(folder, grace=timedelta(hours=1)) for _ in range(3)]
    feeds = [source(archive).bind(engine, Capacity(page_bytes=200)) for archive in archives]
    readings = [Reading(feed, part) for feed in feeds for part in range(PARTITIONS)]
    written = {part: [] for part in range(PARTITIONS)}
    for number in range(120):
        clock.ahead = timedelta(hours=dice.randint(-50, 50))
        age = timedelta(hours=dice.randint(0, 20))
        archive, feed = dice.choice([*zip(archives, feeds, strict=True)])
        match dice.choice(["write", "write", "seal", "seal", "trim", "restore", "tidy", "read"]):
            case "write":
                part = dice.randrange(PARTITIONS)
                row = {"part": part, "data": {"n": number}, "placed": clock.now(UTC)}
                execute(engine, insert(orders).values(row))
                written[part].append(number)
            case "seal":
                feed.seal(older_than=dice.choice([None, age]), segment_events=dice.randint(1, 9))
            case "trim":
                feed.trim(feed.plan_trim(older_than=age))
            case "restore":
                with suppress(ConfigurationError):  # there is nothing to restore
                    feed.restore(newer_than=age - clock.ahead)
            case "tidy":
                archive.tidy()
            case "read":
                dice.choice(readings).read(dice.randint(1, 9))
    for reading in readings:
        reading.read_on()
        assert reading.seen == written[reading.partition]


@pytest.mark.parametrize(
    ("first", "rounds"), [(0, 1), pytest.param(100, 100, marks=pytest.mark.test_all)]
)
def test_clocks_that_jump_lose_and_repeat_nothing(monkeypatch, tmp_path, first, rounds):
    """Readers get each event once and in order; at worst an error says to try again."""
    for seed in range(first, first + rounds):
        folder = tmp_path / str(seed)
        with monkeypatch.context() as patch, connected(f"sqlite:///{folder}.db") as engine:
            metadata.create_all(engine)
            jumping(engine, folder, Clock(folder, patch), Random(seed))


@pytest.fixture
def log(sqlite, tmp_path):
    """A log in one file, and a feed that has sealed its first eight events."""
    found = Log(sqlite, SINGLE_WRITER)
    found.publish(retention=Retention(), archive=Archive(tmp_path))
    found.write(*range(8))
    found.feed.seal()
    return found


AFRESH = ("DELETE FROM log WHERE id > 4", "UPDATE sqlite_sequence SET seq = 4")
UNTRIMMED = "UPDATE zeroeventhub_retention SET trimmed = 0, earliest = '1-0'"
AGAIN = [f"INSERT INTO log (id, n) VALUES ({number + 1}, {number})" for number in range(4)]


@pytest.mark.parametrize(
    ("trimmed", "changes", "numbers_left"),
    [
        (False, ["UPDATE log SET n = 99 WHERE id = 8"], [*range(7), 99, *range(100, 108)]),
        (False, AFRESH, [*range(4), *range(100, 108)]),
        (True, ["DELETE FROM log", UNTRIMMED, *AGAIN, AFRESH[1]], [*range(4), *range(100, 108)]),
    ],
    ids=["changed", "restored", "restored after the mark"],
)
def test_history_that_is_another_is_neither_sealed_nor_trimmed(
    log, tmp_path, trimmed, changes, numbers_left
):
    """A table with another history than its archive is neither sealed nor trimmed, and readers get
    its own events: also from a process that had read those of the archive.
    """
    log.write(8)
    if trimmed:
        log.feed.trim(log.feed.plan_trim(sealed=8))
    assert numbers(log.feed) == [*range(9)]
    log.run("DELETE FROM log WHERE id = 9", *changes)
    log.write(*range(100, 108))
    archive = Archive(tmp_path)
    restarted = log.source(retention=Retention(), archive=archive).bind(log.engine)
    for feed in (log.feed, restarted):
        for use in (feed.seal, partial(feed.plan_trim, below=7)):
            with pytest.raises(Diverged):
                use()
    assert archive.sealed() == 8
    assert numbers(log.feed) == numbers(restarted) == numbers_left


def test_history_that_is_another_is_not_compacted(sqlite, tmp_path):
    """A table with another history than its archive is not compacted: without the event at the
    archive's end, sealing could not tell that, and would mix both histories.
    """
    options = {"key": "customer", "compaction": Compaction()}
    feed = opened(sqlite, Archive(tmp_path), **options)
    feed.seal()
    execute(sqlite, "DELETE FROM orders WHERE id > 20")
    execute(sqlite, "UPDATE sqlite_sequence SET seq = 20 WHERE name = 'orders'")
    with sqlite.begin() as connection:
        place(connection, *EVENTS[1:31])
    for use in (feed.compact, feed.seal):
        with pytest.raises(Diverged):
            use()
    assert count_of(sqlite, orders) == 50


@pytest.mark.slow
def test_table_that_fails_over_while_it_is_sealed_mixes_no_histories(tmp_path, monkeypatch):
    """If the table gets another history during sealing, the archive has events of one alone."""
    monkeypatch.setattr(sealing, "AT_ONCE", 4)
    step, struck = 0, True
    while struck:
        folder = tmp_path / str(step)
        url = f"sqlite:///{folder}.db"
        with connected(url) as engine, connected(url) as beside:
            log, primary = Log(engine, SINGLE_WRITER), Log(beside, SINGLE_WRITER)
            log.publish(retention=Retention(), archive=Archive(folder))
            log.write(*range(16))

            def fail_over(primary=primary):
                primary.run("DELETE FROM log WHERE id > 2", "UPDATE sqlite_sequence SET seq = 2")
                primary.write(*range(100, 116))

            with before_query(engine, step, fail_over) as struck, suppress(Diverged):
                log.feed.seal(segment_events=6)
        found = Archive(folder)
        sealed = numbers(ArchiveFeed(found)) if found.sealed() else []
        assert sealed in ([*range(len(sealed))], [0, 1, *range(100, 98 + len(sealed))]), step
        step += 1
    assert step > 10


def test_plan_from_before_a_failover_deletes_nothing(log):
    """Events that got the positions of planned ones after a failover are not trimmed."""
    plan = log.feed.plan_trim(sealed=8)
    log.run(*AFRESH)
    log.write(*range(100, 108))
    with pytest.raises(Diverged):
        log.feed.trim(plan)
    assert numbers(log.feed) == [*range(4), *range(100, 108)]


def test_thinned_events_stay_known_beside_an_archive(log):
    """With an archive too, cursors at thinned events stay valid and no page is immutable."""
    log.write(*range(8, 14))
    third = log.feed.cursor_after(11)
    assert log.feed.read(0, "1-8", 2).full
    log.run("DELETE FROM log WHERE id = 11")
    with log.engine.begin() as connection:
        log.source(retention=Retention()).thin(connection, until=11)
    assert numbers(log.feed, cursor=third) == [11, 12, 13]
    assert not log.feed.read(0, "1-8", 2).full


def test_numbers_that_begin_again_are_noticed_beside_an_archive(log, tmp_path):
    """If numbers start again, new events are neither hidden by archived ones nor sealed."""
    log.write(8)
    log.feed.trim(log.feed.plan_trim(sealed=8))
    assert numbers(log.feed) == [*range(9)]
    log.run("DELETE FROM log", "DELETE FROM sqlite_sequence")
    log.write(*range(200, 205))
    restarted = log.source(retention=Retention(), archive=Archive(tmp_path)).bind(log.engine)
    for one, ask in product((log.feed, restarted), (numbers, lambda feed: feed.seal())):
        with pytest.raises((FeedFailure, Diverged)):
            ask(one)
    log.write(*range(205, 215))
    with pytest.raises(FeedFailure, match="start again below 8"):
        log.feed.seal()


def killed_with(case, kind, stride):
    """Return the parameters of a test that kills at every `stride`-th point."""
    marks = () if stride > 50 else pytest.mark.test_all
    name = f"{case.ordering}-{case.database}-{kind}-{stride}"
    return pytest.param((case, kind, stride), marks=marks, id=name)


@pytest.fixture
def killing(request, tmp_path):
    """A log with an archive, the arguments of its processes, and the points between two kills."""
    case, kind, stride = request.param
    store = s3_store(request.getfixturevalue("s3_url")) if kind == "s3" else tmp_path / "archive"
    log = Log(request.getfixturevalue(case.database), case)
    log.publish(retention=Retention(), id="id", archive=opened_store(store))
    place = (log.engine.url.render_as_string(hide_password=False), log.ordering, store)
    return log, place, stride


def begun(log, place):
    """Return the feed and its archive, as a new process has them."""
    archive = opened_store(place[2])
    return log_source(log.ordering, archive).bind(log.engine), archive


@pytest.mark.slow
@pytest.mark.parametrize(
    "killing",
    [
        killed_with(SINGLE_WRITER, "folder", 223),
        killed_with(SEQUENCED_SQLITE, "s3", 31),
        *(killed_with(case, "folder", 29) for case in ALL),
    ],
    indirect=True,
)
def test_killed_at_points_of_sealing_and_trimming(killing):
    """Wherever a process is killed, pages stay the same, and the next process continues."""
    log, place, stride = killing
    at, written, cursors, kills, killed = 1, 0, ["1-0"], 0, True

    def pages():
        feed, _ = begun(log, place)
        return [pages_from(feed, 0, cursor, 40, 100) for cursor in cursors]

    while killed:
        log.write(*range(written, written + 5))
        written += 5
        page = begun(log, place)[0].read(0, cursors[-1], 1000, each=True)
        cursors = ["1-0", *cursors[-5:], *page.cursors]
        before = pages()
        killed = until_killed(moving, *place, at)
        kills += killed
        assert pages() == before
        feed, archive = begun(log, place)
        move(feed, archive)
        assert pages() == before
        assert numbers(feed) == [*range(written)]
        assert log.count("SELECT count(*) FROM log") <= 1
        at += stride
    assert kills > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "killing",
    [
        killed_with(SINGLE_WRITER, "folder", 171),
        killed_with(SINGLE_WRITER, "folder", 5),
        killed_with(SEQUENCED_SQLITE, "s3", 5),
    ],
    indirect=True,
)
def test_killed_at_points_of_erasing(killing):
    """Wherever an eraser is killed, other events stay, and the next process finishes."""
    log, place, stride = killing
    log.write(*range(50))
    feed, archive = begun(log, place)
    feed.seal(segment_events=10)
    move(feed, archive)
    at, there, kills, killed = 1, [*range(50)], 0, True
    while killed:
        number = there[len(there) // 2]
        others = [one for one in there if one != number]
        killed = until_killed(erasing, *place, [str(number + 1)], at)
        kills += killed
        feed, archive = begun(log, place)
        assert numbers(feed) in (there, others)
        erase(feed, archive, [str(number + 1)])
        assert numbers(feed) == others
        files = {name.partition(".")[0] for name, _ in archive.objects.ages("segments")}
        assert len(files) == len(archive.look().segments)
        there = others
        at += stride
    assert kills > 0
