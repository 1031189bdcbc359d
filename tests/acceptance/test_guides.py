"""The guides do what they say: each piece of their code runs as it stands."""

import functools
import re
import shlex
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import pyarrow.parquet
import pytest
import sqlalchemy as sa
from harness.guides import DOCUMENTS, block, guide
from harness.published import install
from harness.readers import client_of, mounted
from harness.shop import fill, orders
from harness.statements import add, execute, scalars
from harness.stores import new_store
from harness.trimmed import numbers, trim
from harness.web import serving
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.middleware import Middleware

import zeroeventhub
from zeroeventhub import FIRST, Client, ExpectedVersion, NewEvent, TableFeed, feed_routes
from zeroeventhub.errors import Conflict, Trimmed
from zeroeventhub.wire.arrow import EVENTS

pytestmark = pytest.mark.usefixtures("empty_folder")


# Pages in columns.


def test_feed_becomes_a_file(sqlite):
    """All events of a feed are written into a file, as they were published."""
    feed = TableFeed(orders, data="data")
    with mounted(feed, fill(sqlite, 12), arrow=True) as url, httpx.Client() as http:
        given = {"pyarrow": pyarrow, "EVENTS": EVENTS, "FIRST": FIRST, "client": Client(url, http)}
        with guide("arrow.md", **given) as piece:
            piece("arrow")
        expected = [event.raw.decode() for event in given["client"].fetch(0, FIRST).events]
    assert pyarrow.parquet.read_table("orders.parquet")["data"].to_pylist() == expected
    assert len(expected) == 12


# Consumers.


@pytest.fixture
def consuming(sqlite):
    """A function that runs a piece beside a shop of five orders, and returns the invoices."""
    engine, tables = sa.create_engine("sqlite:///billing.db"), sa.MetaData()
    sa.Table("invoices", tables, sa.Column("n", sa.Integer))
    sa.Table("archive", tables, sa.Column("document", sa.JSON))
    tables.create_all(engine)
    with mounted(TableFeed(orders, data="data"), fill(sqlite, 5)) as url, httpx.Client() as http:
        given = {
            "Consumer": functools.partial(zeroeventhub.Consumer, follow=False),
            "client": Client(url, http),
            "store": new_store(engine),
            "engine": engine,
            "lag": zeroeventhub.lag,
            **tables.tables,
            "text": sa.text,
            "apply": lambda connection, event: connection.execute(
                sa.text("INSERT INTO invoices VALUES (:n)"), event.data
            ),
        }
        with guide("consumers.md", **given) as piece:

            def run(mark, shown="n FROM invoices ORDER BY n"):
                piece(mark)
                return scalars(engine, f"SELECT {shown}")

            yield run


def test_projection_is_rebuilt(consuming, capsys):
    """The loop applies each event once, and again after a reset; the lag says so on the way."""
    consuming("lag")
    assert capsys.readouterr().out.startswith("0 5 ")
    assert consuming("loop") == [0, 1, 2, 3, 4]
    assert consuming("loop") == [0, 1, 2, 3, 4]
    consuming("lag")
    assert capsys.readouterr().out.startswith("0 0 ")
    assert consuming("rebuild") == []
    assert consuming("loop") == [0, 1, 2, 3, 4]


def test_pages_are_inserted(consuming):
    """Pages become rows by the names of columns, and whole documents by a function."""
    assert consuming("insert") == [0, 1, 2, 3, 4]
    documents = consuming("insert_rows", "json_extract(document, '$.n') FROM archive")
    assert documents == [0, 1, 2, 3, 4]


def test_letters_are_decided_in_code(consuming, capsys):
    """The piece shows each dead letter, retries one, and discards the others."""
    engine = sa.create_engine("sqlite:///billing.db")
    letters = zeroeventhub.CursorStore(engine).dead_letters
    with engine.begin() as connection:
        for n in (1, 2):
            event, error = zeroeventhub.Event.of({"n": n}), ValueError("no")
            letters.add(connection, "billing", 0, event, key=None, error=error, tries=3)
    assert consuming("letters", "id, state FROM zeroeventhub_dead_letters") == [2]
    engine.dispose()
    assert capsys.readouterr().out == "1 failed 3 ValueError: no\n2 failed 3 ValueError: no\n"


# Retention.


def test_renamed_table_keeps_its_mark_and_its_consumers(engine):
    """After a table was renamed, late cursors are refused, and trimming waits for consumers."""
    options = {"data": "data", "retention": zeroeventhub.Retention()}
    options["progress"] = zeroeventhub.Progress()
    install(TableFeed(orders, **options), fill(engine, 20))
    feed = TableFeed(orders, **options).bind(engine)
    late, billing = (feed.read(0, FIRST, count).cursor for count in (4, 12))
    feed.register_progress("billing", 0, billing)
    trim(feed, 9)
    execute(engine, *block("retention.md", "renamed").strip().split("\n"))
    events = orders.to_metadata(sa.MetaData(), name="events")
    feed = TableFeed(events, **options).bind(engine)
    with pytest.raises(Trimmed):
        feed.read(0, late, 20)
    assert numbers(feed, 0, billing) == [*range(12, 20)]
    assert trim(feed, 20) == 4


