"""A feed inside other people's applications, tables, models and migrations."""

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from fastapi import FastAPI
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import MetaData, String, create_engine, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.applications import Starlette
from starlette.routing import Mount

from zeroeventhub import FIRST, CursorStore, EventLog, TableFeed, feed_routes
from zeroeventhub.cursors import metadata as cursor_metadata
from zeroeventhub.cursors import tables
from zeroeventhub.errors import ConfigurationError


def fastapi_from_the_start(routes):
    """Give the routes to FastAPI when it is made."""
    return FastAPI(routes=routes)


def fastapi_later(routes):
    """Add the routes to a FastAPI application that has its own."""
    application = FastAPI()
    application.router.routes.extend(routes)
    return application


def starlette_mount(routes):
    """Mount the routes below a path of Starlette."""
    return Starlette(routes=[Mount("/api", routes=routes)])


@pytest.mark.parametrize(
    ("build", "prefix"),
    [(fastapi_from_the_start, ""), (fastapi_later, ""), (starlette_mount, "/api")],
)
def test_routes_fit_the_frameworks(sqlite, build, prefix):
    """The same routes work in FastAPI and below a Mount, and answer without a redirect."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 2)
    routes = feed_routes("/orders", TableFeed(orders, data="data"), sqlite)
    with serving(build(routes)) as url, httpx.Client(base_url=url + prefix) as session:
        assert session.get("/orders").json()["token"] == "1"
        assert session.head("/orders").status_code == 200
        query = {"token": "1", "partition": 0, "cursor": FIRST}
        assert session.get("/orders/events", params=query).text.count("data") == 2
        assert session.post("/orders").status_code == 405


def test_orm_class_is_published(engine):
    """A class mapped by the ORM is published like its table, columns named by attribute."""

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orm_orders"
        __table_args__ = {"sqlite_autoincrement": True}
        id: Mapped[int] = mapped_column(primary_key=True)
        part: Mapped[int]
        customer: Mapped[str] = mapped_column(String(40))

    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(part=1, customer="c1"))
    feed = TableFeed(
        Order,
        position=Order.id,
        partition=Order.part,
        partitions=2,
        data={"who": Order.customer, "loud": Order.customer + "!"},
    )
    (event,) = feed.bind(engine).read(1, FIRST, 10).events
    assert event.data == {"who": "c1", "loud": "c1!"}


def test_alembic_sees_the_tables_of_the_store(engine):
    """The exported metadata is what Alembic compares: tables to add, then nothing to do."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        differences = compare_metadata(context, cursor_metadata)
        assert {kind for kind, _ in differences} == {"add_table"}
        assert {table.name for _, table in differences} == set(cursor_metadata.tables)
        cursor_metadata.create_all(connection)
        assert compare_metadata(context, cursor_metadata) == []


def test_alembic_sees_the_table_of_a_log(engine):
    """A log is a table of its metadata: one to add with its indexes, and then nothing to do."""
    metadata = MetaData()
    EventLog(metadata, "orders", partitions=8)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        differences = compare_metadata(context, metadata)
        assert [kind for kind, _ in differences] == ["add_table", "add_index", "add_index"]
        metadata.create_all(connection)
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize(
    ("database", "ordering"),
    [
        ("postgresql", "gated"),
        ("postgresql", "sequenced"),
        ("mariadb", "sequenced"),
        ("sqlite", "sequenced"),
    ],
)
def test_alembic_installs_an_ordering(request, database, ordering):
    """A migration that installs and uninstalls an ordering is two lines, run by Alembic itself."""
    engine = request.getfixturevalue(database)
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context) as operations:
            source.install(operations.get_bind())
    with engine.begin() as connection:
        place(connection, 1)
    assert source.bind(engine).read(0, FIRST, 1).events[0].data == {"n": 0}
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context) as operations:
            source.uninstall(operations.get_bind())
    with pytest.raises(ConfigurationError):
        source.bind(engine).info()


def test_alembic_leaves_the_tables_of_an_ordering_alone(engine):
    """With the name filter of the documentation, autogenerate does not drop what is beside."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        TableFeed(orders, data="data", ordering="sequenced").install(connection)
    filter_ = {"include_name": include_name}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=filter_)
        assert compare_metadata(context, metadata) == []


def include_name(name, type_, parent_names):
    """Tell Alembic which names are the application's."""
    return type_ != "table" or not name.startswith("zeroeventhub_")


def test_tables_of_the_store_join_metadata_of_ones_own(tmp_path):
    """The tables of the store can be part of the caller's own metadata."""
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    own = MetaData()
    store = CursorStore(engine, tables=tables(own))
    with engine.begin() as connection:
        store.create_tables(connection)
        assert set(inspect(connection).get_table_names()) == set(own.tables)
        assert store.load(connection, "x", 0).cursor == FIRST
    engine.dispose()
