"""Cursors of a history that is another one by now: failovers, backups, and what stands in for
both where a test needs many of them.
"""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from harness.databases import new_database
from harness.dumps import restore
from harness.log import Log, append, connected
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCING,
    SINGLE_WRITER,
)
from harness.shop import metadata, orders
from harness.soak_histories import KINDS, Histories
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

from zeroeventhub import FIRST, LAST, Client, TableFeed, feed_routes
from zeroeventhub.errors import Diverged, Gone, Trimmed, Unavailable
from zeroeventhub.protocol import Page, TypeFilter

PATIENCE = 60
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
PLACED = TypeFilter(frozenset({"placed"}))
NOTHING = TypeFilter(frozenset({"nothing"}))
DIVERGED = "urn:zeroeventhub:problem/diverged"


def of_each(*cases, more=()):
    """Run a test for orderings, each on its database, and in `make test-all` for more of them."""
    marked = [pytest.param(case, id=f"{case.ordering}-{case.database}") for case in cases]
    return pytest.mark.parametrize(
        "case",
        marked
        + [
            pytest.param(case, id=f"{case.ordering}-{case.database}", marks=pytest.mark.test_all)
            for case in more
        ],
    )


@pytest.fixture
def log(request, case):
    """A log in an empty database."""
    return Log(request.getfixturevalue(case.database), case)


@pytest.fixture(scope="module")
def histories(mariadb_server_url):
    """Publishers that disasters may befall, on each database."""
    with Histories.open({"mariadb": lambda: new_database(mariadb_server_url)}) as found:
        yield found


@pytest.fixture(scope="module")
def primary(histories):
    """A PostgreSQL server of this module's own."""
    return histories.server


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_history_is_told_apart(histories, kind):
    """A cursor whose events are all there goes on by itself; any other is refused for good, and
    nothing is applied.
    """
    found = histories.run(kind, 1)
    assert found.complaints == []
    assert found.counts["goes on"] >= 4
    assert kind.keeps or found.counts["refused"] >= 4


def test_enough_of_every_kind():
    """A long run has two hundred rounds."""
    assert sum(kind.size for kind in KINDS) == 200


@pytest.fixture
def primary_log(primary, case):
    """A log in an empty database of that server."""
    with connected(primary.new_database()) as engine:
        yield Log(engine, case)


