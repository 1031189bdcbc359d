"""Exports: every event is in the files or the database once, whatever is killed."""

import json
import random

import duckdb
import pyarrow as pa
import pytest
from harness.killed import exporting, until_killed
from harness.laid_out_feed import ChangingFeed
from harness.readers import mounted
from harness.shop import fill, orders, write
from pyarrow import parquet

from zeroeventhub import TableFeed, export, read_arrow
from zeroeventhub.errors import ConfigurationError, StoreUnavailable
from zeroeventhub.extensions import CURSOR_OF_COUNT, SPLITS, STOP
from zeroeventhub.testing import no_pauses

pytestmark = pytest.mark.usefixtures("empty_folder")

PLACES = ["out.parquet", "out.duckdb"]


@pytest.fixture
def url(sqlite):
    """The URL of a feed of two partitions with a hundred orders."""
    feed = TableFeed(orders, data="data", partition="part", partitions=2)
    with mounted(feed, fill(sqlite, 100, partitions=2)) as url:
        yield url


def rows_of(place):
    """The rows of an export, as they lie there."""
    if place.endswith(".parquet"):
        return parquet.read_table(place).to_pylist()
    with duckdb.connect(place, read_only=True) as database:
        return database.table("events").to_arrow_table().to_pylist()


def numbers(place):
    """The numbers of the events of an export, by partition, in the order of the rows."""
    rows = [(row["partition"], json.loads(row["data"])["n"]) for row in rows_of(place)]
    return {part: [number for at, number in rows if at == part] for part, _ in rows}


def expected(count):
    """The numbers of that many orders."""
    return {part: [*range(part, count, 2)] for part in range(2)}


@pytest.mark.parametrize("place", PLACES)
def test_export_goes_on_where_it_ended(sqlite, url, place):
    """An export adds what is new, in the order of each partition, and nothing where nothing is."""
    assert export.export(url, place) == 100
    assert export.export(url, place) == 0
    write(sqlite, 10, first=100, partitions=2)
    told = []
    assert export.export(url, place, progress=lambda *one: told.append(one)) == 10
    assert numbers(place) == expected(110)
    assert told[-1] == (10, 10)


@pytest.mark.parametrize("place", PLACES)
def test_large_export_is_written_in_chunks(sqlite, url, place, monkeypatch):
    """Rows do not pile up in memory: they are written when they are many, or large."""
    monkeypatch.setattr(export, "CHUNK_ROWS", 30)
    assert export.export(url, place, page_size=10) == 100
    assert numbers(place) == expected(100)
    monkeypatch.setattr(export, "CHUNK_BYTES", 1)
    write(sqlite, 20, first=100, partitions=2)
    assert export.export(url, place, page_size=5) == 20
    assert numbers(place) == expected(120)
    if place == "out.parquet":
        files = sorted(export.Path(place).iterdir())
        counts = [parquet.read_metadata(one).num_rows for one in files]
        many, large = counts[:-4], counts[-4:]
        assert all(30 <= count < 40 for count in many[:-1])
        assert large == [5] * 4


@pytest.mark.parametrize("place", PLACES)
def test_export_that_is_killed_goes_on(sqlite, url, place):
    """Processes that are killed at any point leave whole rows, and the next ones add the rest."""
    dice, kills = random.Random(3), 0
    while until_killed(exporting, url, place, 10, dice.randint(30, 100)):
        write(sqlite, 2, first=100 + 2 * kills, partitions=2)
        kills += 1
    assert kills >= 2
    export.export(url, place)
    assert numbers(place) == expected(100 + 2 * kills)
    assert not [*export.Path().glob("*/.*")]


class ReplacedFeed(ChangingFeed):
    """A feed whose partition is replaced while its first events are read."""

    def __init__(self):
        super().__init__(1, frozenset({STOP, SPLITS, CURSOR_OF_COUNT}))
        for number in range(24):
            self.append(number % 17)

    def read(self, partition, cursor, limit, *, stop=None):
        if partition == 0 and cursor == "2":
            self.layout = self.layout.redistribute(by=2)
        return super().read(partition, cursor, limit, stop=stop)


