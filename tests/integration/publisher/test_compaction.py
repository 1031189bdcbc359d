"""Feeds that keep the last event of each key: what goes, what stays, and what readers get."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from harness.log import Log
from harness.ordering_table import (
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCING,
    SINGLE_WRITER,
    of_any,
)
from harness.published import install, published
from harness.shop import orders
from harness.statements import add, execute, scalars
from harness.trimmed import position_of
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    update,
)

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.publisher.retention import Compaction, Retention

HOUR = timedelta(hours=1)
OPTIONS = {"data": "data", "partition": "part", "partitions": 2, "time": "placed"}
OPTIONS |= {"key": "customer", "retention": Retention(), "compaction": Compaction()}


def source(compaction=None, **options):
    """A feed over orders in two partitions, whose key is the customer."""
    return TableFeed(orders, **{**OPTIONS, "compaction": compaction or Compaction(), **options})


def part_of(customer):
    """The partition of a customer."""
    return len(customer or "") % 2


def write(engine, *rows):
    """Append orders: whose, of which kind, and of how many hours ago."""
    now = datetime.now(UTC)
    with engine.begin() as connection:
        for customer, kind, hours in rows:
            row = {"customer": customer, "kind": kind, "placed": now - hours * HOUR}
            row |= {"part": part_of(customer), "data": {"customer": customer}}
            connection.execute(insert(orders), row)


def fill(_engine):
    """Begin with an empty table."""


def left(engine):
    """The numbers of the orders that are there."""
    return scalars(engine, select(orders.c.id).order_by(orders.c.id))


def events(bound, partition, cursor=FIRST, limit=3):
    """The data of the events of a partition, and all cursors on the way."""
    found, cursors = [], []
    while True:
        page = bound.read(partition, cursor, limit)
        found += [event.data for event in page.events]
        cursor = page.cursor
        cursors.append(cursor)
        if page.caught_up:
            return found, cursors


def settled(bound):
    """Wait for the horizon."""
    bound.head()
    return bound


def test_later_event_in_another_partition_lets_none_go(shop, feed):
    """An event stays if only another partition has a later event of its key."""
    rows = [{"part": part, "customer": "ada", "data": {"n": part}} for part in (0, 1)]
    add(shop, orders, rows)
    write(shop, ("bob", "placed", 0))
    assert settled(feed).compact() == 0
    assert left(shop) == [1, 2, 3]


def test_cursors_stay_good(any_shop, any_feed):
    """Every cursor stays valid, also one at a deleted event."""
    write(any_shop, *[(key, "placed", 1) for key in ("ada", "bo") * 6])
    bound = settled(any_feed)
    before = {part: events(bound, part, limit=1)[1] for part in (0, 1)}
    assert bound.compact() == 10
    for part, cursors in before.items():
        rest = {number: key for number, key in ((11, "ada"), (12, "bo")) if part_of(key) == part}
        for cursor in (FIRST, *cursors):
            position = 0 if cursor == FIRST else position_of(cursor)
            wanted = [{"customer": key} for number, key in rest.items() if number > position]
            assert events(bound, part, cursor)[0] == wanted


def test_event_that_is_not_settled_stands_for_none(postgresql):
    """An event above the horizon does not replace an earlier one."""
    bound = published(postgresql, **OPTIONS)
    write(postgresql, ("ada", "placed", 1))
    settled(bound)
    with postgresql.begin() as open_writer:
        open_writer.execute(insert(orders), {"customer": "bob", "part": 0, "data": {}})
        write(postgresql, ("ada", "placed", 1))
        assert bound.compact() == 0
    assert settled(bound).compact() == 1
    assert left(postgresql) == [2, 3]


def test_what_is_young_or_says_that_a_key_is_no_more_goes_later(any_shop):
    """Compaction keeps young events, tombstones for `keep_tombstones`, and those without key."""
    write(
        any_shop, ("ada", "placed", 9), ("bob", "placed", 9), ("ada", "gone", 8), ("bob", "gone", 1)
    )
    write(
        any_shop, (None, "gone", 9), ("eve", "placed", 8), ("eve", "placed", 1), (None, "gone", 0)
    )
    for young, keep, deleted, rest in (
        (8.5, 99, 2, [3, 4, 5, 6, 7, 8]),
        (0, 5, 2, [4, 5, 7, 8]),
        (0, 0, 1, [5, 7, 8]),
    ):
        compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=keep * HOUR)
        bound = settled(source(compaction).bind(any_shop))
        assert bound.compact(older_than=young * HOUR, rows=1) == deleted
        assert left(any_shop) == rest


def test_tombstone_stays_while_another_partition_has_its_key(any_shop):
    """A tombstone is kept as long as an event that it deletes, which a split has left elsewhere."""
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=HOUR)
    write(
        any_shop, ("ada", "placed", 9), ("ada", "gone", 8), ("bob", "gone", 8), ("eve", "gone", 0)
    )
    execute(any_shop, update(orders).where(orders.c.id == 1).values(part=0))
    bound = settled(source(compaction).bind(any_shop))
    assert bound.compact() == 1
    assert left(any_shop) == [1, 2, 4]
    bound.trim(bound.plan_trim(below=2))
    assert bound.compact() == 1
    assert left(any_shop) == [4]


def test_tombstone_that_nothing_follows_stays(any_shop):
    """The last event of the table stays, as its number would be given again."""
    write(any_shop, ("ada", "placed", 9), ("ada", "gone", 8))
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=HOUR)
    assert settled(source(compaction).bind(any_shop)).compact() == 1
    assert left(any_shop) == [2]


def test_keys_that_only_a_collation_takes_for_one_both_stay(engine):
    """A column may compare texts without regard to letter case, but readers know two keys."""
    text = String(40).with_variant(String(40, collation="NOCASE"), "sqlite")
    number = Column("id", Integer, primary_key=True)
    names = Table("names", MetaData(), number, Column("name", text), sqlite_autoincrement=True)
    names.create(engine)
    options = {"retention": Retention(), "compaction": Compaction()}
    feed = TableFeed(names, data=["name"], key="name", **options)
    install(feed, engine)
    with engine.begin() as connection:
        connection.execute(insert(names), [{"name": name} for name in ("Ada", "ada", "Ada", "b")])
    bound = settled(feed.bind(engine))
    assert bound.compact() == 1
    assert [one["name"] for one in events(bound, 0)[0]] == ["ada", "Ada", "b"]


@of_any([SEQUENCED, OBSERVED_MARIADB, SINGLE_WRITER], *SEQUENCING, OBSERVED)
def test_every_ordering_is_compacted(request, case):
    """With every ordering, only the last event of each key is left."""
    log = Log(request.getfixturevalue(case.database), case)
    log.publish(key="n", retention=Retention(), compaction=Compaction())
    log.write(*[0, 1, 2] * 4)
    bound = settled(log.feed)
    assert [bound.compact(rows=5), bound.compact()] == [9, 0]
    assert sorted(log.everything()) == [0, 1, 2]


def test_other_keys_cost_a_compaction_nothing(postgresql):
    """Of a sequenced feed, a batch reads the events of its keys and no others."""
    log = Log(postgresql, SEQUENCED)
    log.publish(key="n", retention=Retention(), compaction=Compaction())
    log.run(
        "CREATE INDEX log_by_n ON log (n, id)",
        "INSERT INTO log (n) SELECT mod(i, 100) FROM generate_series(1, 10000) AS i",
    )
    until(lambda: log.feed.head() == 10_000, "every event has its position")
    log.run("ANALYZE")
    name = log.feed.reader.ordering.source.table.name
    read = f"SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = '{name}'"
    before = log.count(read)
    assert log.feed.compact(rows=2000) == 9900
    postgresql.dispose()  # a session that ends says what it has read
    until(lambda: log.count(read) - before > 10_000, "the statistics are there")
    assert log.count(read) - before < 500_000


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), max_size=30),
    st.integers(1, 7),
)
@settings(max_examples=10)
def test_what_is_left_is_what_a_table_of_keys_has(written, rows):
    """A reader of a compacted feed gets the same state of each key as a reader of all events."""
    engine = create_engine("sqlite://")
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=timedelta())
    one = {"partition": None, "partitions": None, "compaction": compaction}
    feed = published(engine, **OPTIONS | one)
    write(engine, *[(key, "gone" if is_gone else "placed", 1) for key, is_gone in written])
    with engine.connect() as connection:
        key = func.coalesce(orders.c.customer, orders.c.id)
        of_keys = set(connection.scalars(select(func.max(orders.c.id)).group_by(key)))
        tombstones = orders.c.kind == "gone", orders.c.customer.is_not(None)
        gone = set(connection.scalars(select(orders.c.id).where(*tombstones)))
    settled(feed).compact(rows=rows)
    kept = set(left(engine))
    engine.dispose()
    assert of_keys - gone <= kept <= of_keys
    assert kept & gone <= {len(written)}


def test_nothing_is_missed_beside_writers(shop, feed):
    """Readers get the last event of each key while writers write and a compaction runs."""
    bound, cursors, known = settled(feed), {0: FIRST, 1: FIRST}, {}

    def write_on(seed):
        chance = random.Random(seed)
        for _ in range(40):
            write(shop, (f"k{chance.randrange(5)}", "placed", 0))

    def compact(writers):
        while not all(writer.done() for writer in writers):
            bound.compact(rows=7)

    def look():
        for part, cursor in list(cursors.items()):
            page = bound.read(part, cursor, 5, each=True)
            for event, at in zip(page.events, page.cursors, strict=True):
                known[event.data["customer"]] = position_of(at)
            cursors[part] = page.cursor
        return known

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(write_on, seed) for seed in range(3)]
        working.append(pool.submit(compact, [*working]))
        while not all(each.done() for each in working):
            look()
        for each in working:
            each.result(60)
    with shop.connect() as connection:
        last = select(orders.c.customer, func.max(orders.c.id)).group_by(orders.c.customer)
        expected = dict([*map(tuple, connection.execute(last))])
    until(lambda: look() == expected, "the reader knows the last event of each key")
