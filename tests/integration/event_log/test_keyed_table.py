"""Keys whose versions are guarded, in logs and in tables of one's own, on every database."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product

import pytest
from harness.waiting import until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import EventLog, ExpectedVersion, KeyedTable, NewEvent, TableFeed
from zeroeventhub.errors import ConfigurationError, Conflict, IdReused, StoreUnavailable

ANY, NONE, SOME = ExpectedVersion.ANY, ExpectedVersion.NO_EVENTS, ExpectedVersion.SOME_EVENTS


def made(engine, **options):
    """A log that has been created."""
    metadata = MetaData()
    log = EventLog(metadata, "orders", partitions=4, **options)
    metadata.create_all(engine)
    return log


@pytest.fixture
def log(engine):
    """A log that has been created, on each database."""
    return made(engine)


def happened(count, *, first=1, prefix="e"):
    """Events numbered from first on."""
    return [NewEvent("counted", {"n": n}, id=f"{prefix}{n}") for n in range(first, first + count)]


def append(engine, log, key, events, expected):
    """Append to a key in a transaction of its own."""
    with engine.begin() as connection:
        return log.append_to(connection, key, events, expected_version=expected)


def history(engine, log, key="ada", **options):
    """The versions and numbers of a key's events."""
    with engine.connect() as connection:
        found = log.read_key(connection, key, **options)
    return [(one.version, one.data["n"]) for one in found]


@pytest.mark.parametrize(
    ("database", "ordering"),
    [
        ("sqlite", None),
        ("postgresql", None),
        ("mariadb", None),
        ("postgresql", "gated"),
        ("sqlite", "sequenced"),
        ("postgresql", "sequenced"),
        ("mariadb", "sequenced"),
    ],
)
def test_versions_count_what_is_appended_to_a_key(request, database, ordering):
    """Each key counts 1, 2, 3 …, over batches of any size, in every ordering."""
    engine = request.getfixturevalue(database)
    log = made(engine, ordering=ordering)
    assert append(engine, log, "ada", happened(1), 0) == 1
    assert append(engine, log, "ada", happened(3, first=2), 1) == 4
    assert append(engine, log, "bob", happened(2, first=5), NONE) == 2
    assert append(engine, log, "ada", happened(2, first=7), ANY) == 6
    assert append(engine, log, "bob", happened(1, first=9), SOME) == 3
    assert history(engine, log) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (6, 8)]
    assert history(engine, log, "bob") == [(1, 5), (2, 6), (3, 9)]
    assert history(engine, log, "eve") == []
    assert history(engine, log, after_version=2, limit=3) == [(3, 3), (4, 4), (5, 7)]
    assert history(engine, log, after_version=6) == []
    feed = log.feed().bind(engine)
    pages = [feed.read(each, "_first", 100).events for each in range(4)]
    assert sum(map(len, pages)) == 9


def test_conflict_names_the_version_and_leaves_the_transaction(engine, log):
    """What was expected decides; if it is wrong, the error has the version and the caller's
    transaction goes on.
    """
    with engine.begin() as connection:
        for there, expected, count in product([0, 3], [0, 1, 3, 7, NONE, SOME, ANY], [0, 1, 2]):
            key = f"{there} {expected} {count}"
            before = happened(there, prefix=f"{key} before ")
            log.append_to(connection, key, before, expected_version=0)
            events = happened(count, prefix=f"{key} behind ")
            right = {NONE: there == 0, SOME: there > 0, ANY: True}.get(expected, expected == there)
            if right:
                version = log.append_to(connection, key, events, expected_version=expected)
                assert version == there + count
            else:
                with pytest.raises(Conflict) as caught:
                    log.append_to(connection, key, events, expected_version=expected)
                assert (caught.value.key, caught.value.version) == (key, there)
            log.append(connection, [NewEvent("noted", {"n": 0}, id=f"noted {key}")])
            kept = log.read_key(connection, key)
            assert len(kept) == there + (count if right else 0), key
    with engine.connect() as connection:
        noted = select(func.count()).where(log.table.c.type == "noted")
        assert connection.scalar(noted) == 2 * 7 * 3


