"""A log of events: its table, appends that may be repeated, and its feed, on every database."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, func, insert, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from zeroeventhub import FIRST, EventLog, Layout, NewEvent
from zeroeventhub.errors import ConfigurationError, IdReused, StoreUnavailable
from zeroeventhub.layout import key_hash

CELLS = [
    ("sqlite", None),
    ("sqlite", "sequenced"),
    ("postgresql", None),
    ("postgresql", "gated"),
    ("postgresql", "sequenced"),
    ("mariadb", None),
    ("mariadb", "sequenced"),
]


@pytest.fixture(params=CELLS, ids=lambda cell: " ".join(filter(None, cell)))
def publishing(request):
    """A log on each database, in each of its orderings, and its engine."""
    database, ordering = request.param
    engine = request.getfixturevalue(database)
    return made(engine, ordering=ordering), engine


@pytest.fixture
def log(engine):
    """A log of eight partitions that has been created, on each database."""
    return made(engine)


def made(engine, **options):
    """Create a log with nothing else than its metadata."""
    metadata = MetaData()
    log = EventLog(metadata, "orders", **({"partitions": 8} | options))
    metadata.create_all(engine)
    return log


def batch(count, *, first=0):
    """Events numbered from first on, of seven keys."""
    return [
        NewEvent("placed", {"n": number, "more": ["ë", None, 0.5]}, f"c{number % 7}", f"e{number}")
        for number in range(first, first + count)
    ]


def append(engine, log, events):
    """Append in a transaction of its own."""
    with engine.begin() as connection:
        log.append(connection, events)


def rows(engine, log):
    """All rows in the order of their positions."""
    with engine.connect() as connection:
        return connection.execute(select(log.table).order_by(log.table.c.position)).all()


def published(feed, partitions=8):
    """All events that a feed has, by partition."""
    return {
        partition: [each.data for each in feed.read(partition, FIRST, 1000).events]
        for partition in range(partitions)
    }


@pytest.mark.parametrize("sizes", [[1] * 8, [8], [1, 3, 4]], ids=str)
def test_what_is_appended_is_published(publishing, sizes):
    """Every event is in the partition of its key, in order, whatever the size of batches."""
    log, engine = publishing
    first = 0
    for size in sizes:
        append(engine, log, batch(size, first=first))
        first += size
    feed = log.feed().bind(engine)
    expected = {partition: [] for partition in range(8)}
    for number in range(8):
        data = {"n": number, "more": ["ë", None, 0.5]}
        expected[key_hash(f"c{number % 7}") % 8].append(data)
    assert published(feed) == expected


@pytest.mark.parametrize("size", [1, 5])
def test_repeated_append_changes_nothing(publishing, size):
    """A batch that is appended again, whole, in part or among others, is there once."""
    log, engine = publishing
    append(engine, log, batch(size))
    before = rows(engine, log)
    append(engine, log, batch(size))
    assert rows(engine, log) == before
    append(engine, log, batch(size + 3)[::-1])
    assert sorted(row.id for row in rows(engine, log)) == [f"e{n}" for n in range(size + 3)]
    assert rows(engine, log)[:size] == before
    with engine.begin() as connection:
        log.append(connection, batch(size, first=100))
        log.append(connection, batch(size, first=100))
        log.append(connection, [*batch(2, first=200), *batch(2, first=200)])
    assert len(rows(engine, log)) == size + 3 + size + 2


def test_transaction_goes_on_behind_a_repeated_append(engine, log):
    """What the caller has written before and behind a repeated append is committed with it."""
    append(engine, log, batch(4))
    with engine.begin() as connection:
        log.append(connection, batch(1, first=10))
        log.append(connection, batch(5))
        log.append(connection, batch(1, first=11))
    assert {row.id for row in rows(engine, log)} == {"e0", "e1", "e2", "e3", "e4", "e10", "e11"}


@pytest.mark.parametrize("change", [{"type": "paid"}, {"data": {"n": 1}}, {"key": "other"}])
@pytest.mark.parametrize("size", [1, 4])
def test_id_of_another_event_is_refused(engine, log, change, size):
    """An id that comes again with another type, key or data is refused, and nothing is appended."""
    append(engine, log, batch(2))
    known = batch(1)[0]
    values = {"type": known.type, "data": known.data, "key": known.key, "id": known.id} | change
    with pytest.raises(IdReused, match="'e0'"), engine.begin() as connection:
        log.append(connection, [*batch(size - 1, first=10), NewEvent(**values)])
    assert [row.id for row in rows(engine, log)] == ["e0", "e1"]


def test_id_that_comes_twice_in_a_batch_is_refused_if_it_says_two_things(engine, log):
    """Two events of a batch with one id are one event, or an error."""
    with pytest.raises(IdReused), engine.begin() as connection:
        log.append(connection, [NewEvent("placed", {"n": n}, "c", "e1") for n in (1, 2)])
    assert rows(engine, log) == []


def test_append_is_part_of_the_callers_transaction(engine, log):
    """What is appended goes with what else is written if the transaction is rolled back."""
    with engine.connect() as connection:
        log.append(connection, batch(3))
        log.append(connection, batch(1, first=5))
        connection.rollback()
    assert rows(engine, log) == []
    with Session(engine) as session:
        log.append(session, batch(3))
        session.rollback()
        log.append(session, batch(1))
        session.commit()
    assert [row.id for row in rows(engine, log)] == ["e0"]


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 5])
async def test_append_from_async_code(engine, log, async_url, size):
    """Async connections and sessions append by run_sync."""
    own = create_async_engine(async_url)
    async with own.begin() as connection:
        await connection.run_sync(log.append, batch(size))
        await connection.run_sync(log.append, batch(size))
    async with AsyncSession(own) as session:
        await session.run_sync(log.append, batch(size, first=10))
        await session.commit()
    page = [len((await log.feed().bind(own).read(each, FIRST, 100)).events) for each in range(8)]
    await own.dispose()
    assert sum(page) == 2 * size


@pytest.mark.anyio
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_append_by_each_async_driver_of_postgresql(postgresql, driver):
    """A batch is appended once by drivers with and without COPY."""
    log = made(postgresql)
    url = postgresql.url.set(drivername=f"postgresql+{driver}")
    if driver == "asyncpg" and "host" in url.query:
        url = url.set(host=None)
    own = create_async_engine(url)
    for size in (1, 5, 7):
        async with own.begin() as connection:
            await connection.run_sync(log.append, batch(size))
    await own.dispose()
    assert [row.id for row in rows(postgresql, log)] == [f"e{number}" for number in range(7)]


def test_attributes_are_those_of_a_cloudevent(engine, log):
    """The feed knows id, type, key and time, by which events are found and filtered."""
    began = datetime.now(UTC) - timedelta(seconds=5)
    append(engine, log, [NewEvent("placed", {"n": 1}, "ada", "e1"), NewEvent("paid", "text")])
    feed = log.feed(cloudevents="/shop").bind(engine)
    assert {"event-types", "cursor-of-time", "cursor-of-count"} <= feed.info().extensions
    partition = key_hash("ada") % 8
    (found, *_) = feed.read(partition, FIRST, 10).events
    moment = datetime.fromisoformat(found.data.pop("time"))
    assert began < moment < datetime.now(UTC) + timedelta(seconds=5)
    assert found.data == {
        "specversion": "1.0",
        "id": "e1",
        "source": "/shop",
        "type": "placed",
        "partitionkey": "ada",
        "datacontenttype": "application/json",
        "data": {"n": 1},
    }
    assert feed.cursor_at(moment, partition) == feed.cursor_at(began, partition)
    later = feed.cursor_at(moment + timedelta(milliseconds=1), partition)
    assert later != feed.cursor_at(moment, partition)


def test_time_is_that_of_the_append(engine, log):
    """An event has the time of its append, and not that of the beginning of its transaction."""
    with engine.begin() as connection:
        log.append(connection, batch(1))
        between = threading.Event()
        between.wait(0.01)
        log.append(connection, batch(2, first=1))
        log.append(connection, batch(1, first=3))
    times = [row.time for row in rows(engine, log)]
    assert times == sorted(times)
    assert times[1] - times[0] >= timedelta(milliseconds=9)


def test_event_without_a_key_has_a_partition(engine, log):
    """Events without a key are spread by their ids."""
    append(engine, log, [NewEvent("placed", {"n": n}, id=f"e{n}") for n in range(20)])
    found = published(log.feed().bind(engine))
    for partition, events in found.items():
        numbers = [n for n in range(20) if key_hash(f"e{n}") % 8 == partition]
        assert [each["n"] for each in events] == numbers


def test_checkup_finds_nothing(publishing):
    """Every question that the feed is asked has its index, and nothing else is missing."""
    log, engine = publishing
    append(engine, log, batch(3))
    findings = log.feed(cloudevents=True).bind(engine).check()
    assert [each for each in findings if each.level != "ok"] == []


def test_log_of_partitions_that_have_changed(engine):
    """New events go where a layout puts their keys, and its feed shows old ones there as well."""
    metadata = MetaData()
    old = EventLog(metadata, "orders", partitions=Layout.of(2))
    metadata.create_all(engine)
    append(engine, old, batch(7))
    append(engine, old, [NewEvent("placed", {"n": 7}, id="e7")])
    layout = Layout.of(2).redistribute(by=2)
    new = EventLog(MetaData(), "orders", partitions=layout)
    append(engine, new, batch(7, first=8))
    feed = new.feed().bind(engine)
    for partition in layout.info().partitions:
        numbers = [each.data["n"] for each in feed.read(partition.id, FIRST, 100).events]
        keys = [f"e{n}" if n == 7 else f"c{n % 7}" for n in numbers]
        assert {layout.partition_of(key) for key in keys} <= {partition.id}
    assert sum(len(events) for events in published_ids(feed, layout)) == 15


def published_ids(feed, layout):
    """The events of each partition of a layout."""
    return [feed.read(each.id, FIRST, 100).events for each in layout.info().partitions]


@pytest.mark.parametrize("size", [1, 20])
def test_one_batch_appended_by_many_at_once_is_there_once(publishing, size):
    """Producers that append the same batch at the same moment leave it there once."""
    log, engine = publishing
    failures = []

    def produce(events):
        for _ in range(50):
            try:
                append(engine, log, events)
            except StoreUnavailable:
                continue
            return
        failures.append("a producer gave up")

    for first in (0, 100, 200):
        threads = [
            threading.Thread(target=produce, args=(batch(size, first=first)[::order],))
            for order in (1, -1, 1, -1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(rows(engine, log)) == 3 * size
    assert sum(map(len, published(log.feed().bind(engine)).values())) == 3 * size


@pytest.mark.parametrize("size", [1, 5])
def test_append_looks_nothing_up_that_is_new(engine, log, size):
    """A batch of new events is one statement, beside a savepoint where that is needed."""
    seen = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        seen.append(statement)

    with engine.begin() as connection:
        log.append(connection, batch(size))
        by_copy = size > 1 and engine.dialect.name == "postgresql"
        expected = ["SAVEPOINT", "RELEASE"] if by_copy else ["INSERT"]
        assert [statement.split()[0] for statement in seen] == expected
    assert len(rows(engine, log)) == size


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("size", [1, 5])
def test_rival_that_cannot_be_seen_asks_to_try_again(postgresql, level, size):
    """A batch that was appended behind a transaction's snapshot is no error to look into."""
    log = made(postgresql)
    with postgresql.connect().execution_options(isolation_level=level) as connection:
        connection.execute(text("SELECT 1"))
        append(postgresql, log, batch(size))
        with pytest.raises(StoreUnavailable):
            log.append(connection, batch(size))
        connection.rollback()
        log.append(connection, batch(size))
        connection.commit()
    assert len(rows(postgresql, log)) == size


