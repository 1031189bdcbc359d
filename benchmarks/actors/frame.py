"""Read a history into a frame of columns: from a feed, or from the database itself."""

from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
from sqlalchemy import create_engine

from benchmarks.actors.speaking import perform
from zeroeventhub import read_arrow

MEMBERS = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.string(),
        "amount": pa.float64(),
        "items": pa.int64(),
        "placed": pa.timestamp("us", "UTC"),
    }
)
DATA = pa.schema({"data": pa.string()})

COLUMNS = {
    "data": "data::text AS data",
    "members": "(data->>'id')::bigint AS id, data->>'customer' AS customer, "
    "(data->>'amount')::double precision AS amount, (data->>'items')::bigint AS items, "
    "(data->>'placed')::timestamptz AS placed",
}
"""The same columns in SQL."""

_EXTENSION = "duckdb_ext/extensions/v*/*/postgres_scanner.duckdb_extension"
"""Where the package duckdb-ext-postgres has the extension: DuckDB would download it."""


def from_feed(order: dict[str, Any]) -> Sized:
    """Read a feed."""
    schema = MEMBERS if order["columns"] == "members" else DATA
    return pa.table(read_arrow(order["url"], schema=schema, segment_origins=["file://"]))


def by_scanner(order: dict[str, Any]) -> Sized:
    """Read a table by DuckDB, which gives PostgreSQL the query in as many parts as it has threads.

    The members are taken out of the documents by DuckDB, in all its threads.
    """
    with duckdb.connect() as database:
        (extension,) = Path(duckdb.__file__).parents[1].glob(_EXTENSION)
        database.execute(f"LOAD '{extension}'")
        database.execute(f"ATTACH '{order['database']}' AS shop (TYPE postgres, READ_ONLY)")
        query = f"SELECT {COLUMNS[order['columns']]} FROM shop.{order['table']}"  # noqa: S608
        return database.execute(query).fetch_arrow_table()


def by_pandas(order: dict[str, Any]) -> Sized:
    """Read a table by pandas, of whose query PostgreSQL makes the columns."""
    engine = create_engine(order["engine"])
    query = f"SELECT {COLUMNS[order['columns']]} FROM {order['table']}"  # noqa: S608
    return pd.read_sql(query, engine)


WAYS: dict[str, Callable[[dict[str, Any]], Sized]] = {
    "feed": from_feed,
    "scanner": by_scanner,
    "pandas": by_pandas,
}


def main() -> None:
    """Read in the way that each line says."""
    perform(lambda order: {"events": len(WAYS[order["way"]](order))})


if __name__ == "__main__":
    main()
