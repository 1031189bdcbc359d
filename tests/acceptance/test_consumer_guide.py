"""The guide to consumers does what it says."""

import functools
import re
from pathlib import Path

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import JSON, Column, Integer, MetaData, Table, create_engine, text
from starlette.applications import Starlette

import zeroeventhub
from zeroeventhub import Client, CursorStore, TableFeed, feed_routes, lag

tables = MetaData()
invoices = Table("invoices", tables, Column("n", Integer))
archive = Table("archive", tables, Column("document", JSON))

GUIDE = (Path(__file__).parents[2] / "docs" / "consumers.md").read_text()


@pytest.fixture
def piece(sqlite, tmp_path):
    """Run a piece of the guide as it stands, beside a shop with five orders."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 5)
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        tables.create_all(connection)
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(Starlette(routes=routes)) as url, httpx.Client() as http:
        names = {
            "Consumer": functools.partial(zeroeventhub.Consumer, follow=False),
            "client": Client(f"{url}/orders", http),
            "store": store,
            "engine": engine,
            "lag": lag,
            "invoices": invoices,
            "archive": archive,
            "text": text,
            "apply": lambda connection, event: connection.execute(
                text("INSERT INTO invoices VALUES (:n)"), event.data
            ),
        }

        def piece(marker):
            code = re.search(rf"<!-- {marker} -->\n```python\n(.*?)```", GUIDE, re.DOTALL)[1]
            exec(compile(code, marker, "exec"), names)
            with engine.connect() as connection:
                return list(connection.scalars(text("SELECT n FROM invoices ORDER BY n")))

        yield piece
    engine.dispose()


def test_projection_is_rebuilt_by_the_guide(piece, capsys):
    """The loop applies each event once, and again behind a reset; the lag says so on the way."""
    piece("lag")
    assert capsys.readouterr().out.startswith("0 5 ")
    assert piece("loop") == [0, 1, 2, 3, 4]
    assert piece("loop") == [0, 1, 2, 3, 4]
    piece("lag")
    assert capsys.readouterr().out.startswith("0 0 ")
    assert piece("rebuild") == []
    assert piece("loop") == [0, 1, 2, 3, 4]


def test_pages_are_inserted_by_the_guide(piece, tmp_path):
    """Pages become rows by the names of columns, and whole documents by a function."""
    assert piece("insert") == [0, 1, 2, 3, 4]
    piece("insert_rows")
    engine = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
    with engine.connect() as connection:
        documents = list(connection.scalars(archive.select()))
    engine.dispose()
    assert documents == [{"n": number} for number in range(5)]


def test_guide_names_the_columns_of_what_run_hands_over():
    """Every kind of transaction and of argument that `apply` may ask for is in the tables."""
    for name in ("Connection", "Session", "AsyncConnection", "AsyncSession", "psycopg.Connection"):
        assert f"`{name}`" in GUIDE
    for name in ("PendingPage", "AsyncPendingPage", "Event", "TypedDict", "Struct"):
        assert f"`{name}`" in GUIDE
