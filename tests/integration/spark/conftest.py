"""Fixtures of Spark, and of the shops that it reads."""

import os
from contextlib import ExitStack, contextmanager

import pytest
from harness.spark import spark_session

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
