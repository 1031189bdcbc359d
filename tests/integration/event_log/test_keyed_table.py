"""Appends to keys at an expected version, in logs and in other tables, on every database."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import chain

import pytest
import sqlalchemy as sa
from harness.appended import ORDERED, made
from harness.engines import connected
from harness.statements import count_of, execute, scalars
from harness.tables import event_table
from harness.waiting import until
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub import ExpectedVersion, KeyedTable, NewEvent
from zeroeventhub.errors import ConfigurationError, Conflict, IdReused, StoreUnavailable

ANY, NONE, SOME = ExpectedVersion.ANY, ExpectedVersion.NO_EVENTS, ExpectedVersion.SOME_EVENTS


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


def test_ids_of_other_events_are_refused(engine, log):
    """An id that comes again with other data, key or version, or in part, is refused."""
    append(engine, log, "ada", happened(2), 0)
    for key, events, expected in (
        ("bob", happened(1), 0),
        ("ada", [replace(happened(1)[0], data={"n": 5})], 0),
        ("ada", [replace(happened(1)[0], type="other")], ANY),
        ("ada", happened(1), 2),
        ("ada", happened(2)[::-1], 0),
        ("ada", happened(3), 0),
        ("ada", happened(2, first=2)[::-1], ANY),
        ("ada", [*happened(1, first=9)] * 2, 2),
    ):
        with pytest.raises(IdReused):
            append(engine, log, key, events, expected)
        assert history(engine, log) == [(1, 1), (2, 2)]


def test_event_of_a_batch_is_no_event_of_a_key(engine, log):
    """An event appended without a key's version has none, and cannot get one later."""
    first, second = (NewEvent("counted", {"n": n}, key="ada", id=f"e{n}") for n in (1, 2))
    with engine.begin() as connection:
        log.append(connection, [first])
    with pytest.raises(IdReused):
        append(engine, log, "ada", [first], ANY)
    append(engine, log, "ada", [second], NONE)
    with engine.begin() as connection:
        log.append(connection, [second])
    assert history(engine, log) == [(1, 2)]
    assert count_of(engine, log.table) == 2


def test_what_is_read_is_what_was_appended(engine, log):
    """A kept event has the attributes of the new one, and its time."""
    new = NewEvent("counted", {"n": 1, "more": ["ë", None, 0.5]}, id="e1", key="ada")
    append(engine, log, "ada", [new], 0)
    with Session(engine) as session:
        (kept,) = log.read_key(session, "ada")
    assert (kept.key, kept.version, kept.id, kept.type) == ("ada", 1, "e1", "counted")
    assert kept.data == new.data
    assert abs(kept.time.timestamp() - time.time()) < 60


def test_what_cannot_be_appended_is_refused(sqlite):
    """An append refuses an invalid expected version or key, and an event with another key."""
    log = made(sqlite)
    for expected in (-1, True, "1", None, 1.0):
        with pytest.raises(ConfigurationError, match="expected version"):
            append(sqlite, log, "ada", happened(1), expected)
    for key in ("", "ends ", 5, None):
        with pytest.raises(ConfigurationError, match="key"):
            append(sqlite, log, key, happened(1), 0)
    with pytest.raises(ConfigurationError, match="'bob'"):
        append(sqlite, log, "ada", [NewEvent("counted", {}, key="bob")], 0)
    append(sqlite, log, "ada", happened(2), 0)
    assert append(sqlite, log, "ada", [], 2) == 2
    with pytest.raises(Conflict):
        append(sqlite, log, "ada", [], 1)


@pytest.mark.anyio
async def test_log_from_async_code(log, async_engine):
    """Async connections and sessions append to the log and its keys, and read them, by run_sync."""
    for count, first in ((1, 1), (3, 2)):
        for _ in range(2):
            async with async_engine.begin() as connection:
                events = happened(count, first=first)
                await connection.run_sync(log.append_to, "ada", events, expected_version=first - 1)
                await connection.run_sync(log.append, happened(count, prefix="noted"))
    async with AsyncSession(async_engine) as session:
        with pytest.raises(Conflict):
            await session.run_sync(log.append_to, "ada", happened(1, first=9), expected_version=1)
        found = await session.run_sync(log.read_key, "ada", after_version=1)
        await session.run_sync(log.append, happened(2, first=20))
        await session.commit()
    assert [one.version for one in found] == [2, 3, 4]
    feed = log.feed().bind(async_engine)
    assert sum([len((await feed.read(each, "_first", 99)).events) for each in range(8)]) == 9


