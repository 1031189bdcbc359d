"""Cursors of a history that is another one by now: failovers, backups, and what stands for both."""

from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest
import sqlalchemy as sa
from harness.databases import new_database, restore
from harness.log import connected
from harness.ordering_table import SEQUENCED, SEQUENCED_MARIADB, for_each
from harness.shop import metadata, orders
from harness.soak_histories import KINDS, Histories
from harness.statements import add, before_query, execute
from harness.tables import event_table
from harness.trimmed import NOON, NOTHING, PLACED, numbers, place_at, trim, uses
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import Diverged, Gone


@pytest.fixture(scope="module")
def histories(mariadb_server_url):
    """Publishers that disasters may befall, on each database."""
    with Histories.open({"mariadb": lambda: new_database(mariadb_server_url)}) as found:
        yield found


NOW = {"failover, events lost", "restored dump, nothing lost", "restored dump, events lost"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.name, marks=() if kind.name in NOW else pytest.mark.test_all)
        for kind in KINDS
    ],
)
def test_history_is_told_apart(histories, kind):
    """A cursor whose events are all there goes on by itself; any other is refused for good."""
    found = histories.run(kind, 1)
    assert found.complaints == []
    assert found.counts["goes on"] >= 4
    assert kind.keeps or found.counts["refused"] >= 4


# A row of many types, by column.
WIDE = {
    "kind": (sa.String(40), "größer"),
    "at": (sa.DateTime(timezone=True), NOON),
    "local": (sa.DateTime(), NOON.replace(tzinfo=None)),
    "price": (sa.Numeric(20, 4), "12345678.5"),
    "weight": (sa.Float(), 3.1),
    "paid": (sa.Boolean(), True),
    "photo": (sa.LargeBinary(), b"\0\xff"),
    "number": (sa.Uuid(), None),
    "data": (sa.JSON(), {"b": [1.0, 2e30, "ü"], "a": {"n": 7, "n2": None}}),
}
ELSEWHERE = {
    "postgresql": {"options": "-c TimeZone=Asia/Kolkata"},
    "mariadb": {"init_command": "SET time_zone = '+05:30'"},
    "sqlite": {},
}


@pytest.mark.anyio
async def test_digests_are_the_same_everywhere(engine, async_engine):
    """An async driver, another time zone and a restored database give the same cursors."""
    key = sa.Column("id", sa.Integer, primary_key=True)
    columns = (sa.Column(name, kind) for name, (kind, _) in WIDE.items())
    table = sa.Table("wide", sa.MetaData(), key, *columns, sqlite_autoincrement=True)
    table.create(engine)
    row = {name: value for name, (_, value) in WIDE.items()}
    add(engine, table, [row, {**row, "kind": None, "paid": False}])
    source = TableFeed(table, time="at", type="kind", cloudevents=True)
    cursors = source.bind(engine).read(0, FIRST, 9, each=True).cursors
    assert len({*cursors}) == 2
    assert (await source.bind(async_engine).read(0, FIRST, 9, each=True)).cursors == cursors
    with another_database(engine.url) as url:
        restore(engine.url, url)
        for place, arguments in ((engine.url, ELSEWHERE[engine.dialect.name]), (url, {})):
            with connected(place, **arguments) as other:
                assert source.bind(other).read(0, FIRST, 9, each=True).cursors == cursors


@pytest.mark.anyio
async def test_digests_are_the_same_by_all_drivers(postgresql):
    """A driver that takes numbers in binary form gives the same cursors as one that reads text."""
    table = event_table(
        "wide", real=sa.REAL, short=sa.Float(24), long=sa.Float(25), reals=sa.ARRAY(sa.REAL)
    )
    table.create(postgresql)
    reals = [3.4e38, None, float("nan")]
    add(postgresql, table, [{"real": 0.1, "short": 0.1, "long": 0.1, "reals": reals}])
    source = TableFeed(table)
    (cursor,) = source.bind(postgresql).read(0, FIRST, 9, each=True).cursors
    own = create_async_engine(postgresql.url.set(drivername="postgresql+asyncpg"))
    page = await source.bind(own).read(0, FIRST, 9)
    await own.dispose()
    numbers_read = dict.fromkeys(["real", "short", "long"], 0.1)
    assert page.events[0].data == {"id": 1, **numbers_read, "reals": [3.4e38, None, "NaN"]}
    assert page.cursor == cursor