@pytest.mark.parametrize("size", [1, 5])
def test_mariadb_compares_with_what_is_newer_than_the_snapshot(mariadb, size):
    """A repeated append is a no-op also in a transaction that began before the first."""
    log = made(mariadb)
    with mariadb.begin() as connection:
        connection.execute(select(func.count()).select_from(log.table)).all()
        append(mariadb, log, batch(size))
        log.append(connection, batch(size))
    assert len(rows(mariadb, log)) == size


def test_database_that_is_locked_asks_to_try_again(sqlite):
    """A writer that keeps SQLite for itself for longer than others wait is told as what passes."""
    log = made(sqlite)
    impatient = create_engine(sqlite.url, connect_args={"timeout": 0.01})
    with sqlite.begin() as connection:
        log.append(connection, batch(1))
        with pytest.raises(StoreUnavailable, match="database of the log"):
            append(impatient, log, batch(1, first=1))
    append(impatient, log, batch(1, first=1))
    impatient.dispose()
    assert len(rows(sqlite, log)) == 2


def test_other_errors_of_the_database_stay_what_they_are(postgresql):
    """What has nothing to do with ids is no repeated append."""
    log = made(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text("ALTER TABLE orders ADD CHECK (type <> 'bad')"))
    for events in ([NewEvent("bad", {})], [NewEvent("bad", {}), NewEvent("good", {})]):
        with pytest.raises(Exception, match="violates check constraint"):
            append(postgresql, log, events)


