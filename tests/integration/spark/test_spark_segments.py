"""Ranges whose events lie in files: read past the publisher, and each event once all the same."""

import json
from contextlib import contextmanager

import pytest
from harness.filed_feed import FiledFeed, Store, application
from harness.web import serving

from zeroeventhub import FIRST, Principal
from zeroeventhub.errors import ProtocolError, Unavailable, Unreachable
from zeroeventhub.protocol import SEGMENTS

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install --group spark")

from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Range
from zeroeventhub.spark.options import read_options
from zeroeventhub.spark.range_reader import RangeReader


@pytest.fixture
def feed(tmp_path):
    """A feed of two partitions with 40 events, of which 30 lie in two files."""
    feed = FiledFeed(2, tmp_path)
    for number in range(40):
        feed.append(number % 6)
        if number in {14, 29}:
            feed.seal()
    return feed


@pytest.fixture
def store(tmp_path):
    """Gives the files over HTTP."""
    return Store(tmp_path)


@contextmanager
def reading(feed, store, **options):
    """A reader of the feed, whose files are given by HTTP."""
    with serving(application(feed, store)) as url:
        feed.base = f"{url}/files"
        given = {"path": f"{url}/feed", "attempts": "3"} | options
        with Connection.to(read_options(given)) as connection:
            yield RangeReader(connection, read_options(given), with_headers=False)


def numbers(pages):
    """The numbers of the events of pages."""
    return [
        json.loads(text)["n"]
        for page in pages
        for batch in page.page.batches
        for text in batch.column(0).to_pylist()
    ]


def wanted(feed, partition, after=0, until=40):
    """The numbers of the events that there are."""
    return [number for number, _ in feed.shown(partition, after) if number <= until]


@pytest.mark.parametrize("start", [0, 7, 15, 22, 30, 40])
@pytest.mark.parametrize("stop", [15, 22, 40])
@pytest.mark.parametrize("partition", [0, 1])
def test_ranges_are_whole_wherever_they_begin_and_end(feed, store, start, stop, partition):
    """A range of files, of pages, or of both holds every event of its partition once."""
    with reading(feed, store) as reader:
        one = Range(partition, str(start) if start else FIRST, str(stop))
        found = numbers(reader.pages(one))
    assert found == wanted(feed, partition, start, stop)


def test_publisher_reads_nothing_that_lies_in_files(feed, store):
    """No page is asked for before the end of the files."""
    with reading(feed, store) as reader:
        list(reader.pages(Range(0, FIRST, "40")))
    assert min(map(int, feed.read_from)) == 30


def test_files_are_asked_for_until_all_are_named(feed, store):
    """An answer that names few files is followed by another question."""
    feed.parts_at_once = 1
    with reading(feed, store) as reader:
        assert numbers(reader.pages(Range(1, FIRST, "40"))) == wanted(feed, 1)
    assert feed.asked == [FIRST, "15", "30"]


def test_folder_that_is_shared_is_read(feed, store):
    """A file's URL may be one of a folder."""
    with reading(feed, store) as reader:
        feed.base = feed.folder.as_uri()
        assert numbers(reader.pages(Range(0, FIRST, "40"))) == wanted(feed, 0)
    assert not store.ranges


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_file_that_is_not_given_is_asked_for_anew(feed, store, status):
    """Where a file cannot be had any more, the feed is asked where it is now."""
    store.failures = [status]
    with reading(feed, store) as reader:
        assert numbers(reader.pages(Range(0, FIRST, "40"))) == wanted(feed, 0)
    assert feed.asked[:2] == [FIRST, FIRST]