def get(url, **parameters):
    """Get a page of FeedAPI v2."""
    return httpx.get(
        f"{url}/events", params={"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    )


def position_of(cursor):
    """The position at which a cursor stands."""
    return int(cursor.split("-")[1])


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


@contextmanager
def promoted(log, case, primary, meanwhile):
    """Promote a standby that lacks all that was done after event 1; yield the log's copy there."""
    with primary.standby() as standby:
        log.write(1)
        assert log.news() == [1]
        standby.catch_up(primary)
        standby.cut_off()
        meanwhile()
        standby.promote()
        with connected(log.engine.url.update_query_dict({"host": standby.socket})) as engine:
            copied = Log(engine, case)
            copied.feed = log.restarted(engine)
            copied.cursor = log.cursor
            yield copied


def assert_diverged(log, *, source=None):
    """Show that the consumer's cursor is refused, from code and over HTTP."""
    for feed in (log.feed, log.restarted()):
        with pytest.raises(Diverged):
            feed.read(0, log.cursor, 10)
        with pytest.raises(Diverged):
            feed.vouch(["1-0", log.cursor])
    routes = feed_routes("/log", source or log.source(), log.engine)
    with serving(Starlette(routes=routes)) as url:
        answer = get(f"{url}/log", cursor=log.cursor)
        assert (answer.status_code, answer.json()["type"]) == (410, DIVERGED)
        assert answer.headers["cache-control"] == "no-store"
        with httpx.Client() as http, pytest.raises(Diverged):
            Client(f"{url}/log", http).fetch(0, log.cursor)
        last = get(f"{url}/log", cursor=LAST).json()["cursor"]
        answer = get(f"{url}/log", stop=log.cursor)
        assert (answer.status_code, answer.json()["type"]) == (410, DIVERGED)
        assert get(f"{url}/log", stop=last).status_code == 200


@pytest.mark.test_all
@pytest.mark.parametrize("lost", [3, 100])
@of_each(OBSERVED, GATED, SEQUENCED)
def test_failover_that_lost_events_is_refused(primary, primary_log, case, lost):
    """A cursor of an event that was lost is refused, be its number free, beyond the end, or that
    of another event by now; a cursor of one that was not lost goes on.
    """
    log = primary_log
    log.publish()
    log.write(0)
    assert log.news() == [0]
    cursors = []

    def lose():
        cursors.append(log.cursor)
        log.write(*range(2, 2 + lost))
        assert log.news() == [*range(2, 2 + lost)]

    with promoted(log, case, primary, lose) as copied:
        copied.cursor = log.cursor
        written = []
        for more in (1, lost, 40):
            assert_diverged(copied)
            news = [1000 + len(written) + number for number in range(more)]
            copied.write(*news)
            written += news
            assert follow(copied.feed, cursors[0]) == written
            assert copied.everything() == [0, 1, *written]
        assert_diverged(copied)
        # PostgreSQL leaves out a few numbers after a failover; those behind them come again.
        position = position_of(log.cursor)
        again = position_of(copied.feed.cursor_after(position)) == position
        assert again == (lost == 100 or case == SEQUENCED)


@of_each(OBSERVED, more=[GATED, SEQUENCED])
def test_horizon_from_before_a_failover_is_forgotten(primary, primary_log, case):
    """A process that outlives a failover does not take what it knew of numbers for settled where
    they are drawn again, and waits for who writes there.
    """
    log = primary_log
    log.publish()
    log.write(0)
    assert log.news() == [0]
    cursors = []

    def lose():
        cursors.append(log.cursor)
        log.write(*range(2, 202))
        assert log.news() == [*range(2, 202)]

    with promoted(log, case, primary, lose) as copied, moved(log, copied.engine):
        with log.engine.connect() as slow:
            append(slow, 1000)
            log.write(*range(1001, 1301))
            page = Page([], cursors[0])
            with suppress(Unavailable):  # observed, which has to see every writer end first
                page = log.feed.read(0, cursors[0], 1000)
            slow.commit()
        seen = [event.data["n"] for event in page.events] + follow(log.feed, page.cursor)
        assert sorted(seen) == [*range(1000, 1301)]


@contextmanager
def moved(log, engine):
    """Let a log's engine lead to the server of another, as a name does after a failover."""

    def lead(_dialect, _record, _arguments, parameters):
        parameters["host"] = engine.url.query["host"]

    event.listen(log.engine, "do_connect", lead)
    log.engine.dispose()
    try:
        yield
    finally:
        event.remove(log.engine, "do_connect", lead)
        log.engine.dispose()


# A backup.


@of_each(*ON_SQLITE)
def test_file_copied_back(log, case, tmp_path):
    """After a copy of the file was put back, cursors of what it lacks are refused for good, also
    by a process that has read them; the others go on.
    """
    file, backup = Path(log.engine.url.database), tmp_path / "backup"
    log.publish()
    log.write(0, 1)
    assert log.news() == [0, 1]
    early = log.cursor
    for lost in ([], [2, 3]):
        log.engine.dispose()
        shutil.copy(file, backup)
        log.write(*lost)
        assert log.news() == lost
        log.engine.dispose()
        shutil.copy(backup, file)
        if lost:
            assert_diverged(log)
    for number in (4, 5, 6):
        log.write(number)
        assert_diverged(log)
    log.cursor = early
    assert log.news() == [4, 5, 6]


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
    return with_rows(engine)


def with_rows(engine):
    """Fill a database with rows of many types."""
    WIDE.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(WIDE), ROWS)
    return engine


@pytest.mark.anyio
async def test_digests_are_the_same_for_every_driver(wide, async_engine):
    """A feed with an async engine gives the cursors that one with a sync engine gives."""
    cursors = cursors_of(wide_feed().bind(wide))
    feed = wide_feed().bind(async_engine)
    pages = [await feed.read(partition, FIRST, 9, each=True) for partition in (0, 1)]
    assert [cursor for page in pages for cursor in page.cursors] == cursors
    assert len(set(cursors)) == 4
    assert [(await feed.read(0, cursor, 9)).events != [] for cursor in cursors] == [
        position_of(cursor) < 3 for cursor in cursors
    ]


def test_digests_are_the_same_in_every_zone(wide):
    """Sessions that live in other time zones give the same cursors."""
    cursors = cursors_of(wide_feed().bind(wide))
    elsewhere = {
        "postgresql": {"options": "-c TimeZone=Asia/Kolkata"},
        "mariadb": {"init_command": "SET time_zone = '+05:30'"},
        "sqlite": {},
    }[wide.dialect.name]
    with connected(wide.url, **elsewhere) as engine:
        assert cursors_of(wide_feed().bind(engine)) == cursors


PROCESS = """
import sys
sys.path[:0] = ["tests", "tests/integration/publisher"]
from sqlalchemy import create_engine
from test_history import cursors_of, wide_feed
engine = create_engine(sys.argv[1])
print(*cursors_of(wide_feed().bind(engine)))
engine.dispose()
"""


def test_digests_are_the_same_in_every_process(any_engine):
    """Another process gives the same cursors."""
    wide = with_rows(any_engine)
    url = wide.url.render_as_string(hide_password=False)
    ran = subprocess.run(
        [sys.executable, "-c", PROCESS, url],
        cwd=Path(__file__).parents[3],
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ran.stdout.split() == cursors_of(wide_feed().bind(wide)), ran.stderr


def test_digests_are_the_same_in_a_restored_database(wide):
    """Rows of all types have the same cursors where they were restored."""
    cursors = cursors_of(wide_feed().bind(wide))
    with another_database(wide.url) as url:
        restore(wide.url, url)
        with connected(url) as engine:
            assert cursors_of(wide_feed().bind(engine)) == cursors


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
    """Yield everything that one can do with a cursor."""
    for partition in (0, 1):
        yield lambda p=partition: feed.read(p, cursor, 10)
        yield lambda p=partition: feed.read(p, cursor, 10, types=PLACED)
        yield lambda p=partition: feed.read(p, cursor, 10, types=NOTHING)
        yield lambda p=partition: feed.read(p, cursor, 10, stop=cursor)
        yield lambda p=partition: feed.read(p, FIRST, 10, stop=cursor)
        yield lambda p=partition: feed.read(p, FIRST, 10, types=NOTHING, stop=cursor)
        yield lambda p=partition: feed.splits(p, 3, start=cursor)
        yield lambda p=partition: feed.splits(p, 3, stop=cursor)
        yield lambda p=partition: feed.lag(p, cursor)
        yield lambda p=partition: feed.cursor_of_count(p, cursor, 3)
        yield lambda p=partition: feed.cursor_of_count(p, FIRST, 3, stop=cursor)


def test_cursor_of_any_origin_is_refused(shop):
    """Every way to get a cursor gives the same one, and every way to use it notices that its
    event was lost: while its number is free, and when another event has it.
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
        for bound in (feed, shop_feed().bind(shop)):
            for use in uses(bound, cursor):
                with pytest.raises(Diverged):
                    use()
    assert follow(feed, early) == [8]
    assert follow(feed, early, 1) == [5, 7, 9]
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 4))
    for use in uses(feed, cursor):
        with pytest.raises(Diverged):
            use()


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
    cursor = strict.cursor_after(4)
    set_back(shop, 3)
    for each in ("1-4", cursor):
        for use in uses(feed, each):
            with pytest.raises(Diverged):
                use()
    place_at(shop, [5, 7])
    for each in ("1-4", cursor):
        for use in uses(feed, each):
            use()
        assert follow(feed, each, 1) == [7]
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id != 5))
    assert follow(feed, cursor, 1) == [7]
    with shop.begin() as connection:
        connection.execute(orders.delete())
    assert follow(feed, cursor, 1) == []
    assert feed.read(0, LAST, 1).cursor == "1-5"


def test_cursor_without_a_digest_is_still_taken(shop):
    """A cursor of an earlier version, or from before the feed was said to be strict, goes on."""
    feed = shop_feed().bind(shop)
    assert follow(feed, "1-2", 1) == [3]
    page = feed.read(1, "1-2", 10)
    assert page.cursor == feed.cursor_after(4)


def test_event_of_another_partition_is_looked_at(shop):
    """A cursor may stand at an event of another partition, and is refused if that one is lost."""
    feed = shop_feed().bind(shop)
    cursor = feed.read(0, LAST, 10).cursor
    with shop.connect() as connection:
        assert connection.scalar(text("SELECT part FROM orders WHERE id = 4")) == 1
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 3))
    assert follow(feed, cursor) == []
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 4))
    with pytest.raises(Diverged):
        follow(feed, cursor)
    with shop.begin() as connection:
        connection.execute(orders.delete())
    with pytest.raises(Trimmed) as trimmed:
        follow(feed, cursor)
    place_at(shop, [6])
    assert follow(feed, trimmed.value.earliest) == [6]


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


@of_each(OBSERVED, SINGLE_WRITER, more=[OBSERVED_MARIADB, GATED])
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


@of_each(*SEQUENCING)
def test_deleted_event_of_a_sequenced_feed(log):
    """A cursor stays good behind an event that is deleted, and one given there is good as well."""
    log.publish()
    log.write(0, 1, 2)
    assert log.news() == [0, 1, 2]
    log.run("DELETE FROM log WHERE n = 2")
    last = log.feed.read(0, LAST, 10).cursor
    for cursor in (last, log.cursor, log.feed.cursor_after(3)):
        assert position_of(cursor) == 3
        assert follow(log.feed, cursor) == []
    log.write(3)
    for cursor in (last, log.cursor):
        assert follow(log.feed, cursor) == [3]


@of_each(*SEQUENCING)
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


@pytest.mark.parametrize(
    "options",
    [
        {"data": ["data", "customer"]},
        {"data": {"n": orders.c.customer}},
        {"cloudevents": True},
        {"cloudevents": "/another", "key": "customer"},
        {"headers": {"customer": "customer"}},
    ],
    ids=["columns", "expression", "envelope", "key", "headers"],
)
@pytest.mark.parametrize("since", [{}, {"cloudevents": True, "key": None}], ids=["bare", "events"])
def test_events_made_in_another_way_refuse_no_cursor(shop, since, options):
    """A deploy that changes how events are made keeps cursors; a missing event is still noticed."""
    since = {name: value for name, value in since.items() if value is not None}
    cursor = shop_feed(**since).bind(shop).cursor_after(3)
    feed = shop_feed(**{**since, **options}).bind(shop)
    page = feed.read(1, cursor, 10)
    assert len(page.events) == 1
    with shop.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 3))
    with pytest.raises(Diverged):
        feed.read(1, cursor, 10)
    assert feed.read(1, page.cursor, 10).events == []


@pytest.mark.parametrize(
    ("since", "now"),
    [
        ({"data": "data"}, {"data": ["data"]}),
        ({"data": {"n": orders.c.customer}}, {"data": {"customer": orders.c.customer}}),
        ({"data": {"v": literal(1)}}, {"data": {"v": literal(2)}}),
        ({"data": {"v": orders.c.part + 1}}, {"data": {"v": orders.c.part + 2}}),
    ],
    ids=["another shape", "another name", "another value", "another operand"],
)
def test_events_with_another_name_or_value_refuse_no_cursor(shop, since, now):
    """A deploy that only changes a name or a constant keeps cursors as well."""
    cursor = shop_feed(**since).bind(shop).cursor_after(3)
    assert len(shop_feed(**now).bind(shop).read(1, cursor, 10).events) == 1


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
