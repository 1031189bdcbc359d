"""Partitions change as docs/partitions.md says: nothing is lost, comes twice or out of order."""

import re
from collections import defaultdict

import httpx
import pytest
from harness.guides import DOCUMENTS, guide
from harness.published import install
from harness.readers import client_of, mounted
from harness.statements import execute, scalars
from harness.stores import new_store
from harness.waiting import until
from sqlalchemy import create_engine, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, Consumer, Layout, TableFeed, hash_on_connect
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.partition_hash import key_hash

GUIDE = (DOCUMENTS / "partitions.md").read_text()
KEYS = [f"customer-{number}" for number in range(12)]


class Deployed:
    """Be the feeds of the processes that serve: each answers once, the last from then on."""

    def info(self):
        """Describe the feed as the next of the processes has it."""
        self.answering, *rest = self.feeds
        self.feeds = rest or self.feeds
        return self.answering.info()

    def read(self, partition, cursor, limit):
        """Read a page; one request comes after the other."""
        return self.answering.read(partition, cursor, limit)


@pytest.fixture
def shop_of():
    """A function that runs code of the guide and makes its table; it returns names of the code."""
    with guide("partitions.md") as piece:

        def shop_of(engine, *marks):
            for mark in ("shop", *marks):
                names = piece(mark)
            hash_on_connect(engine)
            names["metadata"].create_all(engine)
            if "switch" in names:
                execute(engine, insert(names["switch"]).values(generation=0))
            return names

        yield shop_of


@pytest.fixture
def read(tmp_path):
    """A function with which a consumer, by its name, reads on to the head.

    It returns the numbers of all events that the consumer has seen, by customer.
    """
    store = new_store(create_engine(f"sqlite:///{tmp_path / 'consumer.db'}"))
    seen = defaultdict(lambda: defaultdict(list))

    def read(url, name="billing"):
        with client_of(url) as client:
            for page in Consumer(client, store, name, limit=7, poll_interval=0.01, follow=False):
                with store.engine.begin() as connection:
                    page.commit(connection)
                for event in page.events:
                    seen[name][event.data["customer"]].append(event.data["n"])
        return seen[name]

    yield read
    store.engine.dispose()


def bar(engine, shown=lambda sql: sql):
    """Run the guide's SQL that closes a partition."""
    mark = f"<!-- bar {engine.dialect.name} -->"
    script = re.search(rf"{mark}\n```sql\n(.*?)```", GUIDE, re.DOTALL)[1]
    raw = engine.raw_connection()
    try:
        for statement in re.findall(r"(?s)(?:CREATE TRIGGER.*?END|.)*?;\n", shown(script)):
            cursor = raw.cursor()
            cursor.execute(statement.rstrip().removesuffix(";"))
            cursor.close()
    finally:
        raw.close()


def write_all(engine, write, number):
    """Write an event of each customer, in a transaction of its own."""
    for customer in KEYS:
        with engine.begin() as connection:
            write(connection, customer, {"customer": customer, "n": number})


def test_partition_is_split_in_the_steps_of_the_guide(engine, shop_of, read):
    """While readers change one by one and old writers are refused, each event is read once."""
    names = shop_of(engine, "layouts", "writer", "feed", "settled")
    orders, feed_of, (before, after) = (names[name] for name in ("orders", "feed_of", "LAYOUTS"))
    layouts = (before, before.expecting(after), after)
    old, ready, new = (feed_of(layout).bind(engine) for layout in layouts)
    mixed = (*(new,) * 4, *(ready,) * 4, new)
    steps = [(old,), (old, ready, old), (ready,), (ready,), mixed, (new,)]
    everything = {customer: [*range(len(steps))] for customer in KEYS}
    deployed = Deployed()
    with mounted(deployed) as url:
        for step, deployed.feeds in enumerate(steps):
            if step == 3:
                bar(engine)
                with pytest.raises(DBAPIError, match="closed"), engine.begin() as connection:
                    connection.execute(insert(orders).values(customer="late", part=0, data={}))
            elif step == 4:
                until(lambda: names["is_settled"](ready, engine, 0), "the parent is settled")
            write_all(engine, names["write"], step)
            read(url)
        until(lambda: read(url) == everything, "all events are read")
        until(lambda: read(url, "late") == everything, "a late consumer has read all events")
        deployed.feeds = (feed_of(after.drop(0)).bind(engine),)
        shown = [partition["id"] for partition in httpx.get(url).json()["partitions"]]
        assert shown == ["1", "2", "3"]
    assert "no consumer sees it" in feed_of(before).bind(engine).horizon().unpublished
    with engine.connect() as connection:
        query = select(orders.c.part, orders.c.customer).distinct()
        parts = {(part, before.partition_of(name)) for part, name in connection.execute(query)}
    assert parts == {(0, 0), (1, 1), (2, 0), (3, 0)}


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_bar_waits_for_open_writers(request, shop_of, database):
    """A writer that has written to the parent and not ended keeps the change waiting."""
    engine = request.getfixturevalue(database)
    names = shop_of(engine, "layouts", "writer")
    generation = select(names["switch"].c.generation)
    customer = next(key for key in KEYS if key_hash(key) % 2 == 0)
    with engine.connect() as slow:
        names["write"](slow, customer, {})
        with pytest.raises(Exception, match=r"lock timeout|Lock wait timeout"):
            bar(engine, lambda sql: re.sub(r"(timeout = )'?5s?'?", r"\1 1", sql))
        slow.commit()
    assert scalars(engine, generation) == [0]
    bar(engine)
    assert scalars(engine, generation) == [1]