@pytest.mark.parametrize("count", [1, 3])
def test_append_that_comes_again_is_no_conflict(engine, log, count):
    """What was appended before gives the same version again, whatever has come behind it."""
    append(engine, log, "ada", happened(2), 0)
    for expected in (2, ANY, SOME):
        assert append(engine, log, "ada", happened(count, first=3), expected) == 2 + count
    append(engine, log, "ada", happened(4, first=20), 2 + count)
    for expected in (2, ANY, SOME):
        assert append(engine, log, "ada", happened(count, first=3), expected) == 2 + count
    assert append(engine, log, "ada", happened(2), NONE) == 2
    assert len(history(engine, log)) == 6 + count


def test_ids_of_other_events_are_refused(engine, log):
    """Ids that come again with other data, to another key or version, or in part, are refused."""
    append(engine, log, "ada", happened(2), 0)
    for key, events, expected in (
        ("bob", happened(1), 0),
        ("ada", [replace(happened(1)[0], data={"n": 5})], 0),
        ("ada", [replace(happened(1)[0], type="other")], ANY),
        ("ada", happened(1), 2),
        ("ada", happened(2)[::-1], 0),
        ("ada", happened(3), 0),
        ("ada", happened(2, first=2), ANY),
        ("ada", happened(2, first=2)[::-1], ANY),
        ("ada", [*happened(1, first=9), *happened(1)], 2),
        ("ada", [*happened(1, first=9)] * 2, 2),
    ):
        with pytest.raises(IdReused):
            append(engine, log, key, events, expected)
        assert history(engine, log) == [(1, 1), (2, 2)]


def test_event_of_a_batch_is_no_event_of_a_key(engine, log):
    """What came in a batch has no version, also where it names the key; what has one comes in no
    batch again.
    """
    first, second = (NewEvent("counted", {"n": n}, key="ada", id=f"e{n}") for n in (1, 2))
    with engine.begin() as connection:
        log.append(connection, [first])
    with pytest.raises(IdReused):
        append(engine, log, "ada", [first], ANY)
    append(engine, log, "ada", [second], NONE)
    with engine.begin() as connection:
        log.append(connection, [second])
    assert history(engine, log) == [(1, 2)]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(log.table)) == 2


def test_column_may_have_another_name_in_python(sqlite):
    """A table whose columns have keys of their own is guarded by the names in the database."""
    table = Table(
        "things",
        MetaData(),
        Column("number", Integer, primary_key=True),
        Column("thing", Integer, key="thing_id"),
        Column("nth", Integer, key="version_"),
        Column("note", JSON, key="note_"),
        UniqueConstraint("thing_id", "version_"),
    )
    table.create(sqlite)
    keyed = KeyedTable(table, key="thing_id", version="version_")
    with sqlite.begin() as connection:
        for count, expected in ((1, 0), (2, 1)):
            rows = [{"note": {"a": 1}}] * count
            keyed.append(connection, 7, rows, expected_version=expected)
        assert [row["note"] for row in keyed.read(connection, 7)] == [{"a": 1}] * 3


def test_what_is_read_is_what_was_appended(engine, log):
    """A kept event has everything that a new one had, and its time."""
    new = NewEvent("counted", {"n": 1, "more": ["ë", None, 0.5]}, id="e1", key="ada")
    append(engine, log, "ada", [new], 0)
    with Session(engine) as session:
        (kept,) = log.read_key(session, "ada")
    assert (kept.key, kept.version, kept.id, kept.type) == ("ada", 1, "e1", "counted")
    assert kept.data == new.data
    assert abs(kept.time.timestamp() - time.time()) < 60


def test_what_cannot_be_appended_is_refused(sqlite):
    """An expected version is a number or one of three words, the key of a log is a name, and an
    event that names a key is appended to no other.
    """
    log = made(sqlite)
    for expected in (-1, True, "1", None, 1.0):
        with pytest.raises(ConfigurationError, match="expected version"):
            append(sqlite, log, "ada", happened(1), expected)
    for key in ("", "ends ", 5, None):
        with pytest.raises(ConfigurationError, match="key"):
            append(sqlite, log, key, happened(1), 0)
    with pytest.raises(ConfigurationError, match="'bob'"):
        append(sqlite, log, "ada", [NewEvent("counted", {}, key="bob")], 0)


@pytest.mark.anyio
async def test_keys_from_async_code(engine, log, async_url):
    """Async connections and sessions append to keys, and read them, by run_sync."""
    own = create_async_engine(async_url)
    for count, first in ((1, 1), (3, 2)):
        async with own.begin() as connection:
            await connection.run_sync(
                log.append_to, "ada", happened(count, first=first), expected_version=first - 1
            )
    async with AsyncSession(own) as session:
        with pytest.raises(Conflict):
            await session.run_sync(log.append_to, "ada", happened(1, first=9), expected_version=1)
        found = await session.run_sync(log.read_key, "ada", after_version=1)
    await own.dispose()
    assert [one.version for one in found] == [2, 3, 4]


