"""What the tutorial's consumers share: a database for each, and a client of the shop's feed."""

import os

from sqlalchemy import Engine, create_engine

from zeroeventhub import Client, CursorStore

URL = os.environ.get("SHOP", "http://127.0.0.1:8000/orders")
LEASE = 3.0
"""Seconds after which another process reads the partitions of one that died."""


def opened(database: str) -> tuple[Engine, CursorStore]:
    """Open a consumer's database, and create the tables of its cursors."""
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 30})
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
    return engine, store


def client() -> Client:
    """Return a client of the shop's feed."""
    return Client(URL)
