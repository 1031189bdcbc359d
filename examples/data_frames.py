"""Read the shop's orders into data frames, and go on from there when it is run again."""

import json
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from zeroeventhub import read_arrow

url = "http://127.0.0.1:8000/orders"
schema = pa.schema({"customer": pa.string(), "amount": pa.float64()})

# All orders, in a data frame of Polars and in one of pandas.
orders = pl.DataFrame(read_arrow(url, schema=schema, progress=True))
print(orders.group_by("customer").agg(pl.col("amount").sum()).sort("customer"))
print(read_arrow(url, schema=schema).reader.read_pandas().describe())

# What is new since the last run, in DuckDB.
kept = Path("cursors.json")
new = read_arrow(url, schema=schema, start=json.loads(kept.read_text()) if kept.exists() else None)
(row,) = duckdb.sql("SELECT count(*), sum(amount) FROM new").fetchall()
print(f"New orders: {row[0]}, of {row[1]} in all")
kept.write_text(json.dumps(new.cursors))
