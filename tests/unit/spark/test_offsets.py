"""Checkpoints of Spark's streams: where their committed batches end."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness.spark import write_checkpoint

from zeroeventhub.bulk.offsets import Offsets
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.offsets import committed_offsets

ORDERS = {"cursors": {"0": "a", "1": "b"}, "token": "7"}
CLICKS = {"cursors": {"0": "c"}}


@pytest.mark.parametrize(
    ("version", "sources", "source", "expected"),
    [
        ("v1", [None, ORDERS], "1", ORDERS),
        ("v2", [CLICKS, ORDERS], "1", ORDERS),
        ("v2", {"clicks": CLICKS, "orders": ORDERS}, "orders", ORDERS),
    ],
)
def test_source_is_named_by_its_number_or_name(tmp_path, version, sources, source, expected):
    """Of several sources, the one that is asked for is read."""
    checkpoint = write_checkpoint(tmp_path, [sources], version=version)
    assert committed_offsets(checkpoint, source) == Offsets.of(expected)


@pytest.mark.parametrize(
    ("sources", "source", "sentence"),
    [
        ([CLICKS, ORDERS], None, "has 2 sources, 0, 1: choose"),
        ([ORDERS], "1", "has 1 sources, 0: choose"),
        ([None], None, "has not read anything from source 0 yet"),
        ([17], None, "Source 0 of the stream is not a feed"),
        ([{"orders": {"0": 5}}], None, "Source 0 of the stream is not a feed"),
    ],
)
def test_source_that_is_no_feed_is_refused(tmp_path, sources, source, sentence):
    """A source without offsets of a feed is refused, and the error says why."""
    checkpoint = write_checkpoint(tmp_path, [sources])
    with pytest.raises(ConfigurationError, match=sentence):
        committed_offsets(checkpoint, source)


def test_batch_under_way_is_refused(tmp_path):
    """A batch that was planned and not committed is refused, and batch 10 comes after batch 9."""
    batches = [[CLICKS]] * 10 + [[ORDERS]]
    checkpoint = write_checkpoint(tmp_path, batches, committed=10)
    with pytest.raises(ConfigurationError, match="Batch 10 of the stream was planned"):
        committed_offsets(checkpoint)
    write_checkpoint(tmp_path, batches)
    assert committed_offsets(checkpoint) == Offsets.of(ORDERS)


@pytest.mark.parametrize(
    ("place", "broken", "sentence"),
    [
        ("s3://lake/orders", {}, "not a folder of this machine"),
        ("missing", {}, "not the checkpoint of a stream"),
        ("orders", {"offsets/0": ""}, "not a whole file"),
        ("orders", {"commits/0": ""}, "not a whole file"),
        ("orders", {"offsets/0": "v3\n{}\n{}"}, "'v3'"),
    ],
)
def test_place_without_a_checkpoint_is_refused(empty_folder, place, broken, sentence):
    """A remote folder, no checkpoint, a truncated file and an unknown version are refused."""
    write_checkpoint(Path("orders"), [[ORDERS]])
    for name, text in broken.items():
        Path("orders", name).write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        committed_offsets(place)


def test_checkpoint_is_read_without_spark(tmp_path):
    """The offsets of a checkpoint can be read without PySpark."""
    checkpoint = write_checkpoint(tmp_path, [[ORDERS]])
    code = f"""
import sys
sys.modules |= {{"pyspark": None, "pyarrow": None}}
from zeroeventhub.spark.offsets import committed_offsets
print(committed_offsets({checkpoint!r}).cursors)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{0: 'a', 1: 'b'}\n", "")
