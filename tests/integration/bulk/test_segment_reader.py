"""Ranges whose events are in files: read without the publisher, and each event once."""

import gzip
import json
import logging
import re
import ssl
from operator import itemgetter

import anyio
import httpx
import pyarrow as pa
import pytest
import trustme
from harness.laid_out_feed import ReadFeed
from harness.published import install
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.spark_reading import numbers, planned, read, rows_of
from harness.statements import add, execute
from harness.web import serving, serving_tls
from pyarrow import parquet
from sqlalchemy import delete
from starlette.applications import Starlette
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from zeroeventhub import FIRST, Client, ConnectionPool, TableFeed, feed_routes, read_arrow
from zeroeventhub.archive import Archive
from zeroeventhub.archive.segment_writer import SegmentWriter
from zeroeventhub.bulk import segment_reader
from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    Diverged,
    ProtocolError,
    Unavailable,
    Unreachable,
)
from zeroeventhub.extensions import SEGMENTS, STOP
from zeroeventhub.protocol import SegmentPart, Segments
from zeroeventhub.publisher.retention import Retention


class FiledFeed(ReadFeed):
    """Be a feed with files in a folder."""

    def __init__(self, folder):
        super().__init__(2, frozenset({STOP, SEGMENTS}))
        self.folder, self.base, self.signature = folder, folder.as_uri(), ""
        self.files, self.asked, self.read_from = [], [], []
        self.sizes = {}  # where a file is not of the size that it is said to be
        self.parts_at_once = 100
        self.splits_at = 0  # the question for files at which partition 1 is split
        self.known = {}  # the files, by the question that another process answers

    def seal(self):
        """Write the events that are in no file yet into a file."""
        after, upto = self.sealed, len(self.rows)
        shown = [
            {"position": number, "partition": share.id, "data": f'{{"key":{key},"n":{number}}}'}
            for share in self.layout.partitions
            for number, key in self.shown(share.id, after)
        ]
        shown.sort(key=itemgetter("position"))
        writer = SegmentWriter()
        writer.add({name: [row[name] for row in shown] for name in shown[0]})
        name = f"{after}-{upto}.parquet"
        (self.folder / name).write_bytes(writer.finish(after, upto, str(upto)).content)
        self.files.append((name, after, upto))

    @property
    def sealed(self):
        """The position up to which events are in files."""
        return self.files[-1][2] if self.files else 0

    def read(self, partition, cursor, limit, *, stop=None):
        self.read_from.append(cursor)
        return super().read(partition, cursor, limit, stop=stop)

    def segments(self, partition, cursor, *, stop=None):
        self.asked.append(cursor)
        if len(self.asked) == self.splits_at:
            self.layout = self.layout.split(1, into=2)
        after = 0 if cursor == FIRST else int(cursor)
        until = self.sealed if stop is None else min(self.sealed, int(stop))
        parts = []
        for name, start, end in self.known.get(len(self.asked), self.files):
            low, high = max(after, start), min(until, end)
            if low < high and len(parts) < self.parts_at_once:
                size = self.sizes.get(name) or (self.folder / name).stat().st_size
                where = f"{self.base}/{name}{self.signature}"
                parts.append(SegmentPart(where, size, low, high, str(high)))
        return Segments(parts, parts[-1].cursor if parts else str(after))


class Store:
    """Serve the files of a folder after some failures; record the requests."""

    def __init__(self, folder):
        self._folder, self.failures, self.asked = folder, [], []
        self.hostile, self.sent = None, 0

    async def chunks(self, size, pause):
        """Send a thousand chunks."""
        for _ in range(1024):
            self.sent += 1
            yield bytes(size)
            await anyio.sleep(pause)  # the server notices that the client has gone

    async def answer(self, request):
        self.asked.append(dict(request.headers))
        if self.hostile == "packed":
            return Response(gzip.compress(bytes(9)), 206, {"Content-Encoding": "gzip"})
        if self.hostile:
            return StreamingResponse(self.chunks(*self.hostile), 206)
        if self.failures:
            return Response(status_code=self.failures.pop(0))
        return FileResponse(self._folder / request.path_params["name"])


def publish(feed, count):
    """Publish events of six keys."""
    for _ in range(count):
        feed.append(len(feed.rows) % 6)


@pytest.fixture
def feed(tmp_path):
    """A feed of two partitions with 40 events, of which 30 lie in two files."""
    feed = FiledFeed(tmp_path)
    for count in (15, 15):
        publish(feed, count)
        feed.seal()
    publish(feed, 10)
    return feed


@pytest.fixture
def store(tmp_path):
    """The store that serves the files."""
    return Store(tmp_path)