def own_table(*parts):
    """A table with other names than a log's."""
    columns = {"account": sa.BigInteger, "nth": sa.Integer, "command": sa.String(40)}
    columns |= {"amount": sa.Integer, "note": sa.JSON}
    parts = (*parts, sa.UniqueConstraint("command"))
    return event_table("movements", *parts, position="number", **columns)


def test_table_of_ones_own_has_keys(engine):
    """Any table with a key and a version works, also with other column names in Python."""
    table = own_table()
    for column in (table.c.nth, table.c.note):
        column.key = f"{column.key}_"
    table = table.to_metadata(sa.MetaData())
    table.append_constraint(sa.UniqueConstraint("account", "nth_"))
    table.create(engine)
    keyed = KeyedTable(table, key="account", version="nth_")
    rows = [{"amount": n, "note": {"n": n}} for n in range(3)]
    with engine.begin() as connection:
        assert keyed.append(connection, 17, rows, expected_version=0) == 3
        assert keyed.append(connection, 17, rows[:1], expected_version=3) == 4
        assert keyed.append(connection, 18, rows[:1], expected_version=ANY) == 1
        with pytest.raises(Conflict) as caught:
            keyed.append(connection, 17, rows, expected_version=3)
        assert (caught.value.key, caught.value.version) == (17, 4)
    with Session(engine) as session:
        assert [keyed.version(session, key) for key in (17, 19)] == [4, 0]
        found = keyed.read(session, 17, after_version=2)
    expected = [(3, 2, {"n": 2}), (4, 0, {"n": 0})]
    assert [(row["nth"], row["amount"], row["note"]) for row in found] == expected


def test_rows_of_one_append_are_stored_alike(postgresql):
    """The first row has its JSON as the others have it, where only the database has the type."""
    note = sa.Text().with_variant(JSONB(), "postgresql")
    columns = {"key": sa.String(20), "version": sa.Integer, "note": note}
    table = event_table("noted", sa.UniqueConstraint("key", "version"), **columns)
    table.create(postgresql)
    rows = [{"note": {"n": n}} for n in range(2)]
    with postgresql.begin() as connection:
        KeyedTable(table).append(connection, "ada", rows, expected_version=0)
    assert scalars(postgresql, "SELECT jsonb_typeof(note) FROM noted") == ["object"] * 2


def test_table_of_ones_own_with_ids(engine):
    """With a column of ids, repeated rows are recognized, and different ones refused."""
    table = own_table(sa.UniqueConstraint("nth", "account"))
    table.create(engine)
    keyed = KeyedTable(table, key="account", version="nth", id="command", same=["amount"])
    rows = [{"command": f"c{n}", "amount": n} for n in range(1_001)]
    for _ in range(2):
        with engine.begin() as connection:
            assert keyed.append(connection, 17, rows, expected_version=0) == 1_001
    with pytest.raises(IdReused, match="amount"), engine.begin() as connection:
        changed = [*rows[:2], {"command": "c2", "amount": 5}]
        keyed.append(connection, 17, changed, expected_version=0)
    noted = KeyedTable(table, key="account", version="nth", id="command", same=["note"])
    with pytest.raises(IdReused, match="note"), engine.begin() as connection:
        keyed.append(connection, 18, [{"command": "n", "amount": 1}], expected_version=0)
        noted.append(connection, 18, [{"command": "n", "note": {}}], expected_version=0)


def test_unique_value_of_another_column_is_no_row_that_came_before(engine):
    """A duplicate in another unique column is an error, and nothing is appended."""
    table = own_table(sa.UniqueConstraint("account", "nth"), sa.UniqueConstraint("amount"))
    table.create(engine)
    execute(engine, table.insert().values(account=1, nth=1, amount=7))
    for options in ({}, {"id": "command"}):
        keyed = KeyedTable(table, key="account", version="nth", **options)
        for amounts, error in (([7], StoreUnavailable), ([8, 7], IdReused)):
            rows = [{"amount": n, **({"command": f"c{n}"} if options else {})} for n in amounts]
            with pytest.raises(error), engine.begin() as connection:
                keyed.append(connection, 17, rows, expected_version=0)
            with engine.connect() as connection:
                assert keyed.version(connection, 17) == 0


def test_rows_of_a_generator_are_appended(sqlite):
    """Rows that can be read only once are appended as those of a list."""
    table = own_table(sa.UniqueConstraint("account", "nth"))
    table.create(sqlite)
    keyed = KeyedTable(table, key="account", version="nth")
    with sqlite.begin() as connection:
        rows = ({"amount": n} for n in range(3))
        assert keyed.append(connection, "ada", rows, expected_version=0) == 3
        found = keyed.read(connection, "ada")
    assert [row["amount"] for row in found] == [0, 1, 2]


