"""A feed over other people's models, and its tables in their migrations."""

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from harness.command_line import PATIENCE, address_of
from harness.readers import mounted
from harness.shop import metadata, orders, place
from harness.waiting import until
from sqlalchemy import MetaData, String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from zeroeventhub import FIRST, EventLog, TableFeed, cursor_metadata
from zeroeventhub.errors import ConfigurationError

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_orm_class_is_published(sqlite):
    """A class mapped by the ORM is published like its table, columns named by attribute."""

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orm_orders"
        __table_args__ = {"sqlite_autoincrement": True}
        id: Mapped[int] = mapped_column(primary_key=True)
        part: Mapped[int]
        customer: Mapped[str] = mapped_column(String(40))

    Base.metadata.create_all(sqlite)
    with Session(sqlite) as session, session.begin():
        session.add(Order(part=1, customer="c1"))
    data = {"who": Order.customer, "loud": Order.customer + "!"}
    feed = TableFeed(Order, position=Order.id, partition=Order.part, partitions=2, data=data)
    (event,) = feed.bind(sqlite).read(1, FIRST, 10).events
    assert event.data == {"who": "c1", "loud": "c1!"}


def test_alembic_sees_the_tables_of_the_store_and_of_a_log(any_engine):
    """Alembic compares the exported metadata: tables to add with their indexes, then nothing."""
    log = MetaData()
    EventLog(log, "orders", partitions=8)
    for known, indexes in ((cursor_metadata, 0), (log, 2)):
        with any_engine.connect() as connection:
            context = MigrationContext.configure(connection)
            kinds = [kind for kind, _ in compare_metadata(context, known)]
            assert kinds == ["add_table"] * len(known.tables) + ["add_index"] * indexes
            known.create_all(connection)
            assert compare_metadata(MigrationContext.configure(connection), known) == []
            known.drop_all(connection)
            connection.commit()


def migrating(connection):
    """Be in a migration of Alembic's."""
    return Operations.context(MigrationContext.configure(connection))


@pytest.mark.parametrize(
    ("database", "ordering"),
    [("postgresql", "gated"), *product(("postgresql", "mariadb", "sqlite"), ["sequenced"])],
)
def test_alembic_installs_an_ordering_and_leaves_its_tables_alone(request, database, ordering):
    """A migration installs or uninstalls an ordering in a line; autogenerate drops none of it."""
    engine = request.getfixturevalue(database)
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    names = {"include_name": lambda name, kind, _: kind != "table" or "zeroeventhub" not in name}
    with engine.begin() as connection, migrating(connection) as operations:
        source.install(operations.get_bind())
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts=names)
        assert compare_metadata(context, metadata) == []
        place(connection, 1)
    assert source.bind(engine).read(0, FIRST, 1).events[0].data == {"n": 0}
    with engine.begin() as connection, migrating(connection) as operations:
        source.uninstall(operations.get_bind())
    with pytest.raises(ConfigurationError):
        source.bind(engine).info()


def test_consumer_in_a_lifespan_leaves_signals_to_its_server(sqlite, tmp_path):
    """The example consumes while FastAPI serves; one SIGTERM ends both, and nothing is lost."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        rows = [{"customer": "ann", "data": {"customer": "ann", "amount": n}} for n in range(3)]
        connection.execute(insert(orders), rows)
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "--app-dir", str(EXAMPLES)]
    with (
        mounted(TableFeed(orders, data="data"), sqlite) as url,
        subprocess.Popen(
            [*command, "fastapi_consumer:app"],
            cwd=tmp_path,
            env={**os.environ, "ORDERS": url},
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            address = address_of(process)
            until(
                lambda: httpx.get(f"{address}/invoices").json() == {"invoices": 3},
                "all orders are invoiced",
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE) in {0, -signal.SIGTERM}
        finally:
            process.kill()