@pytest.mark.parametrize("place", PLACES)
def test_partition_that_is_replaced_in_an_export_that_fails(place, monkeypatch):
    """Wherever an export fails of which a partition was replaced, the next one adds the rest."""
    monkeypatch.setattr(export, "CHUNK_ROWS", 1)
    for most in range(10, 13):

        def fail(count, _, most=most):
            assert count < most

        one = f"{most}-{place}"
        with mounted(ReplacedFeed()) as url, no_pauses():
            with pytest.raises(AssertionError):
                export.export(url, one, page_size=2, progress=fail)
            export.export(url, one)
        found = [json.loads(row["data"])["n"] for row in rows_of(one)]
        assert sorted(found) == [*range(1, 25)], most


@pytest.mark.test_all
@pytest.mark.parametrize("place", PLACES)
def test_export_may_be_killed_at_any_point(url, place):
    """Whatever one process was about to do when it was killed, the next one completes it."""
    at, was_killed = 0, True
    while was_killed:
        at += 1
        one = f"{at}-{place}"
        was_killed = until_killed(exporting, url, one, 40, at)
        export.export(url, one)
        assert numbers(one) == expected(100)
    assert at > 30


def test_rows_and_cursors_are_those_of_a_read(url):
    """An export has the columns of a schema, and the cursors that a read has at its end."""
    schema = pa.schema({"n": pa.int64(), "partition": pa.int32()})
    read = read_arrow(url, schema=schema)
    read.reader.read_all()
    for place in PLACES:
        export.export(url, place, schema=schema)
        assert {tuple(row) for row in rows_of(place)} == {("n", "partition")}
    with duckdb.connect("out.duckdb") as database:
        found = database.sql("SELECT number, after FROM zeroeventhub_cursors").fetchall()
    assert dict(found) == read.cursors
    metadata = parquet.read_schema("out.parquet/00000000.parquet").metadata
    assert json.loads(metadata[b"zeroeventhub.cursors"]) == {
        str(partition): cursor for partition, cursor in read.cursors.items()
    }


@pytest.mark.parametrize("place", PLACES)
def test_other_columns_are_refused(sqlite, url, place):
    """Other columns are refused, whether there are new events or none, and the cursors stay."""
    export.export(url, place)
    others = pa.schema({"n": pa.int64()})
    with pytest.raises(ConfigurationError, match="has other columns"):
        export.export(url, place, schema=others)
    write(sqlite, 10, first=100, partitions=2)
    with pytest.raises(ConfigurationError, match="has other columns"):
        export.export(url, place, schema=others)
    assert export.export(url, place) == 10


def test_what_no_export_has_made_is_left_alone(url, tmp_path):
    """Files and tables of somebody else are not taken for an export."""
    with pytest.raises(ConfigurationError, match=r"ends in \.parquet"):
        export.export(url, "out.csv")
    (tmp_path / "file.parquet").write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match="is a file"):
        export.export(url, "file.parquet")
    (tmp_path / "out.parquet").mkdir()
    parquet.write_table(pa.table({"mine": [1]}), "out.parquet/mine.parquet")
    with pytest.raises(ConfigurationError, match="other Parquet files"):
        export.export(url, "out.parquet")
    with duckdb.connect("out.duckdb") as database:
        database.execute("CREATE TABLE events (mine INTEGER)")
    with pytest.raises(ConfigurationError, match="no export has made"):
        export.export(url, "out.duckdb")
    assert export.export(url, "out.duckdb", table="orders") == 100
    (tmp_path / "broken.duckdb").write_bytes(b"not a database")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        export.export(url, "broken.duckdb")


def test_second_export_into_a_folder_is_refused(url, monkeypatch):
    """Of two exports at once into one folder, one fails, and no event is there twice."""
    monkeypatch.setattr(export, "CHUNK_ROWS", 30)
    add, others = export.ParquetFolder.add, []

    def add_late(folder, rows, cursors):
        if not others:
            others.append(True)
            export.export(url, "out.parquet")
        add(folder, rows, cursors)

    monkeypatch.setattr(export.ParquetFolder, "add", add_late)
    with pytest.raises(ConfigurationError, match="Another export"):
        export.export(url, "out.parquet", page_size=10)
    assert numbers("out.parquet") == expected(100)