@pytest.mark.parametrize("name", ["discount_%", "a%(b)s", "a b", "a'b", "a`b", "a:b", "?"])
def test_column_may_have_any_usual_name(engine, name):
    """Rows are stored in a column whose name has characters that mean something to a driver."""
    columns = {"key": sa.String(20), "version": sa.Integer, name: sa.Integer}
    table = event_table("odd", sa.UniqueConstraint("key", "version"), **columns)
    table.create(engine)
    with engine.begin() as connection:
        keyed, rows = KeyedTable(table), [{name: n} for n in range(3)]
        assert keyed.append(connection, "ada", rows, expected_version=0) == 3
        assert [row[name] for row in keyed.read(connection, "ada")] == [0, 1, 2]


@pytest.mark.parametrize("name", ['height"', "a\\b", "a\nb"])
def test_column_of_an_odd_name_is_refused(sqlite, name):
    """A table with a column that no row can be decoded for is refused with the column's name."""
    columns = {"key": sa.String(20), "version": sa.Integer, name: sa.Integer}
    table = event_table("odd", sa.UniqueConstraint("key", "version"), **columns)
    table.create(sqlite)
    with (
        pytest.raises(ConfigurationError, match="the name of its column"),
        sqlite.begin() as opened,
    ):
        KeyedTable(table).append(opened, "ada", [{name: 5}], expected_version=0)


def test_row_that_does_not_fit_is_refused(sqlite):
    """A row without a key, or with unknown, fixed or missing columns, is refused."""
    table = own_table(sa.UniqueConstraint("account", "nth"))
    table.create(sqlite)
    plain = KeyedTable(table, key="account", version="nth")
    known = KeyedTable(table, key="account", version="nth", id="command", same=iter(["amount"]))
    with pytest.raises(ConfigurationError, match="None"), sqlite.begin() as connection:
        plain.append(connection, None, [{"amount": 5}], expected_version=0)
    for keyed, rows, sentence in (
        (plain, [{"account": 5}], "'account'"),
        (plain, [{"nth": 5}], "'nth'"),
        (plain, [{"nothing": 5}], "'nothing'"),
        (plain, [{"amount": 5}, {"note": 5}], "same columns"),
        (known, [{"amount": 1}], "command"),
        (known, [{"command": "c1"}], "amount"),
        (plain, {"amount": 5}, "in a list"),
        (plain, NewEvent("paid", {"amount": 5}), "in a list"),
        (plain, None, "in a list"),
    ):
        with pytest.raises(ConfigurationError, match=sentence), sqlite.begin() as connection:
            keyed.append(connection, 17, rows, expected_version=0)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (sa.Numeric(9, 2), Decimal(1), Decimal("NaN")),
        (sa.Boolean, True, "f"),
        (sa.Uuid, None, "no UUID"),
        (sa.DateTime, None, "2026"),
        (sa.JSON, {}, object()),
        (sa.JSON, {}, [float("nan")]),
    ],
)
def test_value_that_a_column_does_not_take_is_refused(sqlite, kind, good, bad):
    """A value is refused in any row, and not stored as another one where it is in the first."""
    columns = {"key": sa.String(20), "version": sa.Integer, "value": kind}
    table = event_table("valued", sa.UniqueConstraint("key", "version"), **columns)
    table.create(sqlite)
    for rows in ([{"value": bad}], [{"value": good}, {"value": bad}]):
        with pytest.raises(ConfigurationError, match="'value'"), sqlite.begin() as connection:
            KeyedTable(table).append(connection, "ada", rows, expected_version=0)
    assert count_of(sqlite, table) == 0


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([], {}),
        ([sa.Index("i", "account", "nth")], {}),
        ([sa.UniqueConstraint("account", "nth", "amount")], {}),
        ([sa.UniqueConstraint("account", "nth")], {"id": "amount"}),
    ],
)
def test_table_without_a_unique_index_is_refused(parts, options):
    """A table without a unique index on its versions or ids is refused at construction."""
    with pytest.raises(ConfigurationError, match="unique"):
        KeyedTable(own_table(*parts), key="account", version="nth", **options)


def at_once(engine, count, append_once):
    """Append in threads, each with its number, until each has come in."""
    own = sa.create_engine(engine.url, pool_size=count)

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
    own.dispose()