# Logs.


def read_log(names):
    """Read ids and data of the events in all partitions, over HTTP."""
    with serving(names["app"]) as url, client_of(f"{url}/orders") as client:
        pages = [client.fetch(each.id, FIRST) for each in client.discover().partitions]
    return sorted((event.data["id"], event.data["data"]) for page in pages for event in page.events)


@pytest.mark.anyio
async def test_log_in_a_few_lines():
    """The pieces make a table, append to it once if they run again, and publish it."""
    placed = [("checkout-1", {"amount": 12}), ("checkout-2", {"amount": 7.5})]
    with guide("event_log.md") as piece:
        piece("log")["engine"].dispose()  # the next run makes another one
        piece("log")
        assert read_log(piece("feed")) == placed
        names = piece("async")
        engine = create_async_engine("sqlite+aiosqlite:///shop.db")
        async with engine.begin() as connection:
            await names["place"](connection, {"customer": "cy", "amount": 1})
        await engine.dispose()
        assert {"customer": "cy", "amount": 1} in [data for _, data in read_log(piece("feed"))]


def test_accounts_are_restored_from_snapshots():
    """An account is saved every hundred events, all are covered for a trim, and old forms read."""
    with guide("event_log.md") as piece:
        piece("log")
        names = piece("snapshots")
        engine, log, withdraw = (names[name] for name in ("engine", "accounts", "withdraw"))
        with engine.begin() as connection:
            for key, count in (("ada", 100), ("bob", 2)):
                events = [NewEvent("Deposited", {"amount": 1}) for _ in range(count)]
                log.append_to(connection, key, events, expected_version=0)
                withdraw(connection, key, 2)
            with pytest.raises(ValueError, match="not enough"):
                withdraw(connection, "bob", 1)
        assert scalars(engine, "SELECT key FROM accounts_snapshots") == ["ada"]
        feed = log.feed(retention=zeroeventhub.Retention())
        install(feed, engine)
        with guide("retention.md", **names) as other:
            other("cover")["cover"](datetime.now(UTC) + timedelta(days=1))
        assert trim(feed.bind(engine), 10**6) == 104
        with engine.begin() as connection:
            withdraw(connection, "ada", 90)
            old = [NewEvent("WithdrawnInCents", {"cents": -150})]
            version = log.append_to(connection, "ada", old, expected_version=102)
            restored = piece("upcast")["accounts"].restore(connection, "ada")
            assert (restored.version, names["balance_of"](restored)) == (version, 98 - 90 - 1.5)


# Keys.


@pytest.fixture
def keys():
    """A function that runs a piece of the guide to keys."""
    with guide("keys.md") as piece:
        yield piece


def test_handler_decides_again_when_another_was_quicker(keys):
    """A handler that meets a conflict reads what has come, and a command twice is one event."""
    names = keys("handler")
    log, engine, cancel = (names[name] for name in ("orders", "engine", "cancel"))
    assert cancel("o1", "c1") == "cancelled"
    assert cancel("o1", "c1") == "cancelled"
    read, quicker = log.read_key, []

    def meddling(connection, key):
        events = read(connection, key)
        if not quicker:
            quicker.append(key)
            with engine.begin() as other:
                shipped = [NewEvent("OrderShipped", {})]
                log.append_to(other, key, shipped, expected_version=ExpectedVersion.ANY)
        return events

    log.read_key = meddling
    assert cancel("o2", "c2") == "too late"
    with engine.connect() as connection:
        assert [event.type for event in read(connection, "o1")] == ["OrderCancelled"]


def test_own_table_is_guarded(keys):
    """The account of the guide cannot be overdrawn by two who read at the same time."""
    keys("handler")
    names = keys("own")
    engine, accounts, withdraw = (names[name] for name in ("engine", "accounts", "withdraw"))
    names["movements"].create(engine)
    with engine.begin() as connection:
        start = [{"command": "c0", "amount": 10}]
        accounts.append(connection, "ada", start, expected_version=0)
        assert withdraw(connection, "ada", "c1", 6) == 2
        assert withdraw(connection, "ada", "c1", 6) == 2
        with pytest.raises(ValueError, match="not enough"):
            withdraw(connection, "ada", "c2", 6)
        late = [{"command": "c3", "amount": -6}]
        with pytest.raises(Conflict):
            accounts.append(connection, "ada", late, expected_version=1)


