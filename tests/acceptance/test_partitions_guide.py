"""Partitions change under way, as docs/partitions.md says: nothing is lost, twice or inverted."""

import random
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import pytest
from harness.readers import fill
from harness.shop import orders
from harness.stores import new_store
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette

from zeroeventhub import FIRST, Client, Consumer, CursorStore, TableFeed, feed_routes
from zeroeventhub.errors import TokenChanged, Unavailable
from zeroeventhub.layout import Layout, key_hash
from zeroeventhub.publisher.partition_hash import hash_on_connect

GUIDE = (Path(__file__).parents[2] / "docs" / "partitions.md").read_text()
PATIENCE = 20
KEYS = [f"customer-{number}" for number in range(12)]


def block(name):
    """Return the code behind a mark in the guide."""
    return re.search(rf"<!-- {name} -->\n+```\w+\n(.*?)```", GUIDE, re.DOTALL)[1]


def guide(*names, **given):
    """Run code of the guide, one block after the other; return the names that it leaves."""
    space = dict(given)
    for name in names:
        exec(compile(block(name), f"partitions.md: {name}", "exec"), space)
    return space


class Deployed:
    """Be the feeds of the processes that serve: a request is answered by any of them."""

    def __init__(self, *feeds):
        self.feeds = feeds
        self.dice = random.Random(4)

    def info(self):
        """Describe the feed as one of the processes has it."""
        self.answering = self.dice.choice(self.feeds)
        return self.answering.info()

    def read(self, partition, cursor, limit):
        """Read a page; one request comes after the other."""
        return self.answering.read(partition, cursor, limit)


def nothing():
    """Return the numbers of each customer before there are any."""
    return {customer: [] for customer in KEYS}


@contextmanager
def running(*work):
    """Let threads work meanwhile, which end soon after."""
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(PATIENCE)


@dataclass
class Shop:
    """A shop that writes all the time.

    Attributes:
        engine: of its database.
        write: writes an event of a customer, with data, through a connection.
        written: the numbers written, by customer.
    """

    engine: object
    write: object
    written: dict = field(default_factory=nothing)
    stopping: threading.Event = field(default_factory=threading.Event)

    def work(self, customers):
        """Write events of some customers, each behind the last, until the shop closes."""
        for number in count():
            customer = customers[number % len(customers)]
            while not self.stopping.is_set():
                try:
                    with self.engine.begin() as connection:
                        self.write(connection, customer, {"customer": customer, "n": number})
                        time.sleep(0.002)
                except DBAPIError:
                    self.stopping.wait(0.005)
                else:
                    self.written[customer].append(number)
                    # MariaDB does not tell a connection that is always busy from a long
                    # transaction.
                    time.sleep(0.004)
                    break
            else:
                return

    @contextmanager
    def open(self):
        """Let writers work meanwhile."""
        with running(*(partial(self.work, KEYS[number::3]) for number in range(3))):
            try:
                yield
            finally:
                self.stopping.set()

    def wait(self, amount=30):
        """Wait until so many events more have been written, and some of each customer."""
        wanted = self.amount + amount
        until(
            lambda: self.amount >= wanted and all(self.written.values()),
            f"{amount} events more are written",
        )

    @property
    def amount(self):
        """How many events have been written."""
        return sum(map(len, self.written.values()))


@dataclass
class Billing:
    """A consumer, which may be started and stopped.

    Attributes:
        store: keeps its cursors.
        url: of the feed.
        seen: the numbers seen, by customer.
        partitions: the partitions that it was given pages of.
    """

    store: CursorStore
    url: str
    seen: dict = field(default_factory=nothing)
    partitions: set = field(default_factory=set)

    def apply(self, _, page):
        """Take over a page."""
        self.partitions.add(page.partition)
        for event in page.events:
            self.seen[event.data["customer"]].append(event.data["n"])

    @contextmanager
    def running(self):
        """Follow the feed meanwhile."""
        with httpx.Client() as session:
            client = Client(f"{self.url}/orders", session)
            consumer = Consumer(client, self.store, "billing", limit=7, poll_interval=0.01)
            with running(partial(consumer.run, self.apply)):
                try:
                    yield
                finally:
                    consumer.stop()

    def wait_for(self, shop):
        """Wait until all that was written has been seen, and show that it was seen in order."""
        with self.running():
            until(lambda: sum(map(len, self.seen.values())) >= shop.amount, "all events are seen")
        assert self.seen == shop.written

    @property
    def cursors(self):
        """The cursors in the store."""
        with self.store.engine.connect() as connection:
            return self.store.cursors(connection, "billing")


@pytest.fixture
def store(tmp_path):
    """A consumer's store of cursors."""
    engine = create_engine(f"sqlite:///{tmp_path / 'consumer.db'}")
    yield new_store(engine)
    engine.dispose()


def shop_of(engine, *names):
    """Run code of the guide, and make its table; return the names that it leaves."""
    space = guide("shop", *names)
    hash_on_connect(engine)
    space["metadata"].create_all(engine)
    if "switch" in space:
        with engine.begin() as connection:
            connection.execute(insert(space["switch"]).values(generation=0))
    return space