def test_gate_is_installed_with_the_table(postgresql):
    """A gated log is ready when its metadata has created it, and refuses numbers handed in."""
    log = made(postgresql, ordering="gated")
    append(postgresql, log, batch(3))
    assert log.feed().bind(postgresql).head() == 3
    with pytest.raises(Exception, match="GENERATED ALWAYS"), postgresql.begin() as connection:
        values = {"position": 1, "partition": 0, "id": "x", "type": "t", "data": {}}
        connection.execute(insert(log.table), values)


def test_log_in_a_schema(postgresql):
    """A log may live in a schema, under any name."""
    with postgresql.begin() as connection:
        connection.execute(text('CREATE SCHEMA "My shop"'))
    metadata = MetaData()
    log = EventLog(metadata, "Order's log", partitions=2, schema="My shop", ordering="gated")
    metadata.create_all(postgresql)
    for size in (1, 5, 5):
        append(postgresql, log, batch(size))
    found = published(log.feed().bind(postgresql), 2)
    assert sum(map(len, found.values())) == 5


@pytest.mark.parametrize("partitions", [0, 32769])
def test_number_of_partitions_that_cannot_be_is_refused(partitions):
    """Partitions are as many as the protocol has."""
    with pytest.raises(ConfigurationError):
        EventLog(MetaData(), "orders", partitions=partitions)


