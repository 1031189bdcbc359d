"""Schemas that change under a running feed: it fails clearly, and consumers go on afterwards."""

import threading
from contextlib import contextmanager

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, insert, text
from starlette.applications import Starlette
from starlette.middleware import Middleware

from zeroeventhub import FIRST, Client, Consumer, CursorStore, Event, TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure
from zeroeventhub.publisher import checks

PATIENCE = 30
FAILED = 500

_COPY = "id, part, kind, customer, placed, data"


def _rebuilt(part):
    """Give a column of SQLite another type, as its documentation says."""
    columns = f"part {part} NOT NULL DEFAULT 0, kind TEXT, customer VARCHAR(40), placed DATETIME"
    return [
        f"CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT, {columns}, data JSON)",
        f"INSERT INTO other ({_COPY}) SELECT {_COPY} FROM orders",
        "DROP TABLE orders",
        "ALTER TABLE other RENAME TO orders",
    ]


RETYPED = {
    "sqlite": (_rebuilt("TEXT"), _rebuilt("INTEGER")),
    "postgresql": (
        [
            "ALTER TABLE orders ALTER COLUMN part DROP DEFAULT",
            "ALTER TABLE orders ALTER COLUMN part TYPE text USING part::text",
        ],
        [
            "ALTER TABLE orders ALTER COLUMN part TYPE integer USING part::integer",
            "ALTER TABLE orders ALTER COLUMN part SET DEFAULT 0",
        ],
    ),
    "mariadb": (
        ["ALTER TABLE orders MODIFY part VARCHAR(20) NOT NULL DEFAULT '0'"],
        ["ALTER TABLE orders MODIFY part INTEGER NOT NULL DEFAULT 0"],
    ),
}

DRIFTS = {
    "a column renamed": lambda database: (
        ["ALTER TABLE orders RENAME COLUMN customer TO client"],
        ["ALTER TABLE orders RENAME COLUMN client TO customer"],
    ),
    "a column dropped": lambda database: (
        [
            "CREATE TABLE kept AS SELECT id, customer FROM orders",
            "ALTER TABLE orders DROP COLUMN customer",
        ],
        [
            "ALTER TABLE orders ADD COLUMN customer VARCHAR(40)",
            "UPDATE orders SET customer = (SELECT customer FROM kept WHERE kept.id = orders.id)",
        ],
    ),
    "a column retyped": RETYPED.get,
    "the table renamed": lambda database: (
        ["ALTER TABLE orders RENAME TO elsewhere"],
        ["ALTER TABLE elsewhere RENAME TO orders"],
    ),
}

ORDERINGS = {
    "the sequence changed": (
        "postgresql",
        "observed",
        ["ALTER SEQUENCE orders_id_seq CACHE 10"],
        ["ALTER SEQUENCE orders_id_seq CACHE 1"],
    ),
    "the gate dropped": (
        "postgresql",
        "gated",
        ["DROP TRIGGER zeroeventhub_gate ON orders"],
        None,
    ),
    "the tables of positions gone": ("postgresql", "sequenced", "hide", "show"),
}


def run(engine, statements):
    """Change the schema."""
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


class Counting:
    """Note the statuses of answers."""

    def __init__(self, app, statuses):
        self._app = app
        self._statuses = statuses

    async def __call__(self, scope, receive, send):
        async def note(message):
            if message["type"] == "http.response.start":
                self._statuses.append(message["status"])
            await send(message)

        await self._app(scope, receive, note)


class Shop:
    """A feed that is served, and a consumer that follows it in a thread."""

    def __init__(self, engine, feed, tmp_path):
        self.engine = engine
        self.statuses = []
        self.errors = []
        billing = create_engine(f"sqlite:///{tmp_path / 'billing.db'}")
        self.store = CursorStore(billing)
        with billing.begin() as connection:
            self.store.create_tables(connection)
            connection.execute(text("CREATE TABLE applied (n INTEGER PRIMARY KEY, id INTEGER)"))
        self.billing = billing
        counting = Middleware(Counting, statuses=self.statuses)
        routes = feed_routes("/orders", feed, engine)
        self.application = Starlette(routes=routes, middleware=[counting])

    def applied(self):
        """The ids of the events that were applied, in order."""
        with self.billing.connect() as connection:
            return list(connection.scalars(text("SELECT id FROM applied ORDER BY n")))

    @contextmanager
    def following(self, url):
        """Follow the feed in a thread."""

        def apply(connection, event: Event):
            row = {"id": event.data["id"]}
            connection.execute(text("INSERT INTO applied (id) VALUES (:id)"), row)

        with httpx.Client() as http:
            consumer = Consumer(Client(f"{url}/orders", http), self.store, "billing")
            thread = threading.Thread(target=self._run, args=[consumer, apply])
            thread.start()
            try:
                yield
            finally:
                consumer.stop()
                thread.join(PATIENCE)
                assert not thread.is_alive()

    def _run(self, consumer, apply):
        try:
            consumer.run(apply)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)

    def wait_for(self, condition, what):
        """Wait until something is so, unless the consumer has ended."""
        until(lambda: self.errors or condition(), what, PATIENCE)
        assert not self.errors

    def drift(self, break_, mend):
        """Break something under the feed, and mend it; nothing may be lost or come twice."""
        with serving(self.application) as url, self.following(url):
            with self.engine.begin() as connection:
                place(connection, 5)
            self.wait_for(lambda: len(self.applied()) == 5, "five events are applied")
            break_()
            self.wait_for(lambda: FAILED in self.statuses, "the feed fails")
            assert set(self.statuses) <= {200, FAILED}
            mend()
            with self.engine.begin() as connection:
                place(connection, 5, first=5)
            self.wait_for(lambda: len(self.applied()) == 10, "ten events are applied")
        self.billing.dispose()
        assert self.applied() == sorted(set(self.applied()))
        assert not self.errors
        assert set(self.statuses) <= {200, FAILED}


