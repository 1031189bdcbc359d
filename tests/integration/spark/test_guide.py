"""The guide to Spark does what it says."""

import json

import httpx
import pytest
from harness.guides import guide
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import create_engine, insert, text
from starlette.applications import Starlette

from zeroeventhub import Client, TableFeed, feed_routes

INVOICES = [("ada", 12.0), ("bob", 7.5), ("ada", 3.25), ("eve", 8.0)]


@pytest.mark.test_all
def test_pieces_of_the_guide_run_as_they_stand(spark, sqlite, tmp_path, capsys):
    """A reader of the guide gets every event in batches, in streams, and applied once."""
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
            assert piece("batch")["orders"].count() == len(INVOICES)
            found = piece("schema")["orders"].groupBy("customer").sum("amount").collect()
            sums = {row[0]: float(row[1]) for row in found}
            assert sums == {"ada": 15.25, "bob": 7.5, "eve": 8.0}
            piece("stream")
            assert spark.read.parquet(f"{tmp_path}/orders").count() == len(INVOICES)
            capsys.readouterr()
            piece("lag")
            assert capsys.readouterr().out == "0 0\n"
            names = piece("foreach_batch")
            names["query"].processAllAvailable()
            names["query"].stop()
            again = spark.read.format("zeroeventhub").schema("customer STRING, amount DOUBLE")
            names["invoice"](again.load(url), 0)
        with engine.connect() as connection:
            applied = connection.execute(text("SELECT customer, amount FROM invoices")).all()
    assert sorted((who, float(amount)) for who, amount in applied) == sorted(INVOICES)
