"""Feeds that keep the last event of each key: what goes, what stays, and what readers get."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from harness.log import Log
from harness.ordering_table import OBSERVED, OBSERVED_MARIADB, SEQUENCING, SINGLE_WRITER
from harness.shop import metadata, orders
from harness.trimmed import of_each, position_of
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, func, insert, select

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import COMPACTED
from zeroeventhub.publisher.compacting import Compaction
from zeroeventhub.publisher.retention import Retention

HOUR = timedelta(hours=1)


def source(compaction=None, **options):
    """A feed over orders in two partitions, whose key is the customer."""
    given_ = {"data": "data", "partition": "part", "partitions": 2, "time": "placed"}
    given_ |= {"key": "customer", "retention": Retention()}
    return TableFeed(orders, compaction=compaction or Compaction(), **{**given_, **options})


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


def ready(engine):
    """Make a database whose feed can be compacted."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        source().install(connection)
    return engine


@pytest.fixture
def shop(engine):
    """An engine of a database whose feed can be compacted, on each database."""
    return ready(engine)


@pytest.fixture
def any_shop(any_engine):
    """The same on a database of any kind."""
    return ready(any_engine)


def left(engine):
    """The numbers of the orders that are there."""
    with engine.connect() as connection:
        return list(connection.scalars(select(orders.c.id).order_by(orders.c.id)))


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


def test_last_event_of_each_key_stays(shop):
    """Of each key the last event stays, and so does every event that has none."""
    write(shop, *[(key, "placed", 1) for key in ("ada", "bob", "ada", None, "eve", "ada", None)])
    bound = settled(source().bind(shop))
    assert bound.compact(rows=2) == 2
    assert left(shop) == [2, 4, 5, 6, 7]
    assert bound.compact() == 0


def test_later_event_in_another_partition_lets_none_go(shop):
    """A reader of one partition does not hear what the key has become in another one."""
    rows = [{"part": part, "customer": "ada", "data": {"n": part}} for part in (0, 1)]
    with shop.begin() as connection:
        connection.execute(insert(orders), rows)
    write(shop, ("bob", "placed", 0))
    bound = settled(source().bind(shop))
    assert bound.compact() == 0
    assert events(bound, 0)[0][0] == {"n": 0}


def test_cursors_stay_good(any_shop):
    """Every cursor that was given goes on, also one at an event that has gone."""
    write(any_shop, *[(key, "placed", 1) for key in ("ada", "bo") * 6])
    bound = settled(source().bind(any_shop))
    before = {part: events(bound, part, limit=1)[1] for part in (0, 1)}
    assert bound.compact() == 10
    for part, cursors in before.items():
        rest = {number: key for number, key in ((11, "ada"), (12, "bo")) if part_of(key) == part}
        for cursor in (FIRST, *cursors):
            position = 0 if cursor == FIRST else position_of(cursor)
            wanted = [{"customer": key} for number, key in rest.items() if number > position]
            assert events(bound, part, cursor)[0] == wanted


def test_pages_are_not_said_to_stay_as_they_are(any_shop):
    """A page whose events may still go is none that never changes, also before any has gone."""
    write(any_shop, *[("ada", "placed", 1)] * 3)
    part = part_of("ada")
    plain = TableFeed(
        orders, data="data", partition="part", partitions=2, retention=Retention()
    ).bind(any_shop)
    assert settled(plain).read(part, FIRST, 2).full
    assert not settled(source().bind(any_shop)).read(part, FIRST, 2).full


def test_young_events_stay(any_shop):
    """What is younger than an age stays, though it lets older ones go."""
    write(any_shop, ("ada", "placed", 9), ("ada", "placed", 8), ("ada", "placed", 1))
    write(any_shop, ("ada", "placed", 0))
    bound = settled(source().bind(any_shop))
    assert bound.compact(older_than=5 * HOUR) == 2
    assert left(any_shop) == [3, 4]


def test_event_that_is_not_settled_stands_for_none(postgresql):
    """What lies above the horizon is not read yet, so what it will stand for stays."""
    ready(postgresql)
    write(postgresql, ("ada", "placed", 1))
    bound = settled(source().bind(postgresql))
    with postgresql.begin() as open_writer:
        open_writer.execute(insert(orders), {"customer": "bob", "part": 0, "data": {}})
        write(postgresql, ("ada", "placed", 1))
        assert bound.compact() == 0
    assert settled(bound).compact() == 1
    assert left(postgresql) == [2, 3]


def test_tombstones_go_when_they_are_old(shop):
    """An event that says that its key is no more takes the key with it, some time later."""
    write(shop, ("ada", "placed", 9), ("bob", "placed", 9), ("ada", "gone", 8), ("bob", "gone", 1))
    write(shop, ("eve", "placed", 1))
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=5 * HOUR)
    bound = settled(source(compaction).bind(shop))
    assert bound.compact() == 3
    assert left(shop) == [4, 5]
    late = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=timedelta())
    assert settled(source(late).bind(shop)).compact() == 1
    assert left(shop) == [5]