def own_table(*parts):
    """A table of somebody's own, with other names."""
    return Table(
        "movements",
        MetaData(),
        Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("account", BigInteger, nullable=False),
        Column("nth", Integer, nullable=False),
        Column("command", String(40), unique=True),
        Column("amount", Integer),
        Column("note", JSON),
        *parts,
        sqlite_autoincrement=True,
    )


def test_table_of_ones_own_has_keys(engine):
    """Any table with columns for key and version is guarded alike, with columns of any kind."""
    table = own_table(Index("movements_nth", "account", "nth", unique=True))
    table.create(engine)
    keyed = KeyedTable(table, key="account", version="nth")
    rows = [{"amount": n, "note": {"n": n}} for n in range(3)]
    with engine.begin() as connection:
        assert keyed.append(connection, 17, rows, expected_version=0) == 3
        assert keyed.append(connection, 17, rows[:1], expected_version=3) == 4
        assert keyed.append(connection, 18, rows[:1], expected_version=ANY) == 1
        with pytest.raises(Conflict) as caught:
            keyed.append(connection, 17, rows, expected_version=3)
        assert (caught.value.key, caught.value.version) == (17, 4)
    with Session(engine) as session:
        assert keyed.version(session, 17) == 4
        assert keyed.version(session, 19) == 0
        found = keyed.read(session, 17, after_version=2)
    assert [(row["nth"], row["amount"], row["note"]) for row in found] == [
        (3, 2, {"n": 2}),
        (4, 0, {"n": 0}),
    ]


def test_table_of_ones_own_with_ids(engine):
    """With a column of ids, rows that come again are recognized, and those that differ refused."""
    table = own_table(UniqueConstraint("nth", "account"))
    table.create(engine)
    keyed = KeyedTable(table, key="account", version="nth", id="command", same=["amount"])
    rows = [{"command": f"c{n}", "amount": n} for n in range(1_001)]
    for _ in range(2):
        with engine.begin() as connection:
            assert keyed.append(connection, 17, rows, expected_version=0) == 1_001
    with pytest.raises(IdReused, match="amount"), engine.begin() as connection:
        changed = [*rows[:2], {"command": "c2", "amount": 5}]
        keyed.append(connection, 17, changed, expected_version=0)


def test_refusal_of_the_database_stays_what_it_is(engine):
    """A row that a constraint of the table refuses, the first or another one, is an error of the
    database: neither a conflict nor rows that came before.
    """
    table = own_table(UniqueConstraint("account", "nth"), CheckConstraint("amount < 100"))
    table.create(engine)
    keyed = KeyedTable(table, key="account", version="nth", id="command")
    bad, good = {"command": "c1", "amount": 100}, {"command": "c2", "amount": 1}
    for rows in ([bad], [bad, good], [good, bad]):
        with pytest.raises(DBAPIError), engine.begin() as connection:
            keyed.append(connection, 17, rows, expected_version=0)
        with engine.connect() as connection:
            assert keyed.version(connection, 17) == 0


def test_unique_value_of_another_column_is_no_row_that_came_before(engine):
    """A row that another unique column refuses is an error, with ids and without, and nothing of
    its append is there.
    """
    table = own_table(UniqueConstraint("account", "nth"), UniqueConstraint("amount"))
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(account=1, nth=1, amount=7))
    for options in ({}, {"id": "command"}):
        keyed = KeyedTable(table, key="account", version="nth", **options)
        for amounts, error in (([7], StoreUnavailable), ([8, 7], IdReused)):
            rows = [{"amount": n, **({"command": f"c{n}"} if options else {})} for n in amounts]
            with pytest.raises(error), engine.begin() as connection:
                keyed.append(connection, 17, rows, expected_version=0)
            with engine.connect() as connection:
                assert keyed.version(connection, 17) == 0


