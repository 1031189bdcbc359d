"""Feeds and consumers in other people's frameworks, over their models."""

import asyncio
import os
import runpy
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from harness.command_line import PATIENCE, address_of, logged, started
from harness.guides import guide
from harness.readers import get, mounted
from harness.shop import metadata, orders
from harness.waiting import until
from harness.web import serving
from sqlalchemy import String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from zeroeventhub import FIRST, LAST, Client, TableFeed
from zeroeventhub.errors import NotFound

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
            assert httpx.get(f"{address}/health").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=PATIENCE) in {0, -signal.SIGTERM}
        finally:
            process.kill()


@pytest.mark.anyio
async def test_application_whose_consumer_has_ended_is_not_healthy(sqlite, tmp_path, monkeypatch):
    """Once the feed refuses the consumer, /health answers 503; the shutdown says why."""
    monkeypatch.chdir(tmp_path)
    with mounted(TableFeed(orders, data="data"), sqlite) as url:
        monkeypatch.setenv("ORDERS", f"{url}/nothing")
        app = runpy.run_path(str(EXAMPLES / "fastapi_consumer.py"))["app"]
        transport = httpx.ASGITransport(app)
        with pytest.raises(NotFound):
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://app") as client,
            ):
                await asyncio.wait([app.state.running], timeout=PATIENCE)
                assert (await client.get("/health")).status_code == 503


DJANGO = EXAMPLES / "django_shop"
GUNICORN = ["-m", "gunicorn", "--no-control-socket", "--bind", "127.0.0.1:0"]
MANAGE = [DJANGO / "manage.py"]
SERVERS = {
    "flask": [*GUNICORN, "--pythonpath", EXAMPLES, "flask_shop:app"],
    "django": [*GUNICORN, "--chdir", DJANGO, "shop.wsgi"],
    "runserver": [*MANAGE, "runserver", "--noreload", "127.0.0.1:0"],
    "uvicorn": ["-m", "uvicorn", "--port", "0", "--app-dir", DJANGO, "shop.asgi:application"],
}


@contextmanager
def served(kind, folder, monkeypatch):
    """Serve the shop in Flask or Django; yields its address, and the command that bills."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # Django says in its output where it listens
    monkeypatch.setenv("SHOP_DATABASE", str(folder / "shop.db"))
    monkeypatch.setenv("SHOP_SQLALCHEMY_DATABASE_URI", f"sqlite:///{folder / 'shop.db'}")
    if kind == "flask":
        bill = [sys.executable, "-m", "flask", "--app", EXAMPLES / "flask_shop", "bill"]
    else:
        bill = [sys.executable, *MANAGE, "bill"]
        migrate = [sys.executable, *MANAGE, "migrate"]
        subprocess.run(migrate, check=True, capture_output=True)
    command = [sys.executable, *SERVERS[kind]]
    with logged([*map(str, command)], folder / "log") as server:
        yield server.url, [*map(str, bill)]


def order(shop, amount):
    """Place an order."""
    answer = httpx.post(f"{shop}/orders", json={"customer": "ann", "amount": amount})
    assert answer.status_code == 201, answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "invoices"),
    [
        ("flask", "invoices"),
        ("runserver", "shop_invoice"),
        pytest.param("uvicorn", "shop_invoice", marks=pytest.mark.test_all),
        pytest.param("django", "shop_invoice", marks=pytest.mark.test_all),
    ],
)
def test_shop_publishes_and_bills_its_orders(kind, invoices, tmp_path, monkeypatch):
    """The example serves its feed beside its pages, and bills each order once, though killed."""
    with served(kind, tmp_path, monkeypatch) as (shop, bill):

        def billed():
            with sqlite3.connect(tmp_path / "shop.db") as connection:
                rows = connection.execute(f"SELECT amount FROM {invoices} ORDER BY id").fetchall()
            return [amount for (amount,) in rows]

        for number in range(2):
            for amount in (1, 2, 3):
                order(shop, 10 * number + amount)
            with started(f"{shop}/feeds/orders", program=bill):  # which is killed in the end
                expected = [1, 2, 3, 11, 12, 13][: 3 * (number + 1)]
                until(lambda expected=expected: billed() == expected, "all is billed", PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flask", pytest.param("django", marks=pytest.mark.test_all)])
def test_readers_hold_no_worker(kind, tmp_path, monkeypatch):
    """Readers ask the only worker of the server to wait; it answers them and the host at once."""
    with served(kind, tmp_path, monkeypatch) as (shop, _):
        feed = f"{shop}/feeds/orders"
        cursor = Client(feed).fetch(0, LAST).cursor
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: get(feed, cursor=cursor, wait=30), range(4))
            order(shop, 7)
            assert [answer.status_code for answer in answers] == [200] * 4
        assert time.monotonic() - began < 30
        assert [event.data["amount"] for event in Client(feed).fetch(0, cursor).events] == [7]


def test_feed_is_mounted_where_the_application_says(sqlite):
    """FastAPI's routers and sub-applications put a feed below a path, as the guide says."""
    metadata.create_all(sqlite)
    with guide("frameworks.md", feed=TableFeed(orders, data="data"), engine=sqlite) as piece:
        app = piece("fastapi")["app"]
        with serving(app) as url:
            for path in ("/orders", "/api/v2/orders", "/shop/orders"):
                assert Client(f"{url}{path}").fetch(0, FIRST).caught_up
