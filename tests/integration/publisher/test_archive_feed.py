"""An archive is published without its database: its feed answers as the feed itself does."""

from functools import partial

import httpx
import pytest
from harness.archives import (
    EVENTS,
    PARTITIONS,
    Died,
    assert_same,
    cursors_of,
    dying,
    every_answer,
    opened,
    place,
    s3_store,
    source,
    store_for,
)
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.statements import execute
from harness.trimmed import numbers, trim
from sqlalchemy import delete, insert

from zeroeventhub import FIRST, LAST, ArchiveFeed, Compaction, Layout
from zeroeventhub.archive import Archive, segment_writer
from zeroeventhub.errors import ConfigurationError, Diverged, NotFound, Unavailable
from zeroeventhub.publisher import lookups, page_query
from zeroeventhub.settings import Capacity

SMALL = Capacity(page_bytes=200)


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.test_all)])
def test_archive_alone_answers_as_its_feed(sqlite, request, kind, monkeypatch):
    """Every question at every kind of cursor has the answer of the feed, all sealed and trimmed."""
    monkeypatch.setattr(segment_writer, "GROUP_EVENTS", 5)
    monkeypatch.setattr(lookups, "MOST", 9)
    monkeypatch.setattr(page_query, "FILTERED_ROWS", 9)
    store = store_for(kind, request)
    feed = opened(sqlite, Archive(store), key="customer")
    feed.seal(segment_events=10)
    cursors = [cursor for cursor in cursors_of(feed) if cursor != "1-999"]
    trim(feed, 36)
    before = every_answer(feed, cursors)
    alone = ArchiveFeed(Archive(store), capacity=SMALL)
    assert_same(every_answer(alone, cursors), before)
    assert alone.info() == feed.info()


@pytest.mark.parametrize("options", [{"key": "customer", "compaction": Compaction()}, {}])
def test_archive_without_single_events_keeps_cursors_valid(sqlite, tmp_path, options):
    """A cursor after an event that was deleted before it was sealed, by compaction or by hand, is
    good in the archive alone, and while its table is being restored.
    """
    feed = opened(sqlite, Archive(tmp_path), **options)
    cursors = [feed.cursor_after(position) for position in range(37)]
    if options:
        assert feed.compact() == 24
    else:
        execute(sqlite, delete(orders).where(orders.c.id.in_([3, 7, 30])))
        with sqlite.begin() as connection:
            source(None).thin(connection, until=30)
    feed.seal(segment_events=5)
    before = [numbers(feed, 0, cursor) for cursor in cursors]
    alone = ArchiveFeed(Archive(tmp_path))
    assert [numbers(alone, 0, cursor) for cursor in cursors] == before
    assert alone.info() == feed.info()
    assert not alone.read(0, FIRST, 2).full
    metadata.drop_all(sqlite)
    execute(sqlite, "DROP TABLE zeroeventhub_retention")
    metadata.create_all(sqlite)
    restored, seen = source(Archive(tmp_path), **options).bind(sqlite), []
    restored.restore(
        on_progress=lambda *_: seen.append([numbers(restored, 0, cursor) for cursor in cursors])
    )
    assert [*seen, [numbers(restored, 0, cursor) for cursor in cursors]] == [before] * (
        len(seen) + 1
    )
    assert len(seen) > 1


@pytest.mark.parametrize(
    "options", [{"id": "id", "time": None, "type": None}, {"cloudevents": True}]
)
def test_archive_alone_has_the_abilities_of_its_feed(sqlite, tmp_path, options):
    """Discovery names what the archive can answer, and it finds events by their ids."""
    feed = opened(sqlite, Archive(tmp_path), **options)
    feed.seal()
    alone = ArchiveFeed(Archive(tmp_path))
    assert alone.info() == feed.info()
    if "id" in options:
        assert alone.cursor_of("9", 2) == feed.cursor_of("9", 2)