def bar(engine, shown=lambda sql: sql):
    """Run the guide's SQL that closes a partition, again if it gave up."""
    script = shown(block(f"bar {engine.dialect.name}"))
    compound = r"(?s)(?:CREATE TRIGGER.*?END|.)*?;\n"
    raw = engine.raw_connection()
    try:
        for statement in re.findall(compound, script):
            cursor = raw.cursor()
            cursor.execute(statement.rstrip().removesuffix(";"))
            cursor.close()
    finally:
        raw.close()


@contextmanager
def served(feed):
    """Serve a feed over HTTP, and yield its URL."""
    with serving(Starlette(routes=feed_routes("/orders", feed))) as url:
        yield url


def test_partition_is_split_under_way(engine, store):
    """Writers go on while a partition is split, and readers change one by one."""
    space = shop_of(engine, "layouts", "writer", "feed", "settled")
    before, after = space["LAYOUTS"]
    old, ready, new = (
        space["feed_of"](layout).bind(engine) for layout in (before, before.expecting(after), after)
    )
    deployed = Deployed(old)
    shop = Shop(engine, space["write"])
    with served(deployed) as url:
        billing = Billing(store, url)
        with shop.open(), billing.running():
            shop.wait()
            deployed.feeds = (old, ready)
            shop.wait()
            deployed.feeds = (ready,)
            bar(engine)
            shop.wait()
            until(lambda: space["is_settled"](ready, engine, 0), "the closed partition is settled")
            deployed.feeds = (ready, new)
            shop.wait()
            deployed.feeds = (new,)
            shop.wait()
        billing.wait_for(shop)
        assert billing.cursors.keys() == billing.partitions == {0, 1, 2, 3}
    with engine.connect() as connection:
        orders = space["orders"]
        query = select(orders.c.part, orders.c.customer).distinct()
        parts = {(part, before.partition_of(name)) for part, name in connection.execute(query)}
    assert parts == {(0, 0), (1, 1), (2, 0), (3, 0)}


def test_consumer_that_comes_late_reads_parents_first(any_engine, store):
    """A consumer that starts after a split reads the history in order, and from a drop on none."""
    space = shop_of(any_engine, "layouts", "writer", "feed")
    after = space["AFTER"]
    shop = Shop(any_engine, space["write"])
    with shop.open():
        shop.wait()
        bar(any_engine)
        shop.wait()
    with served(space["feed_of"](after).bind(any_engine)) as url:
        billing = Billing(store, url)
        billing.wait_for(shop)
    with served(space["feed_of"](after.drop(0)).bind(any_engine)) as url:
        assert httpx.get(f"{url}/orders").json()["partitions"] == [
            {"id": "1"},
            {"id": "2"},
            {"id": "3"},
        ]


def test_writer_of_the_old_layout_is_refused(engine):
    """A writer that has not heard of the change fails at the bar, and others go on."""
    space = shop_of(engine, "layouts", "writer")
    orders = space["orders"]
    parts = {part: next(k for k in KEYS if key_hash(k) % 2 == part) for part in (0, 1)}
    bar(engine)
    for part, customer in parts.items():
        old = insert(orders).values(customer=customer, part=part, data={})
        with engine.connect() as connection:
            if part == 0:
                with pytest.raises(DBAPIError, match="closed"):
                    connection.execute(old)
            else:
                connection.execute(old)
    with engine.begin() as connection:
        space["write"](connection, parts[0], {})
        assert connection.scalar(select(orders.c.part)) in {2, 3}


def test_bar_waits_for_open_writers(request):
    """A writer that has written to the parent and not ended keeps the change waiting."""
    for database in ("postgresql", "mariadb"):
        engine = request.getfixturevalue(database)
        space = shop_of(engine, "layouts", "writer")
        customer = next(key for key in KEYS if key_hash(key) % 2 == 0)
        with engine.connect() as slow:
            space["write"](slow, customer, {})
            with pytest.raises(Exception, match=r"lock timeout|Lock wait timeout"):
                bar(engine, lambda sql: re.sub(r"(timeout = )'?5s?'?", r"\1 1", sql))
            slow.commit()
        with engine.connect() as connection:
            assert connection.scalar(select(space["switch"].c.generation)) == 0
        bar(engine)
        with engine.connect() as connection:
            assert connection.scalar(select(space["switch"].c.generation)) == 1


def test_all_are_redistributed_under_way(any_engine, store):
    """Readers change at one moment, twice while the consumer is away, and cursors go on."""
    space = shop_of(any_engine, "layouts", "feed", "switched")
    layouts = [Layout.of(2)]
    for _ in range(3):
        layouts.append(layouts[-1].redistribute(by=2))

    def write(connection, customer, data):
        row = {"customer": customer, "part": layouts[0].partition_of(customer), "data": data}
        connection.execute(insert(space["orders"]).values(row))

    def change():
        with any_engine.begin() as connection:
            switch = space["switch"]
            connection.execute(switch.update().values(generation=switch.c.generation + 1))

    shop = Shop(any_engine, write)
    with served(space["Switched"](any_engine, layouts)) as url:
        billing = Billing(store, url)
        with shop.open():
            with billing.running():
                shop.wait()
                until(lambda: billing.cursors.keys() == {0, 1}, "both partitions are read")
                change()
                shop.wait()
                until(lambda: billing.cursors.keys() == {2, 3, 4, 5}, "all four are read")
            shop.wait()
            change()
            shop.wait()
            change()
            with billing.running():
                shop.wait()
        billing.wait_for(shop)
        assert billing.cursors.keys() == {share.id for share in layouts[-1].partitions}


