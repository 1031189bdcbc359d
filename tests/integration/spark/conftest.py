"""Fixtures of Spark, and of the shops that it reads."""

import os
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest
from harness.archives import s3_store
from harness.published import install
from harness.readers import mounted
from harness.shop import fill, orders, write
from harness.spark import spark_session
from harness.statements import add
from harness.waiting import meanwhile
from obstore.store import S3Store

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.retention import Retention

SECRETS = {
    "FEED_TOKEN": "kanarek-3",
    "FEED_HEADERS": '{"Cookie":"kanarek-4"}',
    "KEY_PASSWORD": "kanarek",
}
"""Environment variables of the driver and the tasks of Spark."""


@pytest.fixture(scope="session")
def spark_logs(tmp_path_factory):
    """The folder of Spark's output and its log of events."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_logs):
    """A session of Spark on two cores, the same for all tests."""
    settings = {
        "spark_eventLog_enabled": "true",
        "spark_eventLog_compress": "false",
        "spark_eventLog_dir": spark_logs.as_uri(),
    }
    with ExitStack() as ended:
        with pytest.MonkeyPatch.context() as patch, _errors_into(spark_logs / "output"):
            for name, secret in SECRETS.items():
                patch.setenv(name, secret)
            session = ended.enter_context(spark_session(**settings))
        yield session


@contextmanager
def _errors_into(file):
    """Let processes that start here write their errors into a file."""
    before = os.dup(2)
    with file.open("wb") as opened:
        os.dup2(opened.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture
def stream(spark, tmp_path):
    """A function that reads all events in micro-batches with one checkpoint, and ends."""

    def stream(url, into, limit=80):
        read = spark.readStream.format("zeroeventhub").option("startingOffsets", "earliest")
        read = read.option("maxOffsetsPerTrigger", limit).option("minPartitions", 3)
        writing = into(read.load(url).writeStream.trigger(availableNow=True))
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(300), "The query does not end."
        return query

    return stream


@pytest.fixture
def shop(any_engine):
    """The database of a shop with two hundred orders in two partitions."""
    return fill(any_engine, 200, partitions=2)


@pytest.fixture
def publish():
    """A function that serves a shop's orders; it yields the feed's URL."""

    def publish(engine, **options):
        given = {"partition": "part", "partitions": 2, "data": "data"} | options
        return mounted(TableFeed(orders, **given), engine, arrow=True)

    return publish


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.test_all)])
def archive(request, tmp_path):
    """An archive whose files are shared: in a folder, or by URLs that a store signs."""
    if request.param == "folder":
        return Archive(tmp_path / "archive", shared=(tmp_path / "archive").as_uri())
    return Archive(s3_store(request.getfixturevalue("s3_url")), shared="signed")


@pytest.fixture
def origins(archive):
    """The origin of the files, which a reader has to allow."""
    store = archive.objects.store
    return store.config["endpoint"] if isinstance(store, S3Store) else "file://"


@pytest.fixture
def sealed(any_engine, archive):
    """A feed of three partitions, of which 60 events of 90 are in files of 20."""
    fill(any_engine, 60, partitions=3)
    options = {"data": "data", "partition": "part", "partitions": 3}
    feed = TableFeed(orders, **options, retention=Retention(), archive=archive)
    install(feed, any_engine)
    feed.bind(any_engine).seal(segment_events=20)
    write(any_engine, 30, first=60, partitions=3)
    return feed


@pytest.fixture
def writing():
    """A context in which two writers append events of some partitions, two at a time."""

    def writing(engine, partitions, first):
        numbers = count(first)

        def write():
            pair = (next(numbers), next(numbers))
            rows = [{"part": partitions[n % len(partitions)], "data": {"n": n}} for n in pair]
            add(engine, orders, rows)

        return meanwhile(write, pause=0.01, threads=2)

    return writing