def test_secret_of_cursors_is_that_of_the_feed(sqlite, tmp_path):
    """With the secret, cursors are the same; without it or with another one, it is refused."""
    secret = "0123456789abcdef"
    feed = opened(sqlite, Archive(tmp_path), cursor_secret=secret)
    feed.seal()
    alone = ArchiveFeed(Archive(tmp_path), cursor_secret=secret, capacity=SMALL)
    assert alone.read(0, FIRST, 5, each=True) == feed.read(0, FIRST, 5, each=True)
    for given in (None, secret[::-1]):
        with pytest.raises(ConfigurationError, match="have a secret"):
            ArchiveFeed(Archive(tmp_path), cursor_secret=given)


def test_place_without_a_feed_is_refused(tmp_path):
    """A place without an archive is not an empty feed, and nothing is written to it."""
    with pytest.raises(ConfigurationError, match="There is no archive here"):
        ArchiveFeed(Archive(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()


def test_end_of_the_archive_is_the_head(sqlite, tmp_path):
    """A reader at the end is at the head, one that is further waits, and both go on."""
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal()
    archive = Archive(tmp_path)
    alone = ArchiveFeed(archive)
    page = alone.read(0, LAST, 1)
    assert (page.caught_up, alone.head()) == (True, 36)
    with sqlite.begin() as connection:
        place(connection, *EVENTS[:2])
    further = feed.read(0, page.cursor, 5).cursor
    for use in (partial(alone.read, 0, further, 5), partial(alone.vouch, [further])):
        with pytest.raises(Unavailable, match="not sealed yet"):
            use()
    feed.seal()
    archive.look()
    assert alone.head() == 38
    assert len(alone.read(0, page.cursor, 5).events) == 1
    assert alone.read(0, further, 5).events == []
    with pytest.raises(Diverged):
        alone.read(0, further[:-1] + ("1" if further[-1] == "0" else "0"), 5)


def test_nothing_can_be_changed(sqlite, tmp_path):
    """A feed of an archive alone cannot seal, trim, erase or restore."""
    opened(sqlite, Archive(tmp_path)).seal()
    alone = ArchiveFeed(Archive(tmp_path))
    for use in (
        alone.seal,
        alone.restore,
        partial(alone.plan_trim, below=9),
        partial(alone.erase, ids=["1"]),
        alone.compact,
    ):
        with pytest.raises(ConfigurationError):
            use()
    with pytest.raises(NotFound):
        alone.segments(0, FIRST)


def test_files_are_shared(sqlite, tmp_path):
    """Readers in bulk get the files of an archive that shares them."""
    shared = partial(Archive, tmp_path, shared=tmp_path.as_uri())
    feed = opened(sqlite, shared())
    feed.seal(segment_events=10)
    trim(feed, 37)
    alone = ArchiveFeed(shared())
    assert alone.segments(0, FIRST) == feed.segments(0, FIRST)


def test_closed_partition_ends_where_it_is_sealed(sqlite, tmp_path):
    """The archive says that a partition is closed once all of its events are in it."""
    layout = Layout.of(1)
    metadata.create_all(sqlite)
    options = {"partition": "part", "time": None, "type": None}
    feed = opened(sqlite, Archive(tmp_path), [(0, 0, 0)] * 4, partitions=layout, **options)
    feed.seal()
    execute(sqlite, insert(orders).values(part=0, data={"n": 4}))
    split = source(Archive(tmp_path), partitions=layout.split(0, into=2), **options).bind(sqlite)
    split.info()
    sealing = split.seal(least=2)
    assert sealing.events == 0
    assert ArchiveFeed(Archive(tmp_path)).info().token == layout.token
    split.seal()
    info = ArchiveFeed(Archive(tmp_path)).info()
    assert info == split.info()
    assert [(one.id, one.closed) for one in info.partitions] == [(0, True), (1, False), (2, False)]


def test_split_is_read_after_a_restart(sqlite, tmp_path):
    """An ArchiveFeed that runs while its feed is split says to restart it, and then reads on."""
    layout = Layout.of(2)
    metadata.create_all(sqlite)
    options = {"partition": "part", "time": None, "type": None}
    feed = opened(sqlite, Archive(tmp_path), [(0, 0, 0)] * 4, partitions=layout, **options)
    feed.seal()
    archive = Archive(tmp_path)
    running = ArchiveFeed(archive)
    page = running.read(0, FIRST, 9)
    execute(sqlite, insert(orders).values(part=2, data={"n": 4}))
    after = layout.split(0, into=2)
    source(Archive(tmp_path), partitions=after, **options).bind(sqlite).seal()
    archive.look()
    with pytest.raises(ConfigurationError, match=r"partition 2.*when it is restarted"):
        running.read(0, page.cursor, 9)
    restarted = ArchiveFeed(Archive(tmp_path))
    assert restarted.info().token == after.token
    assert restarted.read(0, page.cursor, 9).events == []
    assert [event.data["n"] for event in restarted.read(2, FIRST, 9).events] == [4]


def test_split_is_read_though_its_sealer_died(sqlite, tmp_path):
    """An archive can be read that has events of partitions which it does not describe yet."""
    layout = Layout.of(2)
    options = {"partition": "part", "time": None, "type": None}
    opened(sqlite, Archive(tmp_path), [(0, 0, 0)] * 4, partitions=layout, **options).seal()
    layout = layout.split(0, into=2)
    execute(sqlite, insert(orders).values(part=2, data={"n": 4}))
    source(Archive(tmp_path), partitions=layout, **options).bind(sqlite).seal()
    execute(sqlite, insert(orders).values(part=4, data={"n": 5}))
    after = layout.split(1, into=2)
    dies_after_the_segment = dying(tmp_path, 6)
    with pytest.raises(Died):
        source(dies_after_the_segment, partitions=after, **options).bind(sqlite).seal()
    alone = ArchiveFeed(Archive(tmp_path))
    assert (alone.info().token, Archive(tmp_path).sealed()) == (layout.token, 6)
    assert [event.data["n"] for event in alone.read(2, FIRST, 9).events] == [4]


def test_archive_alone_is_served(sqlite, tmp_path):
    """Consumers read an archive over HTTP, wait for what is sealed next, and it conforms."""
    named = {"cloudevents": True, "id": "id"}
    feed = opened(sqlite, Archive(tmp_path), **named)
    feed.seal()
    archive = Archive(tmp_path, look_seconds=1)
    with mounted(ArchiveFeed(archive)) as url, client_of(url) as client:
        found = client.fetch(1, FIRST).events
        assert [event.data["data"]["n"] for event in found] == [*range(1, 36, 3)]
        cursor = client.fetch(1, LAST).cursor
        with sqlite.begin() as connection:
            place(connection, (1, 0, 0))
        feed.seal()
        page = client.fetch(1, cursor, wait=20)
        assert len(page.events) == 1


def test_bucket_is_served_from_an_empty_cache(sqlite, s3_url, tmp_path, monkeypatch):
    """A machine that has only S3's usual variables serves every sealed cursor as the feed does."""
    store = s3_store(s3_url)
    feed = opened(sqlite, Archive(store), page_bytes=10_000)
    feed.seal(segment_events=10)
    environment = {
        "ACCESS_KEY_ID": "any",
        "SECRET_ACCESS_KEY": "any",
        "REGION": "us-east-1",
        "ENDPOINT_URL": s3_url,
        "ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    alone = ArchiveFeed(Archive(f"s3://{store.config['bucket']}", cache=tmp_path / "cache"))
    cursors = [
        (partition, cursor)
        for partition in range(PARTITIONS)
        for cursor in (FIRST, *feed.read(partition, FIRST, 50, each=True).cursors)
    ]
    assert len(cursors) == len(EVENTS) + PARTITIONS
    answers = []
    for served in (alone, feed):
        with mounted(served) as url, httpx.Client(base_url=url) as http:
            given = {"token": served.info().token, "pagesizehint": 5}
            asked = [given | {"partition": one, "cursor": cursor} for one, cursor in cursors]
            answers.append([http.get("/events", params=one).read() for one in asked])
    assert answers[0] == answers[1]
    assert all(b'"cursor"' in answer for answer in answers[0])
    assert any((tmp_path / "cache").rglob("*"))
