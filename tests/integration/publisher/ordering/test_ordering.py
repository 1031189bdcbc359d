"""Writers side by side: what is not settled is not shown, and what is shown is never late."""

import random
import threading
import time
from itertools import count

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    text,
)
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError, Unavailable


@pytest.fixture
def feed(postgresql):
    """A feed over an empty table of orders in PostgreSQL."""
    metadata.create_all(postgresql)
    return TableFeed(orders, data="data").bind(postgresql)


@pytest.fixture(params=["observed", "gated", "observed-mariadb"])
def server(request):
    """An engine of a server on which open writers hold the horizon back."""
    name = "mariadb" if request.param.endswith("mariadb") else "postgresql"
    return request.getfixturevalue(name)


@pytest.fixture
def source(request, server):
    """What a feed is made from, over an empty table of orders, in each ordering in turn."""
    metadata.create_all(server)
    ordering = request.node.callspec.params["server"].partition("-")[0]
    source = TableFeed(orders, data="data", ordering=ordering)
    with server.begin() as connection:
        source.install(connection)
    return source


@pytest.fixture
def any_feed(source, server):
    """The feed of that source."""
    return source.bind(server)


def numbers(feed, cursor=FIRST):
    """Read the numbers of all events that follow a cursor."""
    return [event.data["n"] for event in feed.read(0, cursor, 1000).events]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_later_number_waits_for_an_earlier_writer(any_feed, server, outcome):
    """An event is not shown while a writer that may hold a lower number is open."""
    with server.begin() as connection:
        place(connection, 1)
    assert numbers(any_feed) == [0]
    with server.connect() as slow:
        place(slow, 1, first=1)
        with server.begin() as connection:
            place(connection, 1, first=2)
        assert numbers(any_feed) == [0]
        getattr(slow, outcome)()
    assert numbers(any_feed) == ([0, 1, 2] if outcome == "commit" else [0, 2])


@pytest.mark.parametrize("level", ["the default", "REPEATABLE READ", "SERIALIZABLE"])
def test_writers_between_any_two_steps_of_a_read_are_waited_for(server, source, level):
    """Writers that come between two statements of a read cannot slip an event past another,
    whatever the isolation level of the engine is.
    """
    strict = {} if level == "the default" else {"isolation_level": level}
    any_feed = source.bind(server.execution_options(**strict))
    assert numbers(any_feed) == []
    for step in count():
        statements = count()
        with server.connect() as slow:

            def interfere(*_, slow=slow, statements=statements, step=step):
                if next(statements) == step:
                    place(slow, 1, first=2 * step)
                    with server.begin() as connection:
                        place(connection, 1, first=2 * step + 1)

            event.listen(server, "after_cursor_execute", interfere)
            seen = numbers(any_feed)
            event.remove(server, "after_cursor_execute", interfere)
            assert seen == list(range(2 * step))
            slow.commit()
        if next(statements) <= step:
            break
        assert numbers(any_feed) == list(range(2 * step + 2))
    assert step >= 3


@pytest.mark.parametrize("level", ["the default", "REPEATABLE READ", "SERIALIZABLE"])
def test_writer_that_ends_between_two_steps_of_a_read_is_not_passed_over(server, source, level):
    """A writer that ends while a page is read is shown in it, or holds back what came later,
    whatever the isolation level of the engine is.
    """
    strict = {} if level == "the default" else {"isolation_level": level}
    feed = source.bind(server.execution_options(**strict))
    cursor = feed.read(0, FIRST, 10).cursor
    for step in range(4):
        statements = count()
        with server.connect() as slow:
            place(slow, 1, first=2 * step)
            with server.begin() as connection:
                place(connection, 1, first=2 * step + 1)

            def end(*_, slow=slow, statements=statements, step=step):
                if next(statements) == step:
                    slow.commit()

            event.listen(server, "after_cursor_execute", end)
            page = feed.read(0, cursor, 10)
            event.remove(server, "after_cursor_execute", end)
            slow.commit()
        seen = [event.data["n"] for event in page.events] + numbers(feed, page.cursor)
        assert seen == [2 * step, 2 * step + 1]
        cursor = feed.read(0, page.cursor, 10).cursor


@pytest.mark.anyio
async def test_async_feed_passes_nobody_over_whatever_the_isolation(postgresql):
    """A feed over an async engine reads each statement by itself as well."""
    metadata.create_all(postgresql)
    engine = create_async_engine(postgresql.url, isolation_level="REPEATABLE READ")
    feed = TableFeed(orders, data="data").bind(
        engine.execution_options(isolation_level="REPEATABLE READ")
    )
    cursor = (await feed.read(0, FIRST, 10)).cursor
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 1, first=1)
        event.listen(engine.sync_engine, "after_cursor_execute", lambda *_: slow.commit())
        page = await feed.read(0, cursor, 10)
    rest = await feed.read(0, page.cursor, 10)
    assert [event.data["n"] for event in (*page.events, *rest.events)] == [0, 1]
    await engine.dispose()