@pytest.fixture
def url(feed, store):
    """The feed's URL, whose files are given by HTTP."""
    files = Route("/files/{name}", store.answer)
    with serving(Starlette(routes=[*feed_routes("/feed", feed), files])) as url:
        feed.base = f"{url}/files"
        yield f"{url}/feed"


@pytest.fixture
def authority():
    """A private authority, and a TLS context of a client that trusts it and has its certificate."""
    authority, context = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert(common_name="billing").configure_cert(context)
    return authority, context


@pytest.mark.parametrize("kind", [httpx.Client, ConnectionPool])
def test_files_of_the_feeds_origin_are_read_with_the_callers_certificates(
    feed, store, authority, kind
):
    """Files at the origin of a feed are read as the feed is, but without its headers."""
    authority, context = authority
    files = Route("/files/{name}", store.answer)
    application = Starlette(routes=[*feed_routes("/feed", feed), files])
    secret = {"Authorization": "Bearer kanarek", "Cookie": "kanarek=1"}
    with (
        serving_tls(application, authority) as url,
        kind(verify=context, headers=secret, timeout=30) as http,
    ):
        feed.base = f"{url}/files"
        rows = pa.table(read_arrow(Client(f"{url}/feed", http), readers=2)).num_rows
    assert rows == 40
    assert store.asked
    assert "kanarek" not in str(store.asked)


def of_range(partition, start=FIRST, stop="40"):
    """Options of a batch that is one range."""
    return {
        "partitions": partition,
        "startingOffsets": json.dumps({partition: str(start)}),
        "endingOffsets": json.dumps({partition: str(stop)}),
        "attempts": 3,
    }


def found(url, partition, start=FIRST, stop="40", **options):
    """The numbers of the events of a range."""
    return numbers(read(url, **of_range(partition, start, stop) | options))


def wanted(feed, partition, after=0, until=40):
    """The numbers of the events that there are."""
    return [number for number, _ in feed.shown(partition, after) if number <= until]


def test_publisher_reads_nothing_that_lies_in_files(feed, url):
    """Files are asked for until all are named, and pages from where the files end."""
    feed.parts_at_once = 1
    assert found(url, 1) == wanted(feed, 1)
    assert feed.asked == [FIRST, "15", "30"]
    assert min(map(int, feed.read_from)) == 30


@pytest.fixture
def rest(feed, url, monkeypatch):
    """A reader and a task of a file of which an executor gets two events at a time."""
    monkeypatch.setattr("zeroeventhub.archive.segment_writer.GROUP_EVENTS", 2)
    publish(feed, 20)
    feed.seal()
    return planned(url, **of_range(0, 30, 60))


def test_events_of_a_file_come_once_though_it_is_begun_anew(feed, store, rest):
    """If a file is no longer there, the reader asks the feed again, and reads the rest."""
    reader, (task,) = rest
    rows = []
    for batch in reader.read(task):
        rows += batch.to_pylist()
        if len(rows) in {2, 6, 10}:
            store.failures = [404]
    assert numbers(rows) == wanted(feed, 0, 30, 60)
    # More failures than attempts, but not one after the other.
    assert feed.asked.count("30") == 4


@pytest.mark.parametrize("status", [400, 403, 408, 425, 429, 500, 503])
def test_store_that_refuses_a_request_once_costs_no_event(feed, store, url, status):
    """A store that limits requests, fails, or takes a URL for expired is asked again."""
    store.failures = [status]
    assert found(url, 0) == wanted(feed, 0)


@pytest.mark.parametrize("question", [1, 2, 3])
def test_partitions_may_change_between_files(feed, url, question):
    """If the partitions change between two files, each event of the range comes once."""
    feed.parts_at_once, feed.splits_at = 1, question
    assert found(url, 1) == wanted(feed, 1)


def test_partitions_may_not_change_within_a_file(feed, store, rest):
    """If the partitions change while a file is read, the read fails."""
    reader, (task,) = rest
    batches = reader.read(task)
    next(batches)
    store.failures, feed.splits_at = [503] * 9, 2
    with pytest.raises(Unavailable, match="partitions"):
        list(batches)


@pytest.mark.parametrize("is_smaller", [False, True])
def test_process_that_does_not_know_the_file_is_asked_again(feed, store, rest, is_smaller):
    """If a process does not know a begun file, or only smaller ones, its events come once."""
    reader, (task,) = rest
    *former, (name, after, upto) = feed.files
    smaller = [(name, after, 35), (name, 35, upto)]
    feed.known[2] = [*former, *(smaller if is_smaller else ())]
    rows = []
    for batch in reader.read(task):
        rows += batch.to_pylist()
        if len(rows) == 6:
            store.failures = [404]
    assert numbers(rows) == wanted(feed, 0, 30, 60)
    assert feed.asked.count("30") == 3