@pytest.mark.parametrize("rest", [[("bob", "placed", 1)], []])
def test_tombstone_of_no_key_and_the_last_event_of_all_stay(any_shop, rest):
    """What says that no key is no more is kept as every event without a key; so is a tombstone
    behind which nothing lies, for its number would be given again.
    """
    write(any_shop, (None, "gone", 9), ("ada", "placed", 9), ("ada", "gone", 8), *rest)
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=HOUR)
    assert settled(source(compaction).bind(any_shop)).compact() == (2 if rest else 1)
    assert left(any_shop) == [1, 4 if rest else 3]


@of_each(*SEQUENCING, OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER)
def test_every_ordering_is_compacted(request, case):
    """With every ordering, the last event of each key is all that is left to read."""
    log = Log(request.getfixturevalue(case.database), case)
    log.publish(key="n", retention=Retention(), compaction=Compaction())
    log.write(*[0, 1, 2] * 4)
    bound = settled(log.feed)
    assert bound.compact(rows=5) == 9
    assert sorted(log.everything()) == [0, 1, 2]


@pytest.mark.anyio
async def test_async_feed_is_compacted(async_engine):
    """A feed with an async engine does the same."""
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(source().install)
        await connection.execute(
            insert(orders), [{"customer": "ada", "part": 0, "data": {}} for _ in range(3)]
        )
    bound = source().bind(async_engine)
    await bound.head()
    assert await bound.compact() == 2


def test_discovery_says_it(sqlite):
    """A feed that is compacted announces it; others do not."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        source().install(connection)
    assert COMPACTED in source().bind(sqlite).info().extensions
    assert COMPACTED not in TableFeed(orders, data="data").bind(sqlite).info().extensions


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"key": None}, "give key"),
        ({"key": orders.c.customer + "x"}, "has to be a column"),
        ({"retention": None}, "retention"),
        ({"time": None, "compaction": Compaction(tombstone=orders.c.kind == "x")}, "time"),
    ],
)
def test_what_cannot_be_compacted_is_refused(options, complaint):
    """What a compacted feed needs is said when it is made."""
    with pytest.raises(ConfigurationError, match=complaint):
        source(**options)


def test_feed_that_does_not_say_so_is_not_compacted(sqlite):
    """A feed that promises all its events keeps them."""
    metadata.create_all(sqlite)
    feed = TableFeed(orders, data="data", retention=Retention())
    with sqlite.begin() as connection:
        feed.install(connection)
    with pytest.raises(ConfigurationError, match="compaction"):
        feed.bind(sqlite).compact()


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30),
    st.integers(1, 7),
)
@settings(max_examples=25)
def test_what_is_left_is_what_a_table_of_keys_has(written, rows):
    """Whatever was written, a reader of the rest knows of each key what a reader of all knows."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    compaction = Compaction(tombstone=orders.c.kind == "gone", keep_tombstones=timedelta())
    feed = source(compaction, partition=None, partitions=None)
    with engine.begin() as connection:
        feed.install(connection)
    write(engine, *[(key, "gone" if is_gone else "placed", 1) for key, is_gone in written])
    with engine.connect() as connection:
        last = select(func.max(orders.c.id)).group_by(orders.c.customer)
        of_keys = set(connection.scalars(last))
        gone = set(connection.scalars(select(orders.c.id).where(orders.c.kind == "gone")))
    settled(feed.bind(engine)).compact(rows=rows)
    kept = set(left(engine))
    assert of_keys - gone <= kept <= of_keys
    assert kept & gone <= {len(written)}


def write_on(engine, seed):
    """Write orders of a few customers."""
    chance = random.Random(seed)
    for _ in range(40):
        write(engine, (f"k{chance.randrange(5)}", "placed", 0))


def test_nothing_is_missed_beside_writers(shop):
    """Readers that read while others write and a third compacts know of each key its last event."""
    bound, cursors, known = settled(source().bind(shop)), {0: FIRST, 1: FIRST}, {}

    def look():
        for part, cursor in list(cursors.items()):
            page = bound.read(part, cursor, 5, each=True)
            for event, at in zip(page.events, page.cursors, strict=True):
                known[event.data["customer"]] = position_of(at)
            cursors[part] = page.cursor

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write_on, shop, seed) for seed in range(3)]

        def compact():
            while not all(writer.done() for writer in writers):
                bound.compact(rows=7)

        compacting = pool.submit(compact)
        while not compacting.done():
            look()
        for each in (*writers, compacting):
            each.result(60)
    settled(bound)
    with shop.connect() as connection:
        last = select(orders.c.customer, func.max(orders.c.id)).group_by(orders.c.customer)
        expected = {row[0]: row[1] for row in connection.execute(last)}

    def is_known():
        look()
        return known == expected

    until(is_known, "the reader knows the last event of each key", 10)
