"""`zeroeventhub export`."""

import json

import duckdb
import pytest
from harness.command_line import invoke, output_of
from harness.shop import orders, write
from pyarrow import parquet
from sqlalchemy import insert


@pytest.mark.parametrize("place", ["out.parquet", "out.duckdb"])
def test_events_are_exported_once(sqlite, feed, tmp_path, place):
    """The command exports what there is, adds what is new, and says how much."""
    command = ("export", feed, "--to", tmp_path / place)
    first = invoke(*command)
    assert (first.exit_code, first.stdout) == (0, "")
    assert f"Events exported to {tmp_path / place}: 100\n" in first.stderr
    write(sqlite, 5, first=100)
    again = invoke(*command, "--json")
    assert json.loads(again.stdout) == {"exported": 5, "to": str(tmp_path / place)}


def test_columns_and_table_are_those_that_are_asked_for(feed, tmp_path):
    """Members of events become columns of a type, in a table of a name."""
    columns = (
        "--column",
        "subject:string",
        "--column",
        "time:timestamp",
        "--column",
        "shop:name:string",
        "--column",
        "price:decimal(10,2)",
    )
    output_of("export", feed, "--to", tmp_path / "a.parquet", *columns)
    schema = parquet.read_schema(tmp_path / "a.parquet" / "00000000.parquet")
    assert [(one.name, str(one.type)) for one in schema] == [
        ("subject", "string"),
        ("time", "timestamp[us, tz=UTC]"),
        ("shop:name", "string"),
        ("price", "decimal128(10, 2)"),
    ]
    to = ("--to", tmp_path / "a.duckdb", "--table", "orders", "--column", "id:string")
    output_of("export", feed, *to, "--partition", 0, "--no-segments", "--readers", 1)
    with duckdb.connect(tmp_path / "a.duckdb") as database:
        assert database.sql("SELECT count(*), max(id) FROM orders").fetchall() == [(50, "99")]


def test_event_may_fill_a_page(sqlite, feed, tmp_path):
    """The command takes events that other commands refuse as too large."""
    with sqlite.begin() as connection:
        connection.execute(insert(orders).values(data={"text": "x" * (9 << 20)}))
    done = invoke("export", feed, "--to", tmp_path / "out.parquet")
    assert f"Events exported to {tmp_path / 'out.parquet'}: 101\n" in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--to", "out.csv"), "ends in .parquet"),
        (("--to", "out.parquet", "--column", "n:number"), "written as NAME:TYPE"),
        (("--to", "out.parquet", "--column", "n"), "written as NAME:TYPE"),
        (("--to", "out.parquet", "--column", "n:"), "written as NAME:TYPE"),
        (("--to", "out.parquet", "--column", "n:decimal(99,2)"), "written as NAME:TYPE"),
        (("--to", "out.parquet", "--column", "n:int64", "--column", "n:string"), "one name"),
    ],
)
def test_what_cannot_work_is_told(feed, empty_folder, options, sentence):
    """A wrong option ends the command with a sentence, before anything is exported."""
    done = invoke("export", feed, *options)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
    assert [*empty_folder.glob("out.*")] == []