def test_history_over_http(keys):
    """The client of the guide reads a key to its end, as curl shows it."""
    keys("handler")
    names = keys("client")
    log, engine = names["orders"], names["engine"]
    events = [*(NewEvent("x", {"n": n}) for n in range(3)), NewEvent("Paid", {"paid": 12.5})]
    with engine.begin() as connection:
        log.append_to(connection, "order-17", events, expected_version=0)
    with mounted(log.feed(key_history=True), engine) as url, httpx.Client() as http:
        found = names["history"](Client(url, http), "order-17")
        query = {"key": "order-17", "after-version": 3}
        shown = http.get(f"{url}/key-history", params=query).text
    assert [event.data for event in found] == [event.data for event in events]
    assert shown in (DOCUMENTS / "keys.md").read_text().partition("<!-- curl -->")[2]


# Retention and archives.


@pytest.mark.parametrize(
    ("document", "marks"),
    [
        ("retention.md", ["progress", "thin", "compaction", "trim"]),
        ("archive.md", ["seal", "alone"]),
    ],
)
def test_old_orders_are_trimmed(sqlite, document, marks):
    """Each piece of a guide works, and of two orders the old one is trimmed."""
    fill(sqlite, 0)
    places = {"s3://shop-history/orders": "archive"}
    with guide(document, places=places, orders=orders, engine=sqlite) as piece:
        piece("feed")
        now = datetime.now(UTC)
        rows = [{"placed": when, "data": {"n": 1}} for when in (now - timedelta(days=40), now)]
        add(sqlite, orders, rows)
        for mark in marks:
            names = piece(mark)
    with sqlite.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count(orders.c.id))) == 1
    if document == "archive.md":
        assert numbers(names["bound"]) == [1, 1]
        assert numbers(names["alone"]) == [1]


# Orderings.


def test_ordering_is_installed_by_a_migration(postgresql):
    """The functions of the guide install what an ordering needs, and remove it."""
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass"
    with fill(postgresql, 0).begin() as connection:
        operations = SimpleNamespace(get_bind=lambda: connection)
        with guide("ordering.md", op=operations, orders=orders, TableFeed=TableFeed) as piece:
            names = piece("migration")
        before = connection.scalar(sa.text(triggers))
        names["upgrade"]()
        assert connection.scalar(sa.text(triggers)) > before
        names["downgrade"]()
        assert connection.scalar(sa.text(triggers)) == before


def test_log_takes_what_the_guide_sends():
    """The publisher of the guide takes its batch, and refuses data that its model does not have."""
    text = (DOCUMENTS / "append.md").read_text()
    command = re.search(r"<!-- lines -->\n```console\n\$ curl (.*?)```", text, re.DOTALL)[1]
    _, _, address, _, _, _, body = shlex.split(command.replace("\\\n> ", ""))
    with guide("append.md") as piece:
        names = piece("publisher")
        kind = {"Content-Type": "application/x-ndjson"}
        with serving(names["app"]) as url:
            answer = httpx.post(f"{url}{httpx.URL(address).path}", content=body, headers=kind)
            assert (answer.status_code, answer.json()["events"][0]["id"]) == (201, "checkout-1")
        feed = piece("schemas")["feed"]
        with mounted(feed, names["engine"]) as url:
            wrong = body.replace("12", '"12"').replace("-1", "-2")
            answer = httpx.post(f"{url}/append", content=wrong, headers=kind)
            assert (answer.status_code, answer.json()["path"]) == (422, "$[0].data.amount")


# Single lines.


@pytest.mark.parametrize(
    ("document", "mark"),
    [
        ("arrow.md", "routes"),
        ("compression.md", "client"),
        ("compression.md", "routes"),
        ("retention.md", "register"),
        ("security.md", "append"),
        ("security.md", "deny"),
        ("security.md", "parts"),
        ("security.md", "pool"),
        ("security.md", "quotas"),
        ("security.md", "tokens"),
        ("telemetry.md", "observer"),
    ],
)
def test_line_of_a_guide_runs(document, mark, sqlite):
    """A line that shows an option is accepted."""
    source, url = TableFeed(orders, data="data", type="kind"), "http://127.0.0.1:8000/orders"
    with httpx.Client() as http:
        given = {name: getattr(zeroeventhub, name) for name in zeroeventhub.__all__}
        given |= {made.__name__: made for made in (Middleware, Starlette, sa.create_engine)}
        given |= {"feed": source, "hook": zeroeventhub.everybody, "token": "0123456789abcdef"}
        given |= {"url": sqlite.url if mark == "pool" else url, "client": Client(url, http)}
        given |= {"http": http}
        given |= {"engine": sqlite, "store": new_store(sqlite)}
        given |= {"routes": feed_routes("/orders", source, sqlite)}
        with guide(document, **given) as piece:
            assert piece(mark)