def test_handlers_leave_no_gap_and_no_double(engine, log):
    """Handlers that load, decide and append at once, and retry, count without gaps."""

    def handle(connection, number):
        events = log.read_key(connection, "ada")
        last = events[-1].data["n"] if events else 0
        new = [NewEvent("counted", {"n": last + 1 + n}) for n in range(number % 3 + 1)]
        log.append_to(connection, "ada", new, expected_version=len(events))

    at_once(engine, 9, handle)
    assert history(engine, log) == [(n, n) for n in range(1, 3 * (1 + 2 + 3) + 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_writers_who_expect_any_version_all_come_in(engine, log, count):
    """Appends to any version get consecutive versions without a conflict."""
    conflicts = []

    def write(connection, number):
        try:
            log.append_to(
                connection, "ada", happened(count, prefix=f"{number}-"), expected_version=ANY
            )
        except Conflict as error:
            conflicts.append(error)
            raise

    at_once(engine, 6, write)
    assert conflicts == []
    assert [version for version, _ in history(engine, log)] == [*range(1, 6 * count + 1)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize(("count", "expected"), [(1, 2), (1, ANY), (5, None)])
def test_rival_that_cannot_be_seen_asks_to_try_again(postgresql, level, count, expected):
    """If a transaction cannot see another one's append, the error asks for a retry."""
    log = made(postgresql)
    append(postgresql, log, "ada", happened(2), 0)
    with postgresql.connect().execution_options(isolation_level=level) as connection:
        assert len(log.read_key(connection, "ada")) == 2
        if expected is None:
            write = partial(log.append, events=happened(count, prefix="batch"))
            with postgresql.begin() as other:
                write(other)
        else:
            events = happened(count, first=9)
            write = partial(log.append_to, key="ada", events=events, expected_version=expected)
            append(postgresql, log, "ada", happened(2, first=3), 2)
        with pytest.raises(StoreUnavailable):
            write(connection)
        connection.rollback()
        if expected != 2:
            write(connection)


def test_mariadb_knows_what_is_newer_than_its_snapshot(mariadb):
    """A transaction that read before another one appended gets the present version."""
    log = made(mariadb)
    append(mariadb, log, "ada", happened(2), 0)
    with mariadb.begin() as connection:
        assert len(log.read_key(connection, "ada")) == 2
        append(mariadb, log, "ada", happened(2, first=3), 2)
        for count in (1, 5):
            noted = happened(count, prefix=f"noted {count} ")
            with mariadb.begin() as other:
                log.append(other, noted)
            log.append(connection, noted)
        events = happened(1, first=9)
        with pytest.raises(Conflict) as caught:
            log.append_to(connection, "ada", events, expected_version=2)
        assert caught.value.version == 4
        assert log.append_to(connection, "ada", events, expected_version=4) == 5
    assert count_of(mariadb, log.table) == 5 + 6


@pytest.mark.parametrize("ends", ["rollback", "commit"])
def test_writer_that_is_open_is_waited_for(postgresql, ends):
    """An append waits for an open transaction that appended to the same key."""
    log = made(postgresql)
    with ThreadPoolExecutor(1) as pool, postgresql.connect() as connection:
        log.append_to(connection, "ada", happened(2), expected_version=0)
        rival = pool.submit(append, postgresql, log, "ada", happened(1, first=5), 0)
        with postgresql.connect() as watching:
            waits = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            until(lambda: watching.scalar(waits), "the rival waits")
        getattr(connection, ends)()
        error = rival.exception(30)
    assert getattr(error, "version", None) == (2 if ends == "commit" else None)
    assert history(postgresql, log) == ([(1, 1), (2, 2)] if ends == "commit" else [(1, 5)])


def test_key_is_read_by_one_query_by_the_index(engine, log):
    """A key, or a page of it, is read by one statement through the index."""
    for _ in range(3):
        append(engine, log, "ada", [NewEvent("x", {"n": n}) for n in range(200)], ANY)
    with engine.begin() as connection:
        log.append(connection, [NewEvent("x", {"n": n}, key=f"k{n % 50}") for n in range(5_000)])
        if engine.dialect.name != "mariadb":
            connection.execute(sa.text("ANALYZE"))
    feed = log.feed(key_history=True).bind(engine)
    feed.read_key("ada", 0, 1000)
    seen = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, *_):
        if "orders.version" in statement or "`version`" in statement:
            seen.append((statement, parameters))

    assert len(history(engine, log)) == 600
    assert len(feed.read_key("ada", 100, 100).events) == 100
    assert len(seen) == 2
    sa.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, parameters in seen:
            assert_by_index(connection, statement, parameters)


def assert_by_index(connection, statement, parameters):
    """Show that a database looks into an index for the events of a key."""
    match connection.dialect.name:
        case "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_sort = off")
            plan = "\n".join(
                connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars()
            )
            assert "orders_key_version" in plan
            assert "Index Cond" in plan
        case "sqlite":
            explain = f"EXPLAIN QUERY PLAN {statement}"
            (row,) = connection.exec_driver_sql(explain, parameters)
            assert "SEARCH orders USING INDEX" in row.detail
            assert "(key=? AND version>?)" in row.detail
        case _:
            (row,) = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings()
            assert row["key"] == "orders_key_version"
            assert "filesort" not in row["Extra"]


def assert_as_the_model_says(engine, log, steps):
    """Append to keys, in transactions that continue after conflicts; show that each key holds, at
    every moment, what a list would.

    A step is a key, the numbers of its events, and the version that is expected.
    """
    model, refused = {"ada": [], "bob": []}, 0
    with engine.connect() as connection:
        for key, numbers, expected in steps:
            kept, known = model[key], {number for one in model.values() for number in one}
            if known & set(numbers):
                connection.commit()
            places = [kept.index(number) + 1 for number in numbers if number in kept]
            again = places == [*range(places[0], places[0] + len(numbers))] if places else False
            before = places[0] - 1 if again else len(kept)
            fits = {ANY: True, NONE: before == 0, SOME: before > 0}.get(
                expected, expected == before
            )
            events = [NewEvent("counted", {"n": number}, id=f"e{number}") for number in numbers]
            try:
                version = log.append_to(connection, key, events, expected_version=expected)
            except Conflict as error:
                assert not known & set(numbers)
                assert not fits
                assert (error.key, error.version) == (key, len(kept))  # noqa: PT017
                refused += 1
            except IdReused:
                assert known & set(numbers)
                assert not (again and fits)
                connection.rollback()
                refused += 1
            else:
                assert fits
                assert version == before + len(numbers)
                if not again:
                    assert not known & set(numbers)
                    kept.extend(numbers)
            for each, numbers_kept in model.items():
                found = log.read_key(connection, each)
                assert [(one.version, one.data["n"]) for one in found] == [
                    *enumerate(numbers_kept, 1)
                ]
        assert connection.scalar(sa.select(sa.func.count()).select_from(log.table)) == len(
            [*chain(*model.values())]
        )
        connection.commit()
    assert history(engine, log, "ada", after_version=1, limit=2) == [
        *enumerate(model["ada"][1:3], 2)
    ]
    return refused


@pytest.mark.parametrize(("database", "ordering"), ORDERED)
def test_keys_count_what_is_appended(request, database, ordering):
    """Each key counts 1, 2, 3 …; a conflict names the version, which a repeated event keeps."""
    engine = request.getfixturevalue(database)
    log, dice, steps = made(engine, ordering=ordering), random.Random(3), []
    for number in range(1, 40):
        some = dice.sample(range(number, number + 3), dice.randint(1, 3))
        expected = dice.choice([0, number // 2, number, ANY, ANY, ANY, NONE, SOME])
        steps.append((dice.choice(["ada", "bob"]), some, expected))
        steps.append(dice.choice(steps))
    assert 20 < assert_as_the_model_says(engine, log, steps) < 70
    feed = log.feed().bind(engine)
    count = sum(len(feed.read(each, "_first", 100).events) for each in range(8))
    assert count == len(history(engine, log)) + len(history(engine, log, "bob")) > 10


def test_moment_of_a_row_is_the_same_in_sessions_of_all_zones(mariadb):
    """A TIMESTAMP of a row is stored as the moment that it is, and recognized in a repeat."""
    unique = sa.UniqueConstraint("key", "version")
    columns = {"key": sa.String(9), "version": sa.Integer, "at": sa.TIMESTAMP}
    table = event_table("moved", sa.Column("name", sa.String(9), unique=True), unique, **columns)
    table.create(mariadb)
    keyed = KeyedTable(table, id="name", same=["at"])
    moment = datetime(2020, 1, 1, 10, tzinfo=UTC)
    rows = [{"name": name, "at": moment} for name in ("a", "b")]
    utc, india = (f"SET time_zone = '{zone}'" for zone in ("+00:00", "+05:30"))
    with connected(mariadb.url, init_command=india) as far:
        for _ in range(2):
            with far.begin() as connection:
                assert keyed.append(connection, "ada", rows, expected_version=0) == 2
                assert connection.exec_driver_sql("SELECT @@time_zone").scalar() == "+05:30"
    with connected(mariadb.url, init_command=utc) as near, near.connect() as connection:
        found = connection.scalars(sa.select(table.c.at)).all()
    assert [one.replace(tzinfo=UTC) for one in found] == [moment, moment]