def test_row_that_does_not_fit_is_refused(sqlite):
    """A row has columns of the table, neither key nor version, and all by which it would be
    recognized if it came again.
    """
    table = own_table(UniqueConstraint("account", "nth"))
    table.create(sqlite)
    plain = KeyedTable(table, key="account", version="nth")
    known = KeyedTable(table, key="account", version="nth", id="command", same=["amount"])
    for keyed, rows, sentence in (
        (plain, [{"account": 5}], "'account'"),
        (plain, [{"nth": 5}], "'nth'"),
        (plain, [{"nothing": 5}], "'nothing'"),
        (plain, [{"amount": 5}, {"note": 5}], "same columns"),
        (known, [{"amount": 1}], "command"),
        (known, [{"command": "c1"}], "amount"),
    ):
        with pytest.raises(ConfigurationError, match=sentence), sqlite.begin() as connection:
            keyed.append(connection, 17, rows, expected_version=0)


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([], {}),
        ([Index("i", "account", "nth")], {}),
        ([UniqueConstraint("account", "nth", "amount")], {}),
        ([UniqueConstraint("account", "nth")], {"id": "amount"}),
    ],
)
def test_table_without_a_unique_index_is_refused(parts, options):
    """A table in which nothing keeps versions apart, or ids, is refused before anything is
    written.
    """
    with pytest.raises(ConfigurationError, match="unique"):
        KeyedTable(own_table(*parts), key="account", version="nth", **options)


def test_history_of_keys_needs_versions():
    """A feed whose events have no versions cannot show keys."""
    with pytest.raises(ConfigurationError, match="versions"):
        TableFeed(own_table(), key="account", key_history=True)


@contextmanager
def at_once(engine, count):
    """Yield what runs appends in threads, each with its number, an engine and tries."""
    arguments = {"timeout": 60} if engine.dialect.name == "sqlite" else {}
    own = create_engine(engine.url, pool_size=count, connect_args=arguments)

    def run(append_once):
        def again(number):
            for _ in range(200):
                with suppress(Conflict, StoreUnavailable), own.begin() as connection:
                    append_once(connection, number)
                    break
            else:
                pytest.fail(f"writer {number} gave up")

        with ThreadPoolExecutor(count) as pool:
            for writer in [pool.submit(again, number) for number in range(count)]:
                writer.result(100)

    try:
        yield run
    finally:
        own.dispose()


def test_handlers_leave_no_gap_and_no_double(engine, log):
    """Handlers that load, decide and append at once, and try again, count without a mistake."""

    def handle(connection, number):
        events = log.read_key(connection, "ada")
        last = events[-1].data["n"] if events else 0
        new = [NewEvent("counted", {"n": last + 1 + n}) for n in range(number % 3 + 1)]
        log.append_to(connection, "ada", new, expected_version=len(events))

    with at_once(engine, 9) as run:
        run(handle)
    assert history(engine, log) == [(n, n) for n in range(1, 3 * (1 + 2 + 3) + 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_writers_who_expect_any_version_all_come_in(engine, log, count):
    """Appends to any version are numbered behind each other, whoever comes first, without a
    conflict.
    """
    conflicts = []

    def write(connection, number):
        events = [NewEvent("counted", {"n": number}, id=f"{number}-{n}") for n in range(count)]
        try:
            log.append_to(connection, "ada", events, expected_version=ANY)
        except Conflict as error:
            conflicts.append(error)
            raise

    with at_once(engine, 6) as run:
        run(write)
    assert conflicts == []
    assert [version for version, _ in history(engine, log)] == [*range(1, 6 * count + 1)]


@pytest.mark.parametrize("expected", [2, 4])
def test_mariadb_tells_the_version_that_is_newer_than_its_snapshot(mariadb, expected):
    """A transaction that has read before others appended is told what the version is now."""
    log = made(mariadb)
    append(mariadb, log, "ada", happened(2), 0)
    with mariadb.begin() as connection:
        assert len(log.read_key(connection, "ada")) == 2
        append(mariadb, log, "ada", happened(2, first=3), 2)
        events = happened(1, first=9)
        if expected == 4:
            assert log.append_to(connection, "ada", events, expected_version=4) == 5
        else:
            with pytest.raises(Conflict) as caught:
                log.append_to(connection, "ada", events, expected_version=2)
            assert caught.value.version == 4


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("expected", [2, ANY])
def test_rival_that_cannot_be_seen_asks_to_try_again(postgresql, level, expected):
    """A writer that cannot see the version that others have given tries again in a new
    transaction.
    """
    log = made(postgresql)
    append(postgresql, log, "ada", happened(2), 0)
    with postgresql.connect().execution_options(isolation_level=level) as connection:
        assert len(log.read_key(connection, "ada")) == 2
        append(postgresql, log, "ada", happened(2, first=3), 2)
        with pytest.raises(StoreUnavailable):
            log.append_to(connection, "ada", happened(1, first=9), expected_version=expected)


@pytest.mark.parametrize("ends", ["rollback", "commit"])
def test_writer_that_is_open_is_waited_for(postgresql, ends):
    """A writer beside an open transaction of the same key goes on when that has ended."""
    log = made(postgresql)
    with ThreadPoolExecutor(1) as pool, postgresql.connect() as connection:
        log.append_to(connection, "ada", happened(2), expected_version=0)
        rival = pool.submit(append, postgresql, log, "ada", happened(1, first=5), 0)
        with postgresql.connect() as watching:
            waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            until(lambda: watching.scalar(waits), "the rival waits")
        assert not rival.done()
        getattr(connection, ends)()
        error = rival.exception(30)
    if ends == "rollback":
        assert (error, history(postgresql, log)) == (None, [(1, 5)])
    else:
        assert (error.version, history(postgresql, log)) == (2, [(1, 1), (2, 2)])


def test_restoring_a_key_is_one_query_by_the_index(engine, log):
    """A key among others of a log is read by one statement, which looks at its events only."""
    append(engine, log, "ada", happened(50), 0)
    with engine.begin() as connection:
        log.append(connection, [NewEvent("x", {"n": n}, key=f"k{n % 50}") for n in range(2_000)])
        if engine.dialect.name != "mariadb":
            connection.execute(text("ANALYZE"))
    seen = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2:4]))
    assert len(history(engine, log)) == 50
    ((statement, parameters),) = seen
    with engine.connect() as connection:
        match engine.dialect.name:
            case "postgresql":
                plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars()
                found = "\n".join(plan)
                assert "orders_key_version" in found
                assert "Index Cond" in found
            case "sqlite":
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                (row,) = plan.all()
                assert "SEARCH orders USING INDEX" in row.detail
                assert "(key=? AND version>?)" in row.detail
            case _:
                (row,) = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings()
                assert row["key"] == "orders_key_version"
                assert "filesort" not in row["Extra"]