@contextmanager
def another_database(url):
    """Yield the URL of an empty database beside another."""
    if url.get_backend_name() == "sqlite":
        yield url.set(database=f"{url.database}.copy")
        return
    with new_database(url.render_as_string(hide_password=False)) as found:
        yield sa.make_url(found)


@pytest.fixture
def shop(any_engine):
    """An engine of a database with four orders in two partitions."""
    metadata.create_all(any_engine)
    place_at(any_engine, range(4))
    return any_engine


def shop_feed(**options):
    """Return a feed over orders that knows all extensions."""
    given = {"data": "data", "partition": "part", "partitions": 2, "type": "kind", "time": "placed"}
    return TableFeed(orders, **{**given, **options})


SET_BACK = {
    "postgresql": "SELECT setval('orders_id_seq', {last})",
    "mariadb": "ALTER TABLE orders AUTO_INCREMENT = {next}",
    "sqlite": "UPDATE sqlite_sequence SET seq = {last}",
}


def set_back(engine, last):
    """Lose all orders behind the last."""
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id > last))
        statement = SET_BACK[engine.dialect.name].format(last=last, next=last + 1)
        connection.execute(sa.text(statement))


def ways(feed):
    """Return cursors behind the last of four orders, by the way in which they were given."""
    return {
        "page": feed.read(1, FIRST, 10).cursor,
        "full page": feed.read(1, FIRST, 2).cursor,
        "each": feed.read(1, FIRST, 10, each=True).cursors[-1],
        "_last": feed.read(0, LAST, 10).cursor,
        "_last of the other": feed.read(1, LAST, 10).cursor,
        "filtered": feed.read(0, FIRST, 10, types=PLACED).cursor,
        "filtered, empty": feed.read(1, FIRST, 10, types=NOTHING).cursor,
        "cursor_after": feed.cursor_after(4),
        "cursor_at": feed.cursor_at(NOON + timedelta(hours=9), 1),
        "cursor_at of the other": feed.cursor_at(NOON + timedelta(hours=9), 0),
        "cursor_of": feed.cursor_of("4", 1),
        "splits": feed.splits(1, 3)[-1],
        "cursor_of_count": feed.cursor_of_count(1, FIRST, 10).cursor,
        "stop": feed.read(1, FIRST, 10, stop=feed.cursor_after(4)).cursor,
    }


def test_cursor_of_any_origin_is_refused(shop):
    """Each way to use a cursor, in each partition, notices that its event was lost or replaced."""
    feed = shop_feed().bind(shop)
    given = ways(feed)
    assert len(set(given.values())) == 1, given
    cursor, early = given["page"], feed.cursor_after(3)
    for use in uses(feed, cursor):
        use()
    set_back(shop, 3)
    for minutes in ([], [5], [7, 8, 9]):
        place_at(shop, minutes)
        for use in uses(feed, cursor):
            with pytest.raises(Diverged):
                use()
    assert numbers(feed, 0, early) == [8]
    assert numbers(feed, 1, early) == [5, 7, 9]


@for_each(SEQUENCED, SEQUENCED_MARIADB)
def test_event_that_is_inserted_again_refuses_no_cursor(log, case):
    """A cursor stays good while its event's key waits for another position, is trimmed, and on."""
    log.assert_news(1, 2, 3, 4, 5)
    cursor = log.feed.read(0, FIRST, 2).cursor
    state = log.feed.reader.ordering.source.table.name.replace("positions", "state")
    with log.engine.begin() as another:
        # As another reader, which gives positions just now.
        another.exec_driver_sql(f"SELECT * FROM {state} FOR UPDATE")
        log.run("DELETE FROM log WHERE n = 2", "INSERT INTO log (id, n) VALUES (2, 9)")
        for on_page in (None, lambda _page: None):
            pages = log.feed.read_pages(0, cursor, 1, 2, on_page=on_page)
            assert [event.data["n"] for page in pages for event in page.events] == [3, 4]
        log.feed.vouch([cursor])
        trim(log.feed, 3)
    assert [event.data["n"] for event in log.feed.read(0, cursor, 9).events] == [3, 4, 5, 9]
    log.run("UPDATE log SET n = 7 WHERE n = 3")
    with pytest.raises(Diverged):
        log.feed.read(0, pages[0].cursor, 9)