def test_events_of_a_later_layout_are_expected(any_engine):
    """A feed fails over an event that it would not show, unless it was told to expect it."""
    space = shop_of(any_engine, "layouts", "feed")
    before, after = space["LAYOUTS"]
    with any_engine.begin() as connection:
        row = {"customer": "ada", "part": 3, "data": {}}
        connection.execute(insert(space["orders"]).values(row))
    with pytest.raises(Exception, match="no consumer would ever see it"):
        space["feed_of"](before).bind(any_engine).info()
    info = space["feed_of"](before.expecting(after)).bind(any_engine).info()
    assert info.token == before.token
    assert [partition.id for partition in info.partitions] == [0, 1]


@pytest.mark.parametrize("ordering", ["gated", "sequenced"])
def test_closed_partition_ends_only_when_it_is_settled(postgresql, ordering):
    """The end of a closed partition is not shown while its last events lie above the horizon."""
    space = shop_of(postgresql, "layouts")
    orders, after = space["orders"], space["AFTER"]
    feed = TableFeed(orders, partition="part", partitions=after, data="data", ordering=ordering)
    with postgresql.begin() as connection:
        feed.install(connection)
    with postgresql.connect() as slow:
        if ordering == "gated":
            slow.execute(insert(orders).values(customer="bob", part=2, data={"n": 1}))
        else:
            # Another session is about to give positions, so that no other does.
            (state,) = (name for name in inspect(slow).get_table_names() if "_state_" in name)
            slow.execute(text(f"SELECT * FROM {state} FOR UPDATE"))
        with postgresql.begin() as connection:
            connection.execute(insert(orders).values(customer="ada", part=0, data={"n": 0}))
        with pytest.raises(Unavailable, match="closed"):
            feed.bind(postgresql).read(0, FIRST, 10)
        slow.commit()
    assert [event.data["n"] for event in feed.bind(postgresql).read(0, FIRST, 10).events] == [0]


@pytest.mark.parametrize("name", ["expression", "generated"])
def test_guide_publishes_by_the_hash_of_a_key(engine, name):
    """The guide's tables are read by the hash of the customer."""
    if name == "expression" and engine.dialect.name == "mariadb":
        pytest.skip("MariaDB has no indexes on expressions")
    space = guide("shop", name, engine=engine)
    orders = space["orders"]
    space["metadata"].create_all(engine)
    row = {"part": 0} if name == "expression" else {}
    with engine.begin() as connection:
        rows = [{"customer": customer, "data": {"c": customer}, **row} for customer in KEYS]
        connection.execute(insert(orders), rows)
    feed = space.get("feed", TableFeed(orders, partition="part", partitions=4, data="data"))
    bound = feed.bind(engine)
    for part in range(4):
        found = [event.data["c"] for event in bound.read(part, FIRST, 100).events]
        assert found == [customer for customer in KEYS if key_hash(customer) % 4 == part]


def test_hashes_in_the_guide_are_right():
    """The examples of the guide are what the definition gives."""
    rows = re.findall(r"^\| ([^|]+) \| ([0-9a-f ]*)\| (\d+) \| (\d+) \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 10
    for _, encoded, hashed, part in rows:
        key = bytes.fromhex(encoded).decode()
        assert (key_hash(key), key_hash(key) % 16) == (int(hashed), int(part))


def read_all(store, url, **options):
    """Read a feed to its head; return the numbers of the orders."""
    seen = []
    with httpx.Client() as http:
        Consumer(Client(f"{url}/orders", http), store, "late", follow=False, **options).run(
            lambda _, page: seen.extend(event.data["n"] for event in page.events)
        )
    return seen


def test_older_layout_is_not_read_again_after_a_redistribution(sqlite, store):
    """A process that still shows the partitions before a change repeats nothing."""
    old, new = (
        TableFeed(orders, partition="part", partitions=layout, data="data").bind(sqlite)
        for layout in (Layout.of(1), Layout.of(1).redistribute(by=2))
    )
    deployed = Deployed(old)
    fill(sqlite, 1)
    with served(deployed) as url:
        assert read_all(store, url) == [0]
        with sqlite.begin() as connection:
            connection.execute(update(orders).values(part=1))
        deployed.feeds = (new,)
        assert read_all(store, url) == []
        with sqlite.begin() as connection:
            connection.execute(update(orders).values(part=0))
        deployed.feeds = (old,)
        with pytest.raises(TokenChanged):
            read_all(store, url, attempts=2)