def test_events_of_a_file_come_once_though_it_is_begun_anew(feed, store, monkeypatch):
    """What was read of a file is not read again when the rest of it is."""
    monkeypatch.setattr("zeroeventhub.archive.draft.GROUP_EVENTS", 2)
    for number in range(40, 60):
        feed.append(number % 6)
    feed.seal()
    with reading(feed, store) as reader:
        pages, found = reader.pages(Range(0, "30", "60")), []
        for page in pages:
            found += numbers([page])
            if len(found) == 2:
                store.failures = [503]
    assert found == wanted(feed, 0, 30, 60)
    assert feed.asked.count("30") == 2


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("question", [1, 2, 3])
def test_partitions_may_change_between_files(feed, store, question, partition):
    """Wherever a read is when the partitions change, each event of its range comes once."""
    feed.parts_at_once, feed.splits_at = 1, question
    with reading(feed, store) as reader:
        assert numbers(reader.pages(Range(partition, FIRST, "40"))) == wanted(feed, partition)


def test_partitions_may_not_change_within_a_file(feed, store, monkeypatch):
    """Where it is not known any more what of a file was read, the read ends with an error."""
    monkeypatch.setattr("zeroeventhub.archive.draft.GROUP_EVENTS", 2)
    for number in range(40, 60):
        feed.append(number % 6)
    feed.seal()
    with reading(feed, store) as reader:
        found = reader.pages(Range(0, "30", "60"))
        next(found)
        store.failures, feed.splits_at = [503] * 9, 2
        with pytest.raises(Unavailable, match="partitions"):
            list(found)


def test_file_that_stays_away_ends_the_read(feed, store):
    """A store that never answers is an error, which tells nothing of the file's address."""
    store.failures = [503] * 9
    with reading(feed, store) as reader, pytest.raises(Unreachable) as caught:
        list(reader.pages(Range(0, FIRST, "40")))
    assert "/files/" not in str(caught.value)


def test_file_that_was_cut_is_not_read(feed, store):
    """A file that is shorter than the feed says is an error, and not the end of its events."""
    with reading(feed, store) as reader:
        feed.base = feed.folder.as_uri()
        file = feed.folder / "0-15.parquet"
        content, size = file.read_bytes(), file.stat().st_size
        feed.sizes = {"0-15.parquet": size}
        file.write_bytes(content[: size // 2])
        with pytest.raises(Unreachable, match="shorter"):
            list(reader.pages(Range(0, FIRST, "40")))


@pytest.mark.parametrize("content", [b"", b"PAR1 and nothing else PAR1", b"x" * 500])
def test_what_is_no_segment_is_refused(feed, store, content):
    """A file of another form is an error of the feed's."""
    (feed.folder / "0-15.parquet").write_bytes(content)
    with reading(feed, store) as reader, pytest.raises(ProtocolError):
        list(reader.pages(Range(0, FIRST, "40")))


def test_credentials_of_the_feed_are_not_shown_to_the_store(feed, store, monkeypatch):
    """Whoever has the files is sent none of the headers that the feed is."""
    monkeypatch.setenv("FEED_TOKEN", "only-for-the-feed")
    with reading(feed, store, bearerTokenEnv="FEED_TOKEN") as reader:
        list(reader.pages(Range(0, FIRST, "40")))
    assert store.headers
    assert "only-for-the-feed" not in str(store.headers)


@pytest.mark.parametrize(
    "options", [{"readSegments": "false"}, {"eventTypes": "placed"}], ids=["off", "types"]
)
def test_files_are_passed_by(feed, store, options):
    """Nothing is read out of files by who does not want it, or wants what is not in them."""
    with reading(feed, store, **options) as reader:
        list(reader.pages(Range(0, FIRST, "40")))
    assert not feed.asked
    assert not store.ranges


@pytest.mark.parametrize("limits", [{"partitions": [0]}, {"types": ["placed"]}])
def test_files_are_for_readers_of_everything(feed, store, limits):
    """A reader that may not see all of a feed does not hear of files that have all of it."""
    import httpx

    feed.extensions |= {"event-types"}

    def authorize(request):
        return Principal(name="ada", **limits)

    with serving(application(feed, store, authorize=authorize)) as url, httpx.Client() as http:
        assert SEGMENTS not in http.get(f"{url}/feed").json()["extensions"]
        query = {"token": feed.info().token, "partition": 0, "cursor": FIRST}
        assert http.get(f"{url}/feed/segments", params=query).status_code == 404