def test_pages_are_handed_over_before_the_others_are_read(shop):
    """The feed hands over full pages early, in order, and none of a history without the cursor."""
    feed, early = shop_feed().bind(shop), []
    place_at(shop, range(10, 30))
    cursor = feed.read(0, FIRST, 2).cursor
    pages = feed.read_pages(0, cursor, 2, 4, on_page=early.append)
    assert len(pages) == 4
    assert early == pages
    last = feed.read_pages(0, pages[-1].cursor, 3, 4, on_page=early.append)
    assert early == pages + [page for page in last if page.full]
    set_back(shop, 2)
    place_at(shop, range(30, 50))
    early.clear()
    with pytest.raises(Diverged):
        feed.read_pages(0, cursor, 2, 4, on_page=early.append)
    assert not early


def test_feed_vouches_for_cursors_of_its_history(shop):
    """Of some cursors the last one shows whether history is another one behind them by now."""
    feed = shop_feed().bind(shop)
    cursors = [feed.cursor_after(position) for position in (0, 2, 3)]
    feed.vouch(cursors)
    feed.vouch([])
    feed.vouch(["1-3"])
    set_back(shop, 2)
    with pytest.raises(Diverged):
        feed.vouch(cursors)
    feed.vouch(cursors[:2])
    place_at(shop, (60, 61))
    with pytest.raises(Diverged):
        feed.vouch(cursors)


def test_mutable_feed_takes_any_cursor_up_to_its_end(shop):
    """Where events may change, numbers alone are compared, whichever feed has given the cursor."""
    strict, feed = shop_feed().bind(shop), shop_feed(mutable=True).bind(shop)
    assert set(ways(feed).values()) == {"1-4"}
    cursors = ["1-4", strict.cursor_after(4)]
    set_back(shop, 3)
    for use in (use for cursor in cursors for use in uses(feed, cursor)):
        with pytest.raises(Diverged):
            use()
    place_at(shop, [5, 7])
    for use in (use for cursor in cursors for use in uses(feed, cursor)):
        use()
    assert [numbers(feed, 1, cursor) for cursor in cursors] == [[7], [7]]
    execute(shop, orders.delete())
    assert [numbers(feed, 1, cursor) for cursor in cursors] == [[], []]
    assert feed.read(0, LAST, 1).cursor == "1-5"


@pytest.mark.parametrize(
    ("since", "now"),
    [
        ({}, {"cloudevents": True}),
        ({}, {"headers": {"customer": "customer"}}),
        ({"data": {"v": sa.literal(1)}}, {"data": {"v": sa.literal(2)}}),
    ],
)
def test_events_made_in_another_way_refuse_no_cursor(shop, since, now):
    """A deploy that changes how events are made keeps cursors; a missing event is still noticed."""
    cursor = shop_feed(**since).bind(shop).cursor_after(3)
    feed = shop_feed(**now).bind(shop)
    page = feed.read(1, cursor, 10)
    assert len(page.events) == 1
    execute(shop, orders.delete().where(orders.c.id == 3))
    with pytest.raises(Diverged):
        feed.read(1, cursor, 10)
    assert feed.read(1, page.cursor, 10).events == []


@pytest.mark.parametrize(
    ("partition", "types", "sizes"),
    [
        (0, None, (6, 6)),
        (0, NOTHING, (6, 6)),
        (2, None, (6, 6)),
        (0, None, (7, 7)),
        (0, None, (60, 60)),
        (0, None, (60, 20)),
    ],
)
def test_history_exchanged_between_any_two_statements(sqlite, partition, types, sizes, monkeypatch):
    """Whenever in the course of a read another history takes the place of one, it is noticed."""
    monkeypatch.setattr("zeroeventhub.publisher.reader.QUIET", 1)

    def exchange():
        set_back(sqlite, 1)
        place_at(sqlite, range(20, 120, 2))

    metadata.create_all(sqlite)
    count, limit = sizes
    steps = 0
    while True:
        execute(sqlite, orders.delete(), "DELETE FROM sqlite_sequence")
        place_at(sqlite, [*range(0, 2 * count, 2), 121])
        feed = shop_feed(partitions=3).bind(sqlite)
        feed.info()
        cursor, stop = feed.cursor_after(2), feed.cursor_after(5) if count == 6 else None
        with before_query(sqlite, steps, exchange) as exchanged, suppress(Gone):
            feed.read(partition, cursor, limit, stop=stop, types=types)
            if not exchanged:
                break
            pytest.fail(f"The history was exchanged before statement {steps} of a read.")
        steps += 1
    assert steps > 3
