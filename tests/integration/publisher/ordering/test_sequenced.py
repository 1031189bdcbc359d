"""Positions given after the commit: what is installed, who may read, and who gives them."""

import itertools
import threading
import uuid
from datetime import datetime, timedelta

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    inspect,
    text,
)
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, LAST, TableFeed
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.cursor import Place

SOURCE = TableFeed(orders, data="data", ordering="sequenced")


def install(engine, source=SOURCE):
    """Install what a feed's ordering needs, and return the feed."""
    with engine.begin() as connection:
        source.install(connection)
    return source.bind(engine)


@pytest.fixture
def feed(engine):
    """A feed over an empty table of orders, on each database in turn."""
    metadata.create_all(engine)
    return install(engine)


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request):
    """An engine of an empty database on a server, on each in turn."""
    return request.getfixturevalue(request.param)


def numbers(feed, cursor=FIRST, limit=1000):
    """Read the numbers of all events that follow a cursor."""
    return [event.data["n"] for event in feed.read(0, cursor, limit).events]


def left_over(engine):
    """List what an ordering has added to a database."""
    look = inspect(engine)
    tables = [name for name in look.get_table_names() if name.startswith("zeroeventhub_")]
    return sorted(tables)


def test_events_come_in_the_order_of_commits(server):
    """An event gets its position when everybody can see it, whoever has written before."""
    metadata.create_all(server)
    feed = install(server)
    with server.connect() as slow:
        place(slow, 1)
        with server.begin() as connection:
            place(connection, 1, first=1)
        assert numbers(feed) == [1]
        slow.commit()
    assert numbers(feed) == [1, 0]
    assert numbers(feed, "1-1") == [0]


