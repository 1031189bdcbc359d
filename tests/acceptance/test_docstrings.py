"""Every public class shows an example in its docstring, which runs as it stands."""

import ast
import asyncio
import inspect
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from textwrap import dedent
from unittest.mock import Mock

import httpx
import pytest
import sqlalchemy as sa
from harness.readers import engine_of, mounted
from harness.shop import fill, orders
from harness.stores import new_store
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware

from zeroeventhub import (
    FIRST,
    AsyncClient,
    Client,
    CursorStore,
    EventLog,
    NewEvent,
    Retention,
    TableFeed,
)
from zeroeventhub.archive import Archive

ROOMS = ("archive", "spark", "telemetry", "testing")
MODULES = ["zeroeventhub", *(f"zeroeventhub.{name}" for name in ROOMS)]
NAMES = {
    name: getattr(module, name) for module in map(import_module, MODULES) for name in module.__all__
}
CLASSES = [name for name, value in NAMES.items() if isinstance(value, type)]
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n)+)", re.MULTILINE)


@pytest.fixture
def shop(sqlite):
    """What examples find in a database: orders, a log, accounts, and the tables of a store."""
    metadata = sa.MetaData()
    log = EventLog(metadata, "log", partitions=2, append=True, snapshots=True)
    movements = sa.Table(
        "movements",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("account", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("amount", sa.Integer, nullable=False),
        sa.UniqueConstraint("account", "number"),
        sqlite_autoincrement=True,
    )
    metadata.create_all(fill(sqlite, 5))
    with sqlite.begin() as connection:
        connection.execute(orders.update().values(placed=datetime.now(UTC)))
        TableFeed(orders, data="data", retention=Retention()).install(connection)
        paid = [NewEvent("order.paid", {"order": 17}), NewEvent("order.sent", {"order": 17})]
        log.append_to(connection, "17", paid, expected_version=0)
    return {"engine": sqlite, "store": new_store(sqlite), "log": log, "movements": movements}


async def run_async(code, names, url):
    """Run an example that awaits, with a client, an engine and a store that do as well."""
    engine, apply_sync = engine_of("async", names["engine"]), names["apply"]

    async def apply(connection, page):
        apply_sync(connection, page)

    async with httpx.AsyncClient() as http:
        own = {"client": AsyncClient(url, http), "engine": engine, "store": CursorStore(engine)}
        names = {**names, **own, "apply": apply}
        if (awaitable := eval(code, names)) is not None:
            await awaitable
        if "Relay" in names:
            assert (await names["Relay"]().read(0, FIRST, 1)).events
    await engine.dispose()


@pytest.mark.parametrize("name", CLASSES)
def test_example_of_a_class_runs(name, shop, tmp_path, monkeypatch):
    """A public class has an example, which runs as it stands, but for addresses and folders."""
    found = EXAMPLE.search(f"{inspect.getdoc(NAMES[name])}\n")
    assert found, f"{name} shows no example."
    monkeypatch.setenv("BILLING_TOKEN", "canary-0123456789abcdef")
    monkeypatch.setattr("zeroeventhub.telemetry.prometheus.REGISTRY", CollectorRegistry())
    served = mounted(shop["log"].feed(cloudevents=True, key_history=True), shop["engine"])
    applied = []
    with served as url, httpx.Client() as http:
        client, text = Client(url, http), dedent(found[1])
        if "s3://bucket/orders" in text:  # where a feed has been sealed before
            archive = Archive(tmp_path / "bucket/orders", cache=tmp_path / "own")
            sealed = TableFeed(orders, data="data", retention=Retention(), archive=archive)
            sealed.bind(shop["engine"]).seal()
        text = text.replace("https://shop.example/orders", url)
        text = text.replace("s3://bucket", f"{tmp_path}/bucket")
        text = text.replace("/var/cache", f"{tmp_path}/cache")
        code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names = {
            **NAMES,
            **shop,
            **{made.__name__: made for made in (Middleware, Starlette, replace, timedelta)},
            "MetaData": sa.MetaData,
            "httpx": httpx,
            "os": os,
            "orders": orders,
            "http": http,
            "client": client,
            "page": client.fetch(0, FIRST),
            "feed": TableFeed(orders, data="data", partition="part", partitions=4),
            "apply": lambda _, page: applied.extend(page.events),
            "spark": Mock(),  # tests/integration/spark has a real one
            "start_http_server": Mock(),
            **{one: partial(NAMES[one], follow=False) for one in ("Consumer", "AsyncConsumer")},
        }
        if "async " in text:
            asyncio.run(run_async(code, names, url))
        else:
            exec(code, names)
        for feed in {"Numbers", "Relay"} & names.keys():
            assert names[feed]().read(0, FIRST, 1).events
    assert bool(applied) is ("apply" in text)
