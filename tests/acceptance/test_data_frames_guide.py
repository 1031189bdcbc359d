"""The guide to data frames: its pieces, its commands and its example, on the README's shop."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from harness.command_line import PATIENCE, invoke
from harness.guides import DOCUMENTS, block, guide
from harness.readers import client_of, mounted
from harness.shop import fill, orders
from harness.spark_reading import read as read_by_spark
from harness.statements import add
from harness.stores import new_store
from sqlalchemy import create_engine

from zeroeventhub import Consumer, TableFeed, read_arrow

pytestmark = pytest.mark.usefixtures("empty_folder")

EXAMPLES = DOCUMENTS.parent / "examples"
ADDRESS = "http://127.0.0.1:8000/orders"
PLACED = [{"customer": "ada", "amount": 12}, {"customer": "bob", "amount": 7.5}]


@pytest.fixture
def url(sqlite):
    """The URL of the shop."""
    add(fill(sqlite, 0), orders, [{"data": data} for data in PLACED])
    with mounted(TableFeed(orders, data="data"), sqlite, arrow=True) as url:
        yield url


@pytest.fixture
def piece(url):
    """A function that runs a piece of the guide."""
    engine = create_engine("sqlite:///billing.db")
    given = {"url": url, "pl": pl, "pa": pa, "pc": pc, "duckdb": duckdb, "engine": engine}
    with guide("data_frames.md", **given, store=new_store(engine), read_arrow=read_arrow) as piece:
        yield piece


def test_three_lines_for_each_library(piece):
    """Polars, DuckDB, pandas and a loop have the orders of the feed."""
    texts = [json.loads(text) for text in piece("polars")["orders"]["data"]]
    assert texts == PLACED
    assert piece("duckdb")["counts"] == [(0, 2)]
    assert len(piece("pandas")["frame"]) == 2
    assert piece("batches")["amount"] == 19.5


def test_schema_types_columns(sqlite, piece):
    """Members of events have the types of the schema, and what does not fit has a column."""
    add(sqlite, orders, [{"data": {"amount": "much"}}])
    amounts = piece("schema")["orders"]
    assert amounts["amount"].to_list() == [12, pl.Series([7.5]).cast(pl.Decimal(10, 2))[0], None]
    assert amounts["_corrupt_record"].null_count() == 2


def test_limits_let_large_events_in(sqlite, piece):
    """An event that a client would refuse is read with the limits of the guide."""
    add(sqlite, orders, [{"data": {"customer": "x" * (9 << 20)}}])
    assert len(piece("large")["orders"]) == 3


def test_next_read_consumer_and_spark_go_on(sqlite, url, piece):
    """Later events are read once: by the next read, a consumer or Spark, each from the cursors."""
    names = piece("goes_on")
    piece("consumer")
    assert (len(names["table"]), len(names["later"].reader.read_all())) == (2, 0)
    add(sqlite, orders, [{"data": {"customer": "cy", "amount": 1}}])
    with client_of(url) as client:
        page = next(iter(Consumer(client, names["store"], "billing", follow=False)))
    rows = read_by_spark(url, startingOffsets=json.dumps(names["read"].cursors))
    late = read_arrow(url, start=names["read"].cursors).reader.read_all().to_pylist()
    assert [row["data"] for row in rows] == [row["data"] for row in late]
    assert [event.data["customer"] for event in page.events] == ["cy"]


def commands():
    """The commands of the guide, each with what it says."""
    return re.findall(r"\$ (.*)\n(.*)\n", block("data_frames.md", "export"))


def test_commands_say_what_the_guide_shows(url):
    """The commands of the guide export the orders."""
    for command, shown in commands():
        _, *words = shlex.split(command.replace(ADDRESS, url))
        done = invoke(*words)
        assert (done.exit_code, done.stderr.splitlines()[-1]) == (0, shown)
    Path("orders.parquet/.00000001.parquet.77.draft").write_bytes(b"PAR1")  # of a killed export
    assert pl.read_parquet("orders.parquet/*.parquet").height == 2
    assert duckdb.sql("SELECT count(*) FROM 'orders.parquet'").fetchall() == [(2,)]
    with duckdb.connect("orders.duckdb") as database:
        found = database.sql("SELECT customer, amount FROM orders").fetchall()
    assert found == [("ada", 12.0), ("bob", 7.5)]


@contextmanager
def example_at(url, name):
    """Yield a function that runs an example at another address, and returns what it prints."""
    program = Path(name)
    program.write_text((EXAMPLES / name).read_text().replace(ADDRESS, url))

    def start():
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield start


@pytest.mark.slow
def test_example_goes_on_where_it_ended(sqlite, url):
    """The example prints all orders, and when it is run again the new ones."""
    with example_at(url, "data_frames.py") as start:
        first = start()
        add(sqlite, orders, [{"data": {"customer": "cy", "amount": 1}}])
        second = start()
    assert "New orders: 2, of 19.5 in all" in first
    assert "New orders: 1, of 1.0 in all" in second