def test_events_from_before_come_first_in_their_order(engine):
    """What was in the table when the ordering was installed comes first, by its key."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 12)
    feed = install(engine)
    with engine.begin() as connection:
        place(connection, 1, first=12)
    assert numbers(feed) == list(range(13))


def test_events_from_before_are_taken_in_after_newer_ones(server):
    """Between the two parts of the installation nothing is shown, and order is not lost."""
    metadata.create_all(server)
    with server.begin() as connection:
        place(connection, 3)
        ddl = SOURCE.ordering(server.dialect.name).ddl(connection)
    parts = {
        part: [text(line.replace(":", r"\:")) for line in getattr(ddl, part)]
        for part in ("install", "backfill")
    }
    with server.begin() as connection:
        for line in parts["install"]:
            connection.execute(line)
    with server.begin() as connection:
        place(connection, 2, first=3)
    feed = SOURCE.bind(server)
    with pytest.raises(Unavailable, match="second part"):
        numbers(feed)
    with server.begin() as connection:
        for line in parts["backfill"]:
            connection.execute(line)
    assert numbers(feed) == list(range(5))


def test_install_can_be_repeated_and_taken_back(feed, engine):
    """Installing again changes no position; uninstalling leaves the table as it was."""
    with engine.begin() as connection:
        place(connection, 3)
    page = feed.read(0, FIRST, 10)
    install(engine)
    with engine.begin() as connection:
        place(connection, 1, first=3)
    assert numbers(feed, page.cursor) == [3]
    assert numbers(feed) == [0, 1, 2, 3]
    for _ in range(2):
        with engine.begin() as connection:
            SOURCE.uninstall(connection)
    assert left_over(engine) == []
    with engine.begin() as connection:
        place(connection, 1, first=4)
        assert connection.scalar(text("SELECT count(*) FROM orders")) == 5
    with pytest.raises(ConfigurationError, match="zeroeventhub ddl"):
        SOURCE.bind(engine).info()


def test_installing_again_repeats_no_event_that_waits_for_its_position(server, monkeypatch):
    """What waits in the outbox is not put into it once more."""
    for module in ("postgresql", "mysql"):
        monkeypatch.setattr(f"zeroeventhub.publisher.ordering.{module}.sequenced.BACKLOG", 1)
    metadata.create_all(server)
    feed = install(server)
    with server.begin() as connection:
        place(connection, 3)
    install(server)
    cursor, seen = FIRST, []
    for _ in range(8):
        page = feed.read(0, cursor, 10)
        seen += [event.data["n"] for event in page.events]
        cursor = page.cursor
    assert seen == [0, 1, 2]


def test_events_from_before_have_the_order_of_their_times(engine):
    """Where the key says nothing about the order, the column of times does."""
    log = Table(
        "log",
        MetaData(),
        Column("name", String(9), primary_key=True),
        Column("at", DateTime, nullable=False),
        Column("n", Integer),
    )
    log.metadata.create_all(engine)
    noon = datetime(2013, 1, 1, 12)  # noqa: DTZ001 - without a zone
    with engine.begin() as connection:
        connection.execute(
            insert(log),
            [
                {"name": name, "at": noon + timedelta(minutes=minute), "n": minute}
                for name, minute in [("a", 3), ("b", 1), ("c", 2), ("d", 0)]
            ],
        )
    feed = install(engine, TableFeed(log, data=["n"], time="at", ordering="sequenced"))
    assert numbers(feed) == [0, 1, 2, 3]


def test_trigger_of_another_version_is_refused(sqlite):
    """A trigger of the right name that does something else is not taken for ours."""
    metadata.create_all(sqlite)
    install(sqlite)
    with sqlite.begin() as connection:
        name = connection.scalar(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
        connection.execute(text(f"DROP TRIGGER {name}"))
        connection.exec_driver_sql(
            f"CREATE TRIGGER {name} AFTER INSERT ON orders BEGIN SELECT 1; END"
        )
    with pytest.raises(ConfigurationError, match="this version"):
        SOURCE.bind(sqlite).info()


def test_strict_isolation_makes_nobody_wait(mariadb):
    """Where sessions are SERIALIZABLE, whoever gives positions still waits for no open writer."""
    metadata.create_all(mariadb)
    install(mariadb)
    session = (
        "SET SESSION tx_isolation = 'SERIALIZABLE', SESSION innodb_lock_wait_timeout = 1"
        if mariadb.dialect.is_mariadb
        else "SET SESSION transaction_isolation = 'SERIALIZABLE', innodb_lock_wait_timeout = 1"
    )
    strict = create_engine(mariadb.url, connect_args={"init_command": session})
    feed = SOURCE.bind(strict)
    with mariadb.connect() as slow:
        place(slow, 1)
        with mariadb.begin() as connection:
            place(connection, 1, first=1)
        assert numbers(feed) == [1]
    strict.dispose()


def test_rows_that_no_trigger_has_seen_are_taken_in_by_installing_again(feed, engine, monkeypatch):
    """Rows written while the trigger was away get positions behind those that are given."""
    monkeypatch.setattr("zeroeventhub.publisher.ordering.postgresql.sequenced.ROUND", 1)
    with engine.begin() as connection:
        SOURCE.install(connection)
    feed = SOURCE.bind(engine)
    for _ in range(3):  # lets the low mark of PostgreSQL rise
        with engine.begin() as connection:
            place(connection, 1)
        numbers(feed)
    with engine.begin() as connection:
        connection.execute(orders.delete())
        place(connection, 1)
    assert numbers(feed) == [0]
    digest = left_over(engine)[0].rpartition("_")[2]
    on = " ON orders" if engine.dialect.name == "postgresql" else ""
    with engine.begin() as connection:
        connection.execute(text(f"DROP TRIGGER zeroeventhub_note_{digest}{on}"))
        place(connection, 2, first=1)
    with pytest.raises(ConfigurationError, match="trigger"):
        SOURCE.bind(engine).info()
    install(engine)
    with engine.begin() as connection:
        place(connection, 1, first=3)
    assert numbers(feed) == [0, 1, 2, 3]


def test_disabled_trigger_is_refused(postgresql):
    """A trigger that is there and switched off notes nothing."""
    metadata.create_all(postgresql)
    install(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text("ALTER TABLE orders DISABLE TRIGGER USER"))
    with pytest.raises(ConfigurationError, match="trigger"):
        SOURCE.bind(postgresql).info()


def test_replica_role_is_noted(postgresql):
    """Writers that switch off ordinary triggers, as replication does, are noted all the same."""
    metadata.create_all(postgresql)
    feed = install(postgresql)
    with postgresql.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        place(connection, 1)
    assert numbers(feed) == [0]


@pytest.mark.parametrize("name", ["Mixed Case", 'quo"ted', "it's", "per%cent", "co:lon", "x" * 60])
def test_any_name_of_a_table_will_do(engine, name):
    """The statements quote every name, wherever it stands."""
    key = Column("The Id's", String(36), primary_key=True)
    part = Column("per%cent:", Integer, nullable=False)
    log = Table(name, MetaData(), key, part, Column("n", Integer))
    log.metadata.create_all(engine)
    feed = install(
        engine, TableFeed(log, ordering="sequenced", data=["n"], partition=part, partitions=2)
    )
    with engine.begin() as connection:
        connection.execute(insert(log), {"The Id's": str(uuid.uuid4()), "per%cent:": 1, "n": 0})
    assert [event.data["n"] for event in feed.read(1, FIRST, 10).events] == [0]


def test_two_feeds_over_a_table_have_positions_of_their_own(engine):
    """A feed with partitions and one without can be published over the same table."""
    metadata.create_all(engine)
    whole = install(engine)
    split = install(
        engine, TableFeed(orders, data="data", ordering="sequenced", partition="part", partitions=2)
    )
    with engine.begin() as connection:
        place(connection, 4, partitions=2)
    assert numbers(whole) == [0, 1, 2, 3]
    assert [event.data["n"] for event in split.read(1, FIRST, 10).events] == [1, 3]


def test_partition_has_to_be_a_column():
    """A partition that is computed is refused, with what would do."""
    source = TableFeed(
        orders, data="data", ordering="sequenced", partition=orders.c.id % 2, partitions=2
    )
    with pytest.raises(ConfigurationError, match="generated"):
        source.ordering("postgresql")


@pytest.mark.parametrize(
    ("module", "newer"),
    [("postgresql.sequenced", (99,)), ("mysql.sequenced", {True: (99,), False: (99,)})],
)
def test_older_server_is_refused(request, monkeypatch, module, newer):
    """A server that lacks what the ordering is made of is refused when it is installed."""
    monkeypatch.setattr(f"zeroeventhub.publisher.ordering.{module}.OLDEST", newer)
    name = "mariadb" if module.startswith("mysql") else "postgresql"
    engine = request.getfixturevalue(name)
    metadata.create_all(engine)
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="or later"):
        SOURCE.install(connection)


def test_key_that_may_stand_twice_is_refused(engine):
    """A column that does not identify an event is refused when the ordering is installed."""
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering="sequenced", position="customer")
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="primary key"):
        source.install(connection)


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_key_that_is_unique_in_part_is_refused(request, database):
    """An index over some of the rows does not tell events apart; one over all of them does."""
    engine = request.getfixturevalue(database)
    log = Table("log", MetaData(), Column("name", String(9), nullable=False))
    log.metadata.create_all(engine)
    source = TableFeed(log, ordering="sequenced", position="name")
    with engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX part ON log (name) WHERE name > 'm'"))
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="UNIQUE"):
        source.install(connection)
    with engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX whole ON log (name)"))
        source.install(connection)


def test_key_that_comes_back_is_a_new_event(feed, engine):
    """A row that is deleted and written again under its key is one event, in its new place."""
    with engine.begin() as connection:
        place(connection, 3)
    assert numbers(feed) == [0, 1, 2]
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id == 1))
        connection.execute(insert(orders), {"id": 1, "data": {"n": 0}})
    assert numbers(feed) == [1, 2, 0]
    with engine.begin() as connection:
        for _ in range(3):
            connection.execute(orders.delete().where(orders.c.id == 2))
            connection.execute(insert(orders), {"id": 2, "data": {"n": 1}})
    assert numbers(feed) == [2, 0, 1]


def test_page_moves_on_over_events_that_are_gone(feed, engine):
    """Where all events of a page have been deleted, its cursor stands behind them."""
    with engine.begin() as connection:
        place(connection, 5)
    numbers(feed)
    with engine.begin() as connection:
        connection.execute(orders.delete().where(orders.c.id < 4))
    page = feed.read(0, FIRST, 2)
    assert (page.events, page.cursor) == ([], "1-2")
    assert numbers(feed, page.cursor, limit=2) == [3]


def test_backlog_is_worked_off_in_parts(server, monkeypatch):
    """More events than get a position at once come with the next readings, all of them."""
    for module in ("postgresql", "mysql"):
        monkeypatch.setattr(f"zeroeventhub.publisher.ordering.{module}.sequenced.BACKLOG", 10)
    metadata.create_all(server)
    feed = install(server)
    with server.begin() as connection:
        place(connection, 25)
    places = [Place.of(feed.read(0, LAST, 1).cursor) for _ in range(4)]
    assert [place.position for place in places] == [10, 20, 25, 25]
    assert numbers(feed) == list(range(25))


def test_outbox_is_empty_when_all_have_positions(server):
    """What has a position is no longer in the outbox."""
    metadata.create_all(server)
    feed = install(server)
    with server.begin() as connection:
        place(connection, 25)
    numbers(feed)
    (outbox,) = [name for name in left_over(server) if "outbox" in name]
    with server.connect() as connection:
        assert connection.scalar(text(f"SELECT count(*) FROM {outbox}")) == 0


def test_low_mark_leaves_no_open_writer_behind(postgresql, monkeypatch):
    """Wherever the mark is on its way, a writer that has come before and commits late is found."""
    monkeypatch.setattr("zeroeventhub.publisher.ordering.postgresql.sequenced.ROUND", 1)
    metadata.create_all(postgresql)
    feed = install(postgresql)
    (state,) = [name for name in left_over(postgresql) if "state" in name]
    expected, numbered = [], itertools.count()

    def write(connection):
        place(connection, 1, first=next(numbered))
        connection.commit()

    for steps in range(4):
        with postgresql.connect() as slow, postgresql.connect() as fast:
            for _ in range(steps):
                write(fast)
                feed.info()
            # Not read yet, so that a batch begins while the slow one has the newest id.
            write(fast)
            late = next(numbered)
            place(slow, 1, first=late)
            for _ in range(5):
                numbers(feed)
                write(fast)
            seen = numbers(feed)
            assert [*expected, *(n for n in range(len(expected), late + 6) if n != late)] == seen
            slow.commit()
        expected = [*seen, late]
        assert numbers(feed) == expected
    with postgresql.connect() as connection:
        assert connection.scalar(text(f"SELECT low FROM {state}")) > 10


def test_reader_waits_for_nobody_who_gives_positions(server):
    """While one gives positions, others read those that are there."""
    metadata.create_all(server)
    feed = install(server)
    with server.begin() as connection:
        place(connection, 1)
    assert numbers(feed) == [0]
    (state,) = [name for name in left_over(server) if "state" in name]
    with server.connect() as other:
        other.execute(text(f"SELECT * FROM {state} FOR UPDATE"))
        with server.begin() as connection:
            place(connection, 1, first=1)
        assert numbers(feed) == [0]
        if server.dialect.name == "postgresql":
            (blocker,) = SOURCE.ordering("postgresql").blockers(connection := server.connect())
            connection.close()
            assert blocker.pid == other.scalar(text("SELECT pg_backend_pid()"))
    assert numbers(feed) == [0, 1]


def test_two_readers_give_positions_side_by_side(server):
    """Two readers at once see the same events at the same positions, each once."""
    metadata.create_all(server)
    feeds = [install(server), SOURCE.bind(server)]
    with server.begin() as connection:
        place(connection, 300)
    seen = {}

    def follow(which):
        cursor, events = FIRST, []
        while len(events) < 300:
            page = feeds[which].read(0, cursor, 7)
            events += [event.data["n"] for event in page.events]
            cursor = page.cursor
        seen[which] = events

    threads = [threading.Thread(target=follow, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1] == list(range(300))


def test_reader_needs_no_right_to_write(postgresql):
    """A role that may read the table and its positions gives positions through the function."""
    metadata.create_all(postgresql)
    install(postgresql)
    positions, state = (
        next(name for name in left_over(postgresql) if part in name)
        for part in ("positions", "state")
    )
    with postgresql.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS zeroeventhub_follower"))
        connection.execute(text("CREATE ROLE zeroeventhub_follower LOGIN PASSWORD 'follower'"))
        connection.execute(text("GRANT SELECT ON orders TO zeroeventhub_follower"))
        place(connection, 1)
    url = postgresql.url.set(username="zeroeventhub_follower", password="follower")
    reader = create_engine(url)
    try:
        feed = SOURCE.bind(reader)
        with pytest.raises(ConfigurationError, match="GRANT SELECT ON"):
            feed.info()
        with postgresql.begin() as connection:
            connection.execute(
                text(f"GRANT SELECT ON {positions}, {state} TO zeroeventhub_follower")
            )
        assert numbers(feed) == [0]
    finally:
        reader.dispose()
        with postgresql.begin() as connection:
            connection.execute(text("DROP OWNED BY zeroeventhub_follower"))
            connection.execute(text("DROP ROLE zeroeventhub_follower"))


def test_name_of_a_writers_own_gives_no_function_another_meaning(postgresql):
    """A writer's operators, functions and tables are not used with the installer's rights."""
    metadata.create_all(postgresql)
    feed = install(postgresql)
    (outbox,) = [name for name in left_over(postgresql) if "outbox" in name]
    with postgresql.connect() as connection:
        for line in (
            "CREATE SCHEMA trap",
            f"CREATE TABLE trap.{outbox} (LIKE public.{outbox})",
            f"CREATE TEMPORARY TABLE {outbox} (LIKE public.{outbox})",
            "SET search_path = pg_temp, trap, public",
        ):
            connection.execute(text(line))
        place(connection, 1)
        connection.commit()
        stolen = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
        for line in (
            f"CREATE FUNCTION trap.current_setting(text) RETURNS text {stolen}",
            "SET search_path = trap, pg_catalog, public",
            f"SELECT public.{outbox.replace('outbox', 'sequence')}(10)",
        ):
            connection.execute(text(line))
        connection.commit()
        connection.invalidate()
    assert numbers(feed) == [0]


def test_positions_are_given_whatever_the_isolation_level(postgresql):
    """A server that makes every transaction SERIALIZABLE is read; positions need READ COMMITTED."""
    metadata.create_all(postgresql)
    install(postgresql)
    strict = create_engine(
        postgresql.url, connect_args={"options": "-c default_transaction_isolation=serializable"}
    )
    with postgresql.begin() as connection:
        place(connection, 1)
    with strict.connect() as connection, pytest.raises(DBAPIError, match="READ COMMITTED"):
        connection.execute(text(SOURCE.ordering("postgresql").step(connection)))
    assert numbers(SOURCE.bind(strict)) == [0]
    strict.dispose()


def test_read_only_sessions_read_what_has_positions(postgresql):
    """A session that may not write gives no positions, and reads those that are there."""
    metadata.create_all(postgresql)
    feed = install(postgresql)
    with postgresql.begin() as connection:
        place(connection, 1)
    numbers(feed)
    with postgresql.begin() as connection:
        place(connection, 1, first=1)
    quiet = create_engine(
        postgresql.url, connect_args={"options": "-c default_transaction_read_only=on"}
    )
    assert numbers(SOURCE.bind(quiet)) == [0]
    quiet.dispose()
    assert numbers(feed) == [0, 1]


def test_position_that_was_read_outlives_a_crash(postgresql):
    """Where commits are not awaited, one that gives positions is: else they might come again."""
    metadata.create_all(postgresql)
    install(postgresql)
    hasty = create_engine(
        postgresql.url, connect_args={"options": "-c synchronous_commit=off"}, pool_size=1
    )
    feed = SOURCE.bind(hasty)
    lag = text("SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()")
    lags = []
    for number in range(3):  # the server writes to its log for reasons of its own, too
        with hasty.begin() as connection:
            place(connection, 1, first=number)
        assert numbers(feed)[-1] == number
        with hasty.connect() as connection:
            lags.append(connection.scalar(lag))
    hasty.dispose()
    assert min(lags) <= 0