def test_all_are_redistributed_by_a_row(any_engine, shop_of, read):
    """Readers change at one moment, twice while the consumer is away, and read each event once."""
    names = shop_of(any_engine, "layouts", "feed", "switched")
    switch, layouts = names["switch"], [Layout.of(2)]
    for _ in range(3):
        layouts.append(layouts[-1].redistribute(by=2))

    def write(connection, customer, data):
        part = layouts[0].partition_of(customer)
        row = {"customer": customer, "part": part, "data": data}
        connection.execute(insert(names["orders"]).values(row))

    with mounted(names["Switched"](any_engine, layouts)) as url:
        for step, generation in enumerate((0, 1, 3)):
            execute(any_engine, switch.update().values(generation=generation))
            write_all(any_engine, write, step)
            read(url)
        everything = {customer: [0, 1, 2] for customer in KEYS}
        until(lambda: read(url) == everything, "all events are read")


@pytest.mark.parametrize("ordering", ["gated", "sequenced"])
def test_closed_partition_ends_only_when_it_is_settled(postgresql, shop_of, ordering):
    """The end of a closed partition is not shown while its last events lie above the horizon."""
    names = shop_of(postgresql, "layouts")
    orders, after = names["orders"], names["AFTER"]
    feed = TableFeed(orders, partition="part", partitions=after, data="data", ordering=ordering)
    install(feed, postgresql)
    with postgresql.connect() as slow:
        if ordering == "gated":
            slow.execute(insert(orders).values(customer="bob", part=2, data={"n": 1}))
        else:
            # Another session is about to give positions, so that no other does.
            (state,) = (name for name in inspect(slow).get_table_names() if "_state_" in name)
            slow.execute(text(f"SELECT * FROM {state} FOR UPDATE"))
        execute(postgresql, insert(orders).values(customer="ada", part=0, data={"n": 0}))
        with pytest.raises(Unavailable, match="closed"):
            feed.bind(postgresql).read(0, FIRST, 10)
        slow.commit()
    assert [event.data["n"] for event in feed.bind(postgresql).read(0, FIRST, 10).events] == [0]


@pytest.mark.parametrize("mark", ["expression", "generated"])
def test_guide_publishes_by_the_hash_of_a_key(engine, mark):
    """The guide's tables are read by the hash of the customer."""
    if mark == "expression" and engine.dialect.name == "mariadb":
        pytest.skip("MariaDB has no indexes on expressions")
    with guide("partitions.md", engine=engine) as piece:
        piece("shop")
        names = piece(mark)
    orders, row = names["orders"], {"part": 0} if mark == "expression" else {}
    names["metadata"].create_all(engine)
    with engine.begin() as connection:
        rows = [{"customer": customer, "data": customer, **row} for customer in KEYS]
        connection.execute(insert(orders), rows)
    feed = names.get("feed", TableFeed(orders, partition="part", partitions=4, data="data"))
    for part in range(4):
        found = [event.data for event in feed.bind(engine).read(part, FIRST, 100).events]
        assert found == [customer for customer in KEYS if key_hash(customer) % 4 == part]


def test_hashes_in_the_guide_are_right():
    """The examples of the guide are what the definition gives."""
    rows = re.findall(r"^\| ([^|]+) \| ([0-9a-f ]*)\| (\d+) \| (\d+) \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 10
    for _, encoded, hashed, part in rows:
        key = bytes.fromhex(encoded).decode()
        assert (key_hash(key), key_hash(key) % 16) == (int(hashed), int(part))
