"""Feeds and consumers in other people's frameworks, over their models."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from harness.command_line import PATIENCE, address_of
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.waiting import until
from sqlalchemy import String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from zeroeventhub import FIRST, TableFeed

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
