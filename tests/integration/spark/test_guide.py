"""The guide to Spark does what it says."""

import json
import re
from pathlib import Path

import httpx
import pytest
from harness.guides import guide
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import create_engine, insert, text
from starlette.applications import Starlette

from zeroeventhub import Client, TableFeed, feed_routes

GUIDE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
INVOICES = [("ada", 12.0), ("bob", 7.5), ("ada", 3.25), ("eve", 8.0)]


@pytest.fixture
def piece(spark, sqlite, tmp_path):
    """Run a piece of the guide as it stands, beside a shop with some orders; return its names."""
    metadata.create_all(sqlite)
    rows = [{"data": {"customer": who, "amount": amount}} for who, amount in INVOICES]
    with sqlite.begin() as connection:
        connection.execute(insert(orders), rows)
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE applied (batch INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE invoices (customer TEXT, amount NUMERIC)"))
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    given = {"engine": engine, "json": json, "lake": str(tmp_path), "spark": spark, "text": text}
    with serving(Starlette(routes=routes)) as base, httpx.Client() as http:
        url = f"{base}/orders"
        with guide("spark.md", client=Client(url, http), url=url, **given) as piece:
            yield piece


def named(heading):
    """The names in the first column of the table under a heading of the guide."""
    table = GUIDE.partition(f"## {heading}")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    return re.findall(r"`(\w+)`", " ".join(row.partition(" | ")[0] for row in table.splitlines()))


def test_every_piece_of_the_guide_is_run_here():
    """No piece of Python stands in the guide that is not tried."""
    assert len(re.findall("```python", GUIDE)) == len(re.findall(r"<!-- \w+ -->\n```python", GUIDE))
    source = Path(__file__).read_text()
    assert all(f'piece("{name}")' in source for name in re.findall(r"<!-- (\w+) -->", GUIDE))


@pytest.mark.test_all
def test_batches_of_the_guide_count_and_add_up(piece):
    """A batch has all events and the guide's columns, and a schema makes more of what they say."""
    names = piece("batch")
    assert names["orders"].count() == len(INVOICES)
    reader = names["spark"].read.format("zeroeventhub").option("includeHeaders", "true")
    assert sorted(named("Columns")) == sorted(reader.load(names["url"]).columns)
    found = piece("schema")["orders"].groupBy("customer").sum("amount").collect()
    assert {row[0]: float(row[1]) for row in found} == {"ada": 15.25, "bob": 7.5, "eve": 8.0}


@pytest.mark.test_all
def test_stream_of_the_guide_reads_everything(piece, capsys, tmp_path):
    """The stream ends when all is in files, and no event is left to read."""
    names = piece("stream")
    assert names["spark"].read.parquet(f"{tmp_path}/orders").count() == len(INVOICES)
    capsys.readouterr()
    piece("lag")
    assert capsys.readouterr().out == "0 0\n"


@pytest.mark.test_all
def test_micro_batch_of_the_guide_is_applied_once(piece):
    """What a stream applies is there once, though it is told again."""
    names = piece("foreach_batch")
    names["query"].processAllAvailable()
    names["query"].stop()
    again = names["spark"].read.format("zeroeventhub").schema("customer STRING, amount DOUBLE")
    names["invoice"](again.load(names["url"]), 0)
    with names["engine"].connect() as connection:
        found = connection.execute(text("SELECT customer, amount FROM invoices")).all()
    assert sorted((who, float(amount)) for who, amount in found) == sorted(INVOICES)