def test_what_is_no_event_is_refused(sqlite):
    """A log says what it takes."""
    log = made(sqlite)
    with pytest.raises(ConfigurationError, match="NewEvent"):
        append(sqlite, log, [{"type": "placed"}])


def test_indexes_are_those_of_the_questions(engine, log):
    """The table has an index for pages, for moments, for ids and for the versions of a key."""
    look: Engine = inspect(engine)
    found = {tuple(each["column_names"]) for each in look.get_indexes("orders")}
    found |= {tuple(each["column_names"]) for each in look.get_unique_constraints("orders")}
    assert found == {
        ("partition", "position"),
        ("partition", "time", "position"),
        ("id",),
        ("key", "version"),
    }


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_schema_that_is_translated_is_that_of_every_row(request, database, count):
    """However many rows there are, they go where the caller's connection says."""
    engine = request.getfixturevalue(database)
    log = made(engine)
    with engine.connect() as connection:
        other = {"sqlite": "ATTACH ':memory:' AS other", "postgresql": "CREATE SCHEMA other"}
        connection.execute(text(other[database]))
        connection.commit()
        connection.execution_options(schema_translate_map={None: "other"})
        log.table.metadata.create_all(connection)
        log.append(connection, batch(count))
        log.append_to(
            connection,
            "key",
            [NewEvent("paid", {"n": n}) for n in range(count)],
            expected_version=0,
        )
        assert connection.scalar(select(func.count()).select_from(log.table)) == 2 * count
        connection.commit()
    assert rows(engine, log) == []


def test_session_is_asked_for_the_connection_of_the_table(sqlite):
    """A session that knows several databases has one for the log."""
    log = made(sqlite)
    with Session(binds={log.table: sqlite}) as session:
        log.append(session, batch(2))
        assert log.read_key(session, "c0") == []
        session.commit()
    scoped = scoped_session(sessionmaker(sqlite))
    log.append_to(scoped, "key", [NewEvent("paid", {})], expected_version=0)
    scoped.commit()
    scoped.remove()
    assert len(rows(sqlite, log)) == 3
