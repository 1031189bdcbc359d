"""Cursors of a history that is another one by now: failovers, backups, and what stands in for
both where a test needs many of them.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.databases import new_database
from harness.dumps import restore
from harness.log import Log, append, connected
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCING,
    SINGLE_WRITER,
    for_each,
)
from harness.shop import metadata, orders
from harness.soak_histories import KINDS, Histories, lagging_failover
from harness.waiting import until
from harness.web import serving
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    event,
    insert,
    literal,
    make_url,
    text,
)
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, feed_routes
from zeroeventhub.errors import Diverged, Gone, Trimmed, Unavailable
from zeroeventhub.protocol import Page, TypeFilter

PATIENCE = 60
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
PLACED = TypeFilter(frozenset({"placed"}))
NOTHING = TypeFilter(frozenset({"nothing"}))
DIVERGED = "urn:zeroeventhub:problem/diverged"


@pytest.fixture
def log(request, case):
    """A log in an empty database."""
    return Log(request.getfixturevalue(case.database), case)


@pytest.fixture(scope="module")
def histories(mariadb_server_url):
    """Publishers that disasters may befall, on each database."""
    with Histories.open({"mariadb": lambda: new_database(mariadb_server_url)}) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_history_is_told_apart(histories, kind):
    """A cursor whose events are all there goes on by itself; any other is refused for good, and
    nothing is applied.
    """
    found = histories.run(kind, 1)
    assert found.complaints == []
    assert found.counts["goes on"] >= 4
    assert kind.keeps or found.counts["refused"] >= 4


def get(url, **parameters):
    """Get a page of FeedAPI v2."""
    return httpx.get(
        f"{url}/events", params={"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    )


def follow(feed, cursor, partition=0):
    """Read on from a cursor to the end; return the numbers of all events."""
    seen = []
    while True:
        page = feed.read(partition, cursor, 1000)
        if not page.events:
            return seen
        seen += [event.data["n"] for event in page.events]
        cursor = page.cursor


# A failover.


@for_each(OBSERVED, GATED, SEQUENCED, later=[GATED, SEQUENCED])
def test_horizon_from_before_a_failover_is_forgotten(histories, case):
    """A process that outlives a failover does not take what it knew of numbers for settled where
    they are drawn again, and waits for who writes there.
    """
    with histories.place(case) as place:
        log = Log(place.engine, case)
        log.publish()
        log.write(0)
        assert log.news() == [0]
        cursor = log.cursor
        with lagging_failover(place) as strike:
            log.write(*range(2, 202))
            assert log.news() == [*range(2, 202)]
            strike()
            with log.engine.connect() as slow:
                append(slow, 1000)
                log.write(*range(1001, 1301))
                page = Page([], cursor)
                with suppress(Unavailable):  # observed, which has to see every writer end first
                    page = log.feed.read(0, cursor, 1000)
                slow.commit()
            seen = [event.data["n"] for event in page.events] + follow(log.feed, page.cursor)
            assert sorted(seen) == [*range(1000, 1301)]
            log.engine.dispose()


# Digests.


WIDE = Table(
    "wide",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("part", Integer, nullable=False),
    Column("kind", String(40)),
    Column("at", DateTime(timezone=True)),
    Column("local", DateTime),
    Column("price", Numeric(20, 4)),
    Column("weight", Float),
    Column("paid", Boolean),
    Column("photo", LargeBinary),
    Column("number", Uuid),
    Column("data", JSON),
    sqlite_autoincrement=True,
)
ROWS = [
    {
        "part": number % 2,
        "kind": "größer" if number % 2 else None,
        "at": NOON + timedelta(minutes=number),
        "local": NOON.replace(tzinfo=None),
        "price": "12345678.5",
        "weight": 0.1 + number,
        "paid": number % 2 == 0,
        "photo": b"\0\xff",
        "data": {"b": [1.0, 2e30, "ü"], "a": {"n": number, "n2": None}},
    }
    for number in range(4)
]


def wide_feed(**options):
    """Return a feed of one partition of rows of many types, in CloudEvents."""
    options = {"time": "at", "type": "kind", "cloudevents": True, **options}
    return TableFeed(WIDE, partition="part", partitions=2, **options)


def cursors_of(feed):
    """Return the cursors behind all events of a feed of two partitions."""
    return [
        cursor
        for partition in (0, 1)
        for cursor in feed.read(partition, FIRST, 9, each=True).cursors
    ]


@pytest.fixture
def wide(engine):
    """An engine of a database that holds rows of many types."""
    WIDE.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(WIDE), ROWS)
    return engine


ELSEWHERE = {
    "postgresql": {"options": "-c TimeZone=Asia/Kolkata"},
    "mariadb": {"init_command": "SET time_zone = '+05:30'"},
    "sqlite": {},
}


@pytest.mark.anyio
async def test_digests_are_the_same_everywhere(wide, async_engine):
    """An async driver, a session of another time zone and a restored database give the cursors
    that are given here, one for each event.
    """
    cursors = cursors_of(wide_feed().bind(wide))
    assert len(set(cursors)) == 4
    feed = wide_feed().bind(async_engine)
    pages = [await feed.read(partition, FIRST, 9, each=True) for partition in (0, 1)]
    assert [cursor for page in pages for cursor in page.cursors] == cursors
    with connected(wide.url, **ELSEWHERE[wide.dialect.name]) as engine:
        assert cursors_of(wide_feed().bind(engine)) == cursors
    with another_database(wide.url) as url:
        restore(wide.url, url)
        with connected(url) as engine:
            assert cursors_of(wide_feed().bind(engine)) == cursors


PROCESS = """
import sys
from sqlalchemy import MetaData, Table, create_engine
from zeroeventhub import FIRST, TableFeed
engine = create_engine(sys.argv[1])
table = Table("orders", MetaData(), autoload_with=engine)
feed = TableFeed(table, append_only=True, cloudevents=True, type="kind", time="placed")
print(feed.bind(engine).read(0, FIRST, 1).cursor)
"""


def test_digests_are_the_same_in_every_process(sqlite):
    """Processes in which Python hashes text otherwise give the same cursor."""
    metadata.create_all(sqlite)
    place_at(sqlite, range(1))
    found = {
        subprocess.check_output(
            [sys.executable, "-c", PROCESS, str(sqlite.url)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=PATIENCE,
        )
        for seed in ("1", "2")
    }
    assert len(found) == 1


@contextmanager
def another_database(url):
    """Yield the URL of an empty database beside another."""
    if url.get_backend_name() == "sqlite":
        yield url.set(database=f"{url.database}.copy")
        return
    with new_database(url.render_as_string(hide_password=False)) as found:
        yield make_url(found)


# What stands in for both: events are taken away, and so are their numbers.


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


def place_at(engine, minutes):
    """Append orders of given minutes after noon, the odd ones in partition 1."""
    with engine.begin() as connection:
        for minute in minutes:
            row = {"kind": "placed" if minute % 3 else "paid", "part": minute % 2}
            row |= {"placed": NOON + timedelta(minutes=minute), "data": {"n": minute}}
            connection.execute(insert(orders), row)


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
        connection.execute(text(statement))


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


def uses(feed, cursor):
    """Yield what one can do with a cursor."""
    for partition in (0, 1):
        yield lambda p=partition: feed.read(p, cursor, 10, types=NOTHING)
        yield lambda p=partition: feed.read(p, FIRST, 10, types=NOTHING, stop=cursor)
        yield lambda p=partition: feed.splits(p, 3, start=cursor)
        yield lambda p=partition: feed.lag(p, cursor)
        yield lambda p=partition: feed.cursor_of_count(p, cursor, 3)


def test_cursor_of_any_origin_is_refused(shop):
    """Every way to get a cursor gives the same one, and every way to use it, in each partition,
    notices that its event was lost: while its number is free, and when another event has it.
    """
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
    assert follow(feed, early) == [8]
    assert follow(feed, early, 1) == [5, 7, 9]


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


def test_page_of_a_history_that_is_lost_is_kept_no_longer(shop):
    """A page that a feed has read before a loss is another one soon after it."""
    place_at(shop, range(4, 20, 2))
    routes = feed_routes("/orders", shop_feed(), shop)
    with serving(Starlette(routes=routes)) as url:
        parameters = {"token": "2", "partition": 0, "cursor": "1-0", "pagesizehint": 3}
        before, again = (httpx.get(f"{url}/orders/events", params=parameters) for _ in range(2))
        assert before.content == again.content
        assert "etag" in before.headers
        set_back(shop, 2)
        place_at(shop, range(30, 40, 2))

        def changed():
            answer = httpx.get(f"{url}/orders/events", params=parameters)
            return answer if answer.content != before.content else None

        after = until(changed, "the page of the lost history is given up", 5)
    numbers = [json.loads(line)["data"]["n"] for line in after.text.splitlines()[:-1]]
    assert numbers == [0, 30, 32]
    assert after.headers["etag"] != before.headers["etag"]


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
    assert [follow(feed, cursor, 1) for cursor in cursors] == [[7], [7]]
    with shop.begin() as connection:
        connection.execute(orders.delete())
    assert [follow(feed, cursor, 1) for cursor in cursors] == [[], []]
    assert feed.read(0, LAST, 1).cursor == "1-5"


def test_cursor_without_a_digest_is_still_taken(shop):
    """A cursor of an earlier version, or from before the feed was said to be strict, goes on."""
    feed = shop_feed().bind(shop)
    assert follow(feed, "1-2", 1) == [3]
    page = feed.read(1, "1-2", 10)
    assert page.cursor == feed.cursor_after(4)


def test_requests_of_version_1_are_refused(shop):
    """One cursor that is no longer good has a request of ZeroEventHub v1 answered with 410."""
    feed = shop_feed()
    lost, kept = feed.bind(shop).cursor_after(4), feed.bind(shop).cursor_after(2)
    set_back(shop, 3)
    place_at(shop, [5, 7])
    with serving(Starlette(routes=feed_routes("/orders", feed, shop))) as url:
        for cursors, status in (
            ({"cursor0": kept, "cursor1": kept}, 200),
            ({"cursor0": lost, "cursor1": kept}, 410),
            ({"cursor0": kept, "cursor1": lost}, 410),
            ({"cursor1": lost}, 410),
        ):
            answer = httpx.get(f"{url}/orders", params={"n": 2, **cursors})
            assert answer.status_code == status
            assert status == 200 or answer.json()["type"] == DIVERGED


# An emptied table.


@for_each(OBSERVED, SINGLE_WRITER, OBSERVED_MARIADB, GATED, later=[OBSERVED_MARIADB, GATED])
def test_table_emptied_under_numbers_that_go_on(log):
    """Where nothing before a cursor is left, it is answered with 410, as trimmed; from the
    earliest cursor no event comes twice.
    """
    log.publish()
    log.write(0, 1, 2)
    assert log.news() == [0, 1, 2]
    log.run("TRUNCATE log" if log.database == "postgresql" else "DELETE FROM log")
    for news in ([], [3], [3, 4]):
        log.write(*news[-1:])
        for feed in (log.feed, log.restarted()):
            with pytest.raises(Trimmed) as trimmed:
                feed.read(0, log.cursor, 10)
            assert follow(feed, trimmed.value.earliest) == news
    routes = feed_routes("/log", log.source(), log.engine)
    with serving(Starlette(routes=routes)) as url:
        answer = get(f"{url}/log", cursor=log.cursor)
        assert (answer.status_code, answer.json()["earliestCursor"]) == (410, "1-0")


# Positions that outlive their events.


@for_each(*SEQUENCING)
def test_deleted_event_of_a_sequenced_feed(log):
    """A cursor stays good behind an event that is deleted, and one given there is good as well."""
    log.publish()
    log.write(0, 1, 2)
    assert log.news() == [0, 1, 2]
    log.run("DELETE FROM log WHERE n = 2")
    last = log.feed.read(0, LAST, 10).cursor
    for cursor in (last, log.cursor, log.feed.cursor_after(3)):
        assert cursor.split("-")[1] == "3"
        assert follow(log.feed, cursor) == []
    log.write(3)
    for cursor in (last, log.cursor):
        assert follow(log.feed, cursor) == [3]


@for_each(*SEQUENCING)
def test_cursor_of_an_event_whose_key_came_back(log):
    """A cursor of an event stays good when a row of the same key has become another event."""
    log.publish()
    log.write(0, 1)
    assert log.news() == [0, 1]
    log.run("DELETE FROM log WHERE id = 2", "INSERT INTO log (id, n) VALUES (2, 9)")
    assert follow(log.feed, log.cursor) == [9]
    log.write(2)
    assert log.news() == [9, 2]
    log.run("DELETE FROM log WHERE id = 3", "INSERT INTO log (id, n) VALUES (3, 8)")
    assert log.news() == [8]


# Another version of the publisher.


ENVELOPE = {"cloudevents": True}


@pytest.mark.parametrize(
    ("since", "now"),
    [
        ({}, {"data": ["data", "customer"]}),
        ({}, {"data": {"n": orders.c.customer}}),
        ({}, {"cloudevents": True}),
        ({}, {"headers": {"customer": "customer"}}),
        (ENVELOPE, {"cloudevents": "/another", "key": "customer"}),
        (ENVELOPE, {**ENVELOPE, "headers": {"customer": "customer"}}),
        ({"data": "data"}, {"data": ["data"]}),
        ({"data": {"n": orders.c.customer}}, {"data": {"customer": orders.c.customer}}),
        ({"data": {"v": literal(1)}}, {"data": {"v": literal(2)}}),
        ({"data": {"v": orders.c.part + 1}}, {"data": {"v": orders.c.part + 2}}),
    ],
)
def test_events_made_in_another_way_refuse_no_cursor(shop, since, now):
    """A deploy that changes how events are made keeps cursors; a missing event is still noticed."""
    cursor = shop_feed(**since).bind(shop).cursor_after(3)
    feed = shop_feed(**now).bind(shop)
    page = feed.read(1, cursor, 10)
    assert len(page.events) == 1
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 3))
    with pytest.raises(Diverged):
        feed.read(1, cursor, 10)
    assert feed.read(1, page.cursor, 10).events == []


# A history that is exchanged while a page is read.

READS = {
    "page": {},
    "filtered": {"types": PLACED},
    "empty": {"types": NOTHING},
    "quiet": {"partition": 2},
}


@pytest.mark.parametrize("read", READS)
def test_history_exchanged_between_any_two_statements(sqlite, read, monkeypatch):
    """Whenever in the course of a read another history takes the place of one, it is noticed."""
    monkeypatch.setattr("zeroeventhub.publisher.reader.QUIET", 1)
    metadata.create_all(sqlite)
    options = dict(READS[read])
    partition = options.pop("partition", 0)
    steps = 0
    while True:
        with sqlite.begin() as connection:
            connection.execute(orders.delete())
            connection.execute(text("DELETE FROM sqlite_sequence"))
        place_at(sqlite, range(0, 12, 2))
        feed = shop_feed(partitions=3).bind(sqlite)
        feed.info()
        cursor, stop = feed.cursor_after(2), feed.cursor_after(5)
        with exchanging(sqlite, steps) as exchanged, suppress(Gone):
            feed.read(partition, cursor, 3, stop=stop, **options)
            if not exchanged:
                break
            pytest.fail(f"The history was exchanged before statement {steps} of a read.")
        steps += 1
    assert steps > 3


@contextmanager
def exchanging(engine, step):
    """Let another, longer history take the place of one before a statement of a read."""
    seen: list[str] = []
    exchanged: list[int] = []

    def before(connection, cursor, statement, *_):
        if not statement.startswith("SELECT") or exchanged:
            return
        seen.append(statement)
        if len(seen) == step + 1:
            exchanged.append(step)
            set_back(engine, 1)
            place_at(engine, range(20, 60, 2))

    event.listen(engine, "before_cursor_execute", before)
    try:
        yield exchanged
    finally:
        event.remove(engine, "before_cursor_execute", before)