def test_writer_that_came_later_holds_nobody_up(feed, postgresql):
    """An event is shown once the writers of its time have ended, whoever has come since."""
    first, second = postgresql.connect(), postgresql.connect()
    with first, second:
        place(first, 1)
        with pytest.raises(Unavailable):
            numbers(feed)
        place(second, 1, first=1)
        first.commit()
        assert numbers(feed) == [0]
        second.commit()
    assert numbers(feed) == [0, 1]


def test_new_reader_waits_until_it_knows(feed, postgresql):
    """A feed that starts beside an open writer says so, and not that there is nothing."""
    with postgresql.begin() as connection:
        place(connection, 1)
    with postgresql.connect() as slow:
        place(slow, 1, first=1)
        with pytest.raises(Unavailable, match="open transactions"):
            numbers(feed)
    assert numbers(feed) == [0]


def test_prepared_transaction_is_a_writer(any_feed, server):
    """A prepared transaction holds the horizon although its session is gone."""
    with server.begin() as connection:
        place(connection, 1)
    assert numbers(any_feed) == [0]
    with server.connect() as first:
        maria = server.dialect.name != "postgresql"
        first.execute(text("XA START 'later'" if maria else "BEGIN"))
        place(first, 1, first=1)
        with server.begin() as connection:
            place(connection, 1, first=2)
        assert numbers(any_feed) == [0]
        if maria:
            first.execute(text("XA END 'later'"))
        first.execute(text("XA PREPARE 'later'" if maria else "PREPARE TRANSACTION 'later'"))
        first.invalidate()
    assert numbers(any_feed) == [0]
    with server.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("XA COMMIT 'later'" if maria else "COMMIT PREPARED 'later'"))
    assert numbers(any_feed) == [0, 1, 2]


def test_writer_of_another_table_holds_nobody_up(any_feed, server):
    """A long transaction elsewhere in the cluster has no effect on the feed."""
    with server.connect() as elsewhere:
        elsewhere.execute(text("CREATE TABLE other (id integer)"))
        elsewhere.execute(text("INSERT INTO other VALUES (1)"))
        with server.begin() as connection:
            place(connection, 1)
        assert numbers(any_feed) == [0]


def test_leaf_of_a_partitioned_table_is_watched(postgresql):
    """A writer that goes to a leaf directly is seen by the feed over the parent."""
    with postgresql.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY, n integer)"
                " PARTITION BY RANGE (id)"
            )
        )
        connection.execute(
            text("CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (1000)")
        )
        connection.execute(text("INSERT INTO log (n) VALUES (0)"))
    log = Table("log", MetaData(), autoload_with=postgresql)
    feed = TableFeed(log, position="id", data=["n"]).bind(postgresql)
    assert numbers(feed) == [0]
    with postgresql.connect() as slow:
        slow.execute(text("INSERT INTO log_1 (n) VALUES (1)"))
        with postgresql.begin() as connection:
            connection.execute(text("INSERT INTO log (n) VALUES (2)"))
        assert numbers(feed) == [0]
        slow.commit()
    assert numbers(feed) == [0, 1, 2]