@pytest.mark.parametrize(
    ("status", "error", "asked"), [(503, Unreachable, 3), (200, ProtocolError, 1)]
)
def test_file_that_stays_away_ends_the_read(store, url, status, error, asked):
    """A store that never answers with a range is an error, which does not show the file's URL."""
    store.failures = [status] * 9
    with pytest.raises(error) as caught:
        found(url, 0)
    assert "/files/" not in str(caught.value)
    assert len(store.asked) == asked


@pytest.mark.parametrize("content", [b"PAR1 and nothing else PAR1", None], ids=["other", "half"])
def test_what_is_no_whole_segment_is_refused(feed, url, content):
    """A file of another form, or shorter than the feed says, is refused."""
    file = feed.folder / "0-15.parquet"
    if content is None:
        whole = file.read_bytes()
        feed.sizes = {file.name: len(whole)}
        file.write_bytes(whole[: len(whole) // 2])
    else:
        file.write_bytes(content)
    with pytest.raises(Unreachable if content is None else ProtocolError):
        found(url, 0)


@pytest.mark.parametrize("makes", ["nothing", "folder"])
def test_file_that_cannot_be_read_here_is_asked_for_again(feed, makes):
    """A file that is not there, or cannot be opened, ends the read after all attempts."""
    file = feed.folder / "0-15.parquet"
    with mounted(feed) as url:
        plan = planned(url, **of_range(0), segmentOrigins="file://")
        file.unlink()
        if makes == "folder":
            file.mkdir()
        feed.sizes = {file.name: 4_000}
        with pytest.raises(Unreachable, match="on this machine") as caught:
            rows_of(*plan)
    assert str(feed.folder) not in str(caught.value)
    assert feed.asked.count(FIRST) == 3


def test_changed_byte_of_a_row_group_is_noticed(feed):
    """A file with a changed byte is refused, unless its events are unchanged."""
    file = feed.folder / "0-15.parquet"
    content = file.read_bytes()
    part = SegmentPart(file.as_uri(), len(content), 0, 15, "15")

    def events():
        found = segment_reader.read_part(part, 0, 0, None)
        return [text for _, data in found for text in data.to_pylist()]

    before, refused = events(), 0
    group = parquet.ParquetFile(file).metadata.row_group(0)
    for name in ("position", "data"):
        chunks = map(group.column, range(group.num_columns))
        (chunk,) = (one for one in chunks if one.path_in_schema == name)
        start = chunk.data_page_offset
        for at in range(start, start + chunk.total_compressed_size):
            file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            try:
                assert events() == before, at
            except ProtocolError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("hostile", "error"),
    [((2**20, 0.001), ProtocolError), ("packed", ProtocolError), ((1, 0.02), Unreachable)],
    ids=["too much", "packed", "slowly"],
)
def test_range_of_a_file_is_bounded(store, url, monkeypatch, hostile, error):
    """A store that sends too much, compresses it, or sends too slowly is given up."""
    monkeypatch.setattr(segment_reader, "_PATIENCE", 0.3)
    monkeypatch.setattr(segment_reader, "_SLOWEST", 2**30)
    store.hostile = hostile
    with pytest.raises(error):
        found(url, 0, attempts=1)
    assert store.sent < 512


@pytest.mark.parametrize("packed", [True, False], ids=["dictionary", "large"])
def test_file_that_unpacks_to_much_more_is_refused(feed, url, monkeypatch, packed):
    """A small file whose rows would take much memory is refused because of its footer."""
    monkeypatch.setattr(segment_reader, "_LARGEST", 2**22)
    position = range(1, 2**10 + 1)
    rows = {"position": position, "partition": [0] * 2**10, "data": ["x" * 2**14] * 2**10}
    kinds = {"position": pa.int64(), "partition": pa.int32(), "data": pa.string()}
    table = pa.table({name: pa.array(rows[name], kind) for name, kind in kinds.items()})
    file = feed.folder / "0-15.parquet"
    parquet.write_table(table, file, compression="zstd", use_dictionary=packed)
    assert file.stat().st_size < 2**16
    with pytest.raises(ProtocolError, match="too large"):
        found(url, 0)


def test_file_whose_footer_is_very_large_is_refused(feed, url, monkeypatch):
    """A file that says that its footer takes much memory is refused before the footer is read."""
    monkeypatch.setattr(segment_reader, "_LARGEST", 2**20)
    footer = bytes(2**20 + 1)
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    (feed.folder / "0-15.parquet").write_bytes(content)
    with pytest.raises(ProtocolError, match="too large"):
        found(url, 0)


@pytest.mark.parametrize("base", ["file", "https://store.example:444/x", "ftp://x", "http://[", ""])
def test_files_elsewhere_are_read_where_the_options_say_so(feed, store, url, base):
    """A feed cannot send its readers to folders or hosts that their options do not name."""
    feed.base = feed.folder.as_uri() if base == "file" else base
    with pytest.raises((ConfigurationError, ProtocolError)) as refused:
        found(url, 0, attempts=1)
    assert "segmentOrigins" in str(refused.value) or base == "http://["
    assert store.asked == []
    if base == "file":
        assert found(url, 0, segmentOrigins="https://x.example, file://") == wanted(feed, 0)


def test_credentials_and_signatures_stay_where_they_belong(feed, store, url, monkeypatch, caplog):
    """The store gets none of the feed's headers, and a task logs no signature of a file."""
    monkeypatch.setenv("FEED_TOKEN", "only-for-the-feed")
    feed.signature = "?X-Amz-Signature=0123abcd"
    caplog.set_level(logging.DEBUG)
    assert found(url, 0, bearerTokenEnv="FEED_TOKEN") == wanted(feed, 0)
    assert store.asked
    assert "only-for-the-feed" not in str(store.asked)
    assert "/files/" in caplog.text
    assert "0123abcd" not in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"readSegments": "false"}, {"eventTypes": "placed"}, {"includeHeaders": "true"}],
    ids=["off", "types", "headers"],
)
def test_files_are_passed_by(feed, store, url, options):
    """Files are not read if the options say so, or want data that files lack."""
    found(url, 0, **options)
    assert not feed.asked
    assert not store.asked