def source(**options):
    """A feed over the columns of an order."""
    return TableFeed(orders, data=["id", "part", "customer"], **options)


@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(drift, marks=() if drift == "a column renamed" else pytest.mark.test_all)
        for drift in DRIFTS
    ],
)
def test_consumers_go_on_when_the_schema_is_back(engine, tmp_path, drift):
    """What is gone or another is answered with 500, and no cursor is refused or lost for it."""
    metadata.create_all(engine)
    break_, mend = DRIFTS[drift](engine.dialect.name)
    shop = Shop(engine, source(), tmp_path)
    shop.drift(lambda: run(engine, break_), lambda: run(engine, mend))


@pytest.mark.parametrize(
    "drift",
    [
        pytest.param(drift, marks=() if drift == "the gate dropped" else pytest.mark.test_all)
        for drift in ORDERINGS
    ],
)
def test_consumers_go_on_when_the_ordering_is_back(postgresql, tmp_path, monkeypatch, drift):
    """What an ordering needs is missed at the next look at it, and the feed goes on with it."""
    monkeypatch.setattr(checks, "CHECK_INTERVAL", 0.0)
    metadata.create_all(postgresql)
    _, ordering, break_, mend = ORDERINGS[drift]
    feed = source(ordering=ordering)
    with postgresql.begin() as connection:
        feed.install(connection)
    if break_ == "hide":
        table = feed.ordering("postgresql").source.table.name
        break_ = [f"ALTER TABLE {table} RENAME TO hidden"]
        mend = [f"ALTER TABLE hidden RENAME TO {table}"]

    def install():
        with postgresql.begin() as connection:
            feed.install(connection)

    shop = Shop(postgresql, feed, tmp_path)
    shop.drift(
        lambda: run(postgresql, break_),
        install if mend is None else lambda: run(postgresql, mend),
    )


def test_feed_goes_on_without_its_index(engine):
    """Pages are read in another way once their index is gone, and by it when it is back."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 10, partitions=2)
    feed = source(partition="part", partitions=2).bind(engine)
    cursor = feed.read(1, FIRST, 2).cursor
    on = " ON orders" if engine.dialect.name == "mariadb" else ""
    run(engine, [f"DROP INDEX orders_by_part{on}"])
    for _ in range(2):
        try:
            page = feed.read(1, cursor, 10)
        except FeedFailure:
            continue
        break
    assert len(page.events) == 3
    run(engine, ["CREATE INDEX orders_by_part ON orders (part, id)"])
    assert len(feed.read(1, cursor, 10).events) == 3


def test_form_that_changed_is_no_other_history(engine):
    """A cursor is not refused for a digest while a column is of another type than at the start;
    it is good when the column is back, and refused if its event is really another.
    """
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 3)
    feed = source().bind(engine)
    cursor = feed.read(0, FIRST, 3).cursor
    break_, mend = RETYPED[engine.dialect.name]
    engine.dispose()  # a statement that was prepared would fail by itself
    run(engine, break_)
    with pytest.raises(FeedFailure, match="'part' in table 'orders' is another one"):
        feed.read(0, cursor, 3)
    run(engine, mend)
    engine.dispose()
    assert feed.read(0, cursor, 3).caught_up
    run(engine, ["UPDATE orders SET customer = 'another'"])
    with pytest.raises(Diverged):
        feed.read(0, cursor, 3)


def test_change_that_does_no_harm_passes(postgresql):
    """A feed goes on as if nothing had happened where events are what they were."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        place(connection, 3)
    feed = source().bind(postgresql)
    cursors = {feed.read(0, FIRST, 3).cursor for _ in range(10)}
    run(postgresql, ["ALTER TABLE orders ALTER COLUMN customer TYPE varchar(80)"])
    assert {feed.read(0, FIRST, 3).cursor for _ in range(10)} == cursors


def test_missing_column_is_named(engine):
    """The sentence in the log says which column is missing, from the second request on."""
    metadata.create_all(engine)
    feed = source().bind(engine)
    with engine.begin() as connection:
        connection.execute(insert(orders), [{"customer": "ada"}])
    assert len(feed.read(0, FIRST, 3).events) == 1
    run(engine, ["ALTER TABLE orders RENAME COLUMN customer TO client"])
    with pytest.raises(FeedFailure, match="is not what it was"):
        feed.read(0, FIRST, 3)
    with pytest.raises(ConfigurationError, match="no column 'customer'"):
        feed.read(0, FIRST, 3)