def test_restarted_numbers_are_settled_anew(feed, postgresql):
    """After TRUNCATE … RESTART IDENTITY the old horizon does not vouch for new writers."""
    with postgresql.begin() as connection:
        place(connection, 5)
    assert len(numbers(feed)) == 5
    with postgresql.begin() as connection:
        connection.execute(text("TRUNCATE orders RESTART IDENTITY"))
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 1, first=1)
        with pytest.raises(Unavailable):
            numbers(feed)
        slow.commit()
    assert numbers(feed) == [0, 1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("ordering", ["single-writer", "observed", "gated"])
def test_nothing_is_lost_beside_eight_writers(request, ordering, seed):
    """A reader that pages beside eight writers sees every event once, each key in order."""
    engine = request.getfixturevalue("sqlite" if ordering == "single-writer" else "postgresql")
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    with engine.begin() as connection:
        source.install(connection)
    feed = source.bind(engine)
    written, writing = [], threading.Event()
    threads = [
        threading.Thread(target=_write, args=(engine, writer, seed, writing, written))
        for writer in range(8)
    ]
    writing.set()
    for thread in threads:
        thread.start()
    seen, cursor, ending = [], FIRST, time.monotonic() + 3
    more = True
    while more or writing.is_set():
        if time.monotonic() > ending:
            writing.clear()
            for thread in threads:
                thread.join()
        try:
            page = feed.read(0, cursor, 50)
        except Unavailable:
            continue
        seen += [(event.data["key"], event.data["n"]) for event in page.events]
        cursor, more = page.cursor, bool(page.events)
    assert len(seen) > 100
    assert sorted(seen) == sorted(written)
    for key in range(8):
        of_key = [number for owner, number in seen if owner == key]
        assert of_key == sorted(of_key)


def _write(engine, writer, seed, writing, written):
    """Append events of a key of one's own, with time between a number and its commit."""
    dice = random.Random(f"{seed}-{writer}")
    number = 0
    while writing.is_set():
        with engine.connect() as connection:
            batch = [(writer, number + index) for index in range(dice.randint(1, 4))]
            for key, index in batch:
                event = insert(orders).values(data={"key": key, "n": index})
                if dice.random() < 0.2:
                    savepoint = connection.begin_nested()
                    connection.execute(event)
                    savepoint.rollback()
                connection.execute(event)
            time.sleep(dice.random() * 0.01)
            if dice.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                number += len(batch)
                written += batch


@pytest.mark.parametrize(
    ("declaration", "complaint"),
    [
        ("id bigint PRIMARY KEY", "draws from no sequence"),
        ("id bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY", "CACHE 1"),
        ("id bigint GENERATED ALWAYS AS IDENTITY (INCREMENT -1) PRIMARY KEY", "INCREMENT 1"),
        ("id bigint GENERATED ALWAYS AS IDENTITY (CYCLE) PRIMARY KEY", "NO CYCLE"),
        ("id bigserial", "UNIQUE"),
        ("id bigint GENERATED BY DEFAULT AS IDENTITY (START 0 MINVALUE 0) PRIMARY KEY", "start at"),
    ],
)
def test_postgresql_table_without_a_safe_order_is_refused(postgresql, declaration, complaint):
    """A column whose numbers cannot be trusted is refused, with what to change."""
    with postgresql.begin() as connection:
        connection.execute(text(f"CREATE TABLE log ({declaration}, n integer)"))
        if "bigint PRIMARY" not in declaration:
            connection.execute(text("INSERT INTO log (n) VALUES (1)"))
    log = Table("log", MetaData(), autoload_with=postgresql)
    with pytest.raises(ConfigurationError, match=complaint):
        TableFeed(log, position="id").bind(postgresql).info()


def test_numbers_of_ones_own_behind_the_sequence_are_refused(postgresql):
    """Rows whose numbers the sequence has not reached would stay hidden, and are refused."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        connection.execute(insert(orders), {"id": 7, "data": {"n": 0}})
    feed = TableFeed(orders, data="data").bind(postgresql)
    with pytest.raises(ConfigurationError, match=r"setval\('public.orders_id_seq', 7\)"):
        feed.info()
    with postgresql.begin() as connection:
        connection.execute(text("SELECT setval('public.orders_id_seq', 7)"))
    assert numbers(feed) == [0]


def test_serial_without_its_default_is_refused(postgresql):
    """A sequence that a column owns but no longer draws from does not vouch for its order."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text("ALTER TABLE orders ALTER COLUMN id DROP DEFAULT"))
    with pytest.raises(ConfigurationError, match="no sequence"):
        TableFeed(orders, data="data").bind(postgresql).info()


def test_leaf_of_a_partitioned_table_is_refused(postgresql):
    """A leaf's rows draw their numbers before they reach it, so only the parent is published."""
    with postgresql.begin() as connection:
        for statement in (
            "CREATE TABLE log (id bigserial PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (1000)",
        ):
            connection.execute(text(statement))
    leaf = Table("log_1", MetaData(), autoload_with=postgresql)
    with pytest.raises(ConfigurationError, match="publish log"):
        TableFeed(leaf).bind(postgresql).info()


def test_sequence_that_is_changed_later_is_noticed(feed, postgresql, monkeypatch):
    """What a feed relies on is looked at again while it runs."""
    feed.info()
    with postgresql.begin() as connection:
        connection.execute(text("ALTER SEQUENCE orders_id_seq CACHE 20"))
    monkeypatch.setattr("zeroeventhub.publisher.checks.CHECK_INTERVAL", 0)
    with pytest.raises(ConfigurationError, match="CACHE 1"):
        numbers(feed)


@pytest.mark.parametrize("name", ["Mixed Case", 'quo"ted', "per%cent"])
def test_any_name_of_a_table_will_do(postgresql, name):
    """Names that need quotes are found in the locks as in the queries."""
    log = Table(name, MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))
    log.metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        connection.execute(insert(log), {"n": 0})
    feed = TableFeed(log).bind(postgresql)
    assert numbers(feed) == [0]
    with postgresql.connect() as slow:
        slow.execute(insert(log), {"n": 1})
        with postgresql.begin() as connection:
            connection.execute(insert(log), {"n": 2})
        assert numbers(feed) == [0]


