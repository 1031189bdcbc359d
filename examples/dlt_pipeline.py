"""Load what is new of the shop's orders into a lake of DuckDB, by dlt."""

import dlt

from zeroeventhub.dlt import feed_resource

orders = feed_resource("http://127.0.0.1:8000/orders", name="orders")
lake = dlt.destinations.duckdb("lake.duckdb")
pipeline = dlt.pipeline("shop", destination=lake, dataset_name="raw")
print(pipeline.run(orders))