def test_guarded_append_is_few_statements(engine, log):
    """An append asks for the version, inserts the first event, and then the others at once."""
    append(engine, log, "ada", happened(3), 0)
    seen = []
    event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    append(engine, log, "ada", happened(1, first=10), 3)
    assert len(seen) <= 2
    seen.clear()
    append(engine, log, "ada", happened(5, first=20), 4)
    assert len(seen) <= 3


steps = st.lists(
    st.tuples(
        st.sampled_from(["ada", "bob"]),
        st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
        st.integers(0, 5) | st.sampled_from(list(ExpectedVersion)),
    ),
    max_size=12,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_any_appends_end_as_the_model_says(sqlite, steps):
    """Whatever is appended, expected and repeated, keys hold what a list of lists would."""
    metadata = MetaData()
    log = EventLog(metadata, "orders")
    metadata.drop_all(sqlite)
    metadata.create_all(sqlite)
    model = {"ada": [], "bob": []}
    for key, numbers, expected in steps:
        kept, known = model[key], {number for one in model.values() for number in one}
        places = [kept.index(number) + 1 for number in numbers if number in kept]
        again = places == [*range(places[0], places[0] + len(numbers))] if places else False
        before = places[0] - 1 if again else len(kept)
        fits = {ANY: True, NONE: before == 0, SOME: before > 0}.get(expected, expected == before)
        events = [NewEvent("counted", {"n": number}, id=f"e{number}") for number in numbers]
        try:
            version = append(sqlite, log, key, events, expected)
        except Conflict as error:
            assert not known & set(numbers)
            assert not fits
            assert error.version == len(kept)  # noqa: PT017 - there need not be one
        except IdReused:
            assert known & set(numbers)
            assert not (again and fits)
        else:
            assert fits
            assert version == before + len(numbers)
            if not again:
                assert not known & set(numbers)
                kept.extend(numbers)
        for each, numbers_kept in model.items():
            assert history(sqlite, log, each) == [*enumerate(numbers_kept, 1)]
    with sqlite.connect() as connection:
        count = connection.scalar(select(func.count()).select_from(log.table))
    assert count == sum(map(len, model.values()))