def test_role_needs_to_read_the_sequence(postgresql):
    """A role that may read the table but not its sequence is told which right is missing."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS zeroeventhub_reader"))
        connection.execute(text("CREATE ROLE zeroeventhub_reader LOGIN PASSWORD 'reader'"))
        connection.execute(text("GRANT SELECT ON orders TO zeroeventhub_reader"))
    url = make_url(str(postgresql.url.render_as_string(hide_password=False)))
    reader = create_engine(url.set(username="zeroeventhub_reader", password="reader"))
    feed = TableFeed(orders, data="data").bind(reader)
    with pytest.raises(ConfigurationError, match="GRANT SELECT ON SEQUENCE"):
        feed.info()
    with postgresql.begin() as connection:
        connection.execute(text("GRANT SELECT ON SEQUENCE orders_id_seq TO zeroeventhub_reader"))
        place(connection, 1)
    assert numbers(feed) == [0]
    reader.dispose()
    with postgresql.begin() as connection:
        connection.execute(text("DROP OWNED BY zeroeventhub_reader"))
        connection.execute(text("DROP ROLE zeroeventhub_reader"))


def test_sqlite_table_that_gives_numbers_twice_is_refused(sqlite):
    """Without AUTOINCREMENT a table is refused, unless nothing is ever deleted from it."""
    log = Table("log", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))
    log.metadata.create_all(sqlite)
    with pytest.raises(ConfigurationError, match="AUTOINCREMENT"):
        TableFeed(log).bind(sqlite).info()
    promised = TableFeed(log, append_only=True).bind(sqlite)
    with sqlite.begin() as connection:
        connection.execute(insert(log), [{"n": 0}, {"n": 1}])
    assert numbers(promised) == [0, 1]


@pytest.mark.parametrize("key", ["id BIGINT PRIMARY KEY", "id INT PRIMARY KEY"])
def test_sqlite_key_that_is_not_the_row_id_is_refused(sqlite, key):
    """Only INTEGER PRIMARY KEY is the row id; other keys are numbers from anywhere."""
    with sqlite.begin() as connection:
        connection.execute(text(f"CREATE TABLE log ({key}, n INTEGER)"))
    log = Table("log", MetaData(), autoload_with=sqlite)
    with pytest.raises(ConfigurationError, match="INTEGER PRIMARY KEY"):
        TableFeed(log, append_only=True).bind(sqlite).info()


def test_sqlite_declaration_is_read_like_sqlite_reads_it(sqlite):
    """AUTOINCREMENT is found without a space behind it, and its memory may be wiped."""
    with sqlite.begin() as connection:
        connection.execute(text("CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT,n INT)"))
        connection.execute(text("INSERT INTO log (n) VALUES (0)"))
        connection.execute(text("DELETE FROM sqlite_sequence"))
    log = Table("log", MetaData(), autoload_with=sqlite)
    assert numbers(TableFeed(log).bind(sqlite)) == [0]


def test_sqlite_comment_is_not_a_declaration(sqlite):
    """The word AUTOINCREMENT in a comment or in a name does not make a table safe."""
    with sqlite.begin() as connection:
        connection.execute(
            text(
                'CREATE TABLE log (id INTEGER PRIMARY KEY, "autoincrement" TEXT'
                " /* AUTOINCREMENT */)"
            )
        )
    log = Table("log", MetaData(), autoload_with=sqlite)
    with pytest.raises(ConfigurationError, match="AUTOINCREMENT"):
        TableFeed(log).bind(sqlite).info()


def test_deleted_tail_keeps_its_numbers(sqlite):
    """A cursor behind a deleted last row stays good, and the next event is not skipped."""
    metadata.create_all(sqlite)
    feed = TableFeed(orders, data="data", mutable=True).bind(sqlite)
    with sqlite.begin() as connection:
        place(connection, 3)
    cursor = feed.read(0, FIRST, 10).cursor
    with sqlite.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 3))
    assert numbers(feed, cursor) == []
    with sqlite.begin() as connection:
        place(connection, 1, first=3)
    assert numbers(feed, cursor) == [3]


def test_missing_table_is_one_sentence(engine):
    """A table that is not there is refused by name."""
    with pytest.raises(ConfigurationError, match="no table 'orders'"):
        TableFeed(orders, data="data").bind(engine).info()


def test_position_must_be_a_number(engine):
    """A position that the database does not draw is refused when the feed is made."""
    with pytest.raises(ConfigurationError, match="position"):
        TableFeed(orders, position="customer")
    keyless = Table("keyless", MetaData(), Column("n", BigInteger))
    with pytest.raises(ConfigurationError, match="primary key"):
        TableFeed(keyless)