def pages(client, partition, start, stop=None):
    """The events of a range, by pages of seven, and the cursor of each page."""
    found, cursors, cursor = [], [], start
    while True:
        page = client.fetch(partition, cursor, limit=7, stop=stop)
        found += [event.raw.decode() for event in page.events]
        cursor = page.cursor
        cursors.append(cursor)
        if page.caught_up or page.stop_reached:
            return found, cursors


def test_files_and_pages_are_the_feed(any_engine, sealed, origins, caplog):
    """Files and pages have the same events as pages alone, between any cursors."""
    caplog.set_level(logging.DEBUG)
    bound = sealed.bind(any_engine)
    bound.trim(bound.plan_trim(sealed=45))
    with mounted(sealed, any_engine) as url, client_of(url) as client:
        assert SEGMENTS in client.discover().extensions
        for partition in range(3):
            whole, cursors = pages(client, partition, FIRST)
            assert len(whole) == 30
            behind = client.segments(partition, cursors[-1])
            assert (behind.parts, behind.cursor) == ((), cursors[-1])
            for place_of_start, start in enumerate((FIRST, *cursors)):
                for stop in cursors[place_of_start:]:
                    rows = read(url, **of_range(partition, start, stop), segmentOrigins=origins)
                    by_pages, _ = pages(client, partition, start, stop)
                    assert [row["data"] for row in rows] == by_pages
    assert "Read partition" in caplog.text
    assert not re.search(r"Signature=[0-9a-f]{8}", caplog.text)


def test_cursors_of_another_history_find_no_files(any_engine, sealed):
    """No file is offered if the table's history is not the archive's, or for a bad cursor."""
    with mounted(sealed, any_engine) as url, client_of(url) as client:
        cursor = client.segments(0, FIRST).parts[0].cursor
        execute(any_engine, delete(orders).where(orders.c.id >= 15))
        add(any_engine, orders, [{"id": n, "part": 0, "data": {"n": -n}} for n in range(15, 91)])
        for start in (FIRST, cursor):
            with pytest.raises(Diverged):
                client.segments(0, start)
        for start in ("nonsense", "_last"):
            with pytest.raises(BadCursor):
                client.segments(0, start)


def test_files_are_shared_only_if_that_is_said(any_engine, tmp_path):
    """The files of an archive that is not shared are not offered."""
    metadata.create_all(any_engine)
    feed = TableFeed(orders, data="data", retention=Retention(), archive=Archive(tmp_path))
    install(feed, any_engine)
    with mounted(feed, any_engine) as url, client_of(url) as client:
        assert SEGMENTS not in client.discover().extensions
        with pytest.raises(ConfigurationError, match="segments"):
            client.segments(0, FIRST)
