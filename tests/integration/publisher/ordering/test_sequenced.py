"""Positions given after the commit: what is installed, who may read, and who gives them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from harness.log import LOG, Preparing, append, connected, prepared, stranger
from harness.ordering_table import (
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCED_SQLITE,
    SEQUENCING,
    for_each,
    refusal,
    shows,
)
from harness.published import install
from harness.waiting import DEADLINE
from sqlalchemy import Column, Integer, MetaData, inspect, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST
from zeroeventhub.errors import Diverged, Unavailable

ON_SERVERS = (SEQUENCED, SEQUENCED_MARIADB)


@pytest.fixture
def small_backlog(monkeypatch):
    """Positions are given to two events at once, at most."""
    monkeypatch.setattr("zeroeventhub.publisher.ordering.side_tables.BACKLOG", 2)


def beside(log, part=""):
    """List the tables that the ordering has added to a database."""
    tables = inspect(log.engine).get_table_names()
    return sorted(name for name in tables if name.startswith(f"zeroeventhub_{part}"))


@for_each(*ON_SERVERS)
def test_events_from_before_are_taken_in_after_newer_ones(bare):
    """Between the two parts of the installation nothing is shown, and order is not lost."""
    LOG.create(bare.engine)
    bare.write(0, 1, 2)
    with bare.engine.connect() as connection:
        ddl = bare.source().ordering(bare.engine.dialect.name).ddl(connection)
    bare.run(*(line.replace("%", "%%") for line in ddl.install))
    bare.write(3, 4)
    bare.feed = bare.restarted()
    with pytest.raises(Unavailable, match="second part"):
        bare.news()
    bare.run(*ddl.backfill)
    assert bare.news() == list(range(5))


@for_each(*ON_SERVERS)
def test_backlog_is_worked_off_in_parts(small_backlog, log):
    """Events beyond one round get positions in the next ones, once, also if installed anew."""
    log.write(*range(5))
    install(log.source(), log.engine)
    assert [log.news() for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    assert log.count(f"SELECT count(*) FROM {beside(log, 'outbox')[0]}") == 0


@for_each(*SEQUENCING)
def test_trigger_that_is_gone_is_refused_until_it_is_installed_again(bare, short_rounds):
    """A table without its trigger is refused, and what it missed is taken in by installing."""
    bare.publish()
    for number in range(4):
        bare.assert_news(number)
    trigger = beside(bare)[0].replace("outbox", "note").replace("positions", "note")
    on = " ON log" if bare.database == "postgresql" else ""
    bare.run(f"DROP TRIGGER {trigger}{on}")
    bare.write(4, 5)
    with refusal("no trigger of this version"):
        bare.restarted().info()
    install(bare.source(), bare.engine)
    bare.write(6)
    assert bare.news() == [4, 5, 6]


@for_each(*SEQUENCING)
def test_table_that_takes_the_place_of_another_is_refused_until_it_is_installed(bare):
    """A copy of the table under its name, which has no trigger, is refused until it gets one."""
    bare.publish()
    bare.assert_news(0, 1)
    bare.run("ALTER TABLE log RENAME TO log_before")
    LOG.create(bare.engine)
    bare.run("INSERT INTO log SELECT * FROM log_before")
    if bare.database == "postgresql":
        bare.run("SELECT setval(pg_get_serial_sequence('log', 'id'), max(id)) FROM log")
    bare.write(2)
    with refusal("no trigger of this version"):
        bare.restarted().info()
    install(bare.source(), bare.engine)
    bare.write(3)
    assert bare.news() == [2, 3]


@for_each(SEQUENCED_MARIADB, SEQUENCED_SQLITE)
def test_trigger_of_another_version_is_refused(log):
    """A trigger of the right name that does something else is not taken for ours."""
    digest = beside(log)[0].rpartition("_")[2]
    if log.database == "mariadb":
        own = f"FUNCTION zeroeventhub_installed_{digest}"
        does = "() RETURNS VARCHAR(64) READS SQL DATA RETURN 'another'"
    else:
        own = f"TRIGGER zeroeventhub_note_{digest}"
        does = " AFTER INSERT ON log BEGIN SELECT 1; END"
    log.run(f"DROP {own}", f"CREATE {own}{does}")
    with refusal("no trigger of this version"):
        log.restarted().info()


@for_each(*SEQUENCING)
def test_two_feeds_over_a_table_have_positions_of_their_own(log):
    """A feed with partitions and one without can be published over the same table."""
    whole, table = log.feed, LOG.to_metadata(MetaData())
    table.append_column(Column("part", Integer, nullable=False))
    log.run("ALTER TABLE log ADD part integer NOT NULL DEFAULT 0")
    log.publish(table, partition="part", partitions=2)
    log.run("INSERT INTO log (n, part) VALUES (0, 0), (1, 1), (2, 0), (3, 1)")
    found = [feed.read(at, FIRST, 9).events for feed, at in ((log.feed, 1), (whole, 0))]
    assert [[event.data["n"] for event in events] for events in found] == [[1, 3], [0, 1, 2, 3]]


@shows("a number handed in by a client", *SEQUENCING)
def test_key_that_comes_back_is_a_new_event(log):
    """A row written again under its key is an event in its new place; all cursors stay good."""
    log.assert_news(0, 1, 2)
    log.run("DELETE FROM log WHERE id = 3", "INSERT INTO log (id, n) VALUES (3, 2)")
    assert log.news() == [2]
    log.run("DELETE FROM log WHERE id = 1", "INSERT INTO log (id, n) VALUES (1, 0)")
    assert log.everything() == [1, 2, 0]
    again = ("DELETE FROM log WHERE id = 2", "INSERT INTO log (id, n) VALUES (2, 1)")
    log.run(*again, *again, *again)
    assert log.everything() == [2, 0, 1]
    assert log.news() == [0, 1]
    if log.database != "postgresql":
        log.run("REPLACE INTO log (id, n) VALUES (1, 9)")
        assert log.news() == [9]
        assert log.everything() == [2, 1, 9]


@pytest.mark.parametrize("steps", range(4))
@for_each(SEQUENCED)
def test_low_mark_leaves_no_open_writer_behind(bare, short_rounds, steps):
    """Wherever the mark is on its way, a writer that has come before and commits late is found."""
    bare.publish()
    for number in range(steps):
        bare.write(number)
        bare.everything()
    with bare.engine.connect() as slow:
        # Not read yet, so that a batch begins while the slow one has the newest id.
        bare.write(steps)
        append(slow, 99)
        for number in range(steps + 1, steps + 6):
            bare.everything()
            bare.write(number)
        assert bare.news() == list(range(steps + 6))
        slow.commit()
    assert bare.news() == [99]
    for number in range(6):
        bare.assert_news(number)
    assert bare.count(f"SELECT low FROM {beside(bare, 'state')[0]}") > 6


@for_each(SEQUENCED)
def test_low_mark_leaves_behind_nothing_that_did_not_fit(small_backlog, log, short_rounds):
    """The mark passes no event that more than fitted into a batch has left in the outbox."""
    log.write(*range(9))
    seen = []
    for number in range(9, 14):
        seen += log.news()
        log.write(number)
    assert [*seen, *log.news(), *log.news()] == list(range(14))


@for_each(SEQUENCED)
def test_low_mark_leaves_no_prepared_transaction_behind(bare, short_rounds):
    """A writer that is prepared while the mark is on its way is found when it is committed."""
    bare.publish()
    with closing(Preparing(bare, "INSERT INTO log (n) VALUES (99)")) as slow:
        for number in range(3):
            bare.assert_news(number)
        slow.prepare()
        for number in range(3, 6):
            bare.assert_news(number)
        slow.commit()
    assert bare.news() == [99]


@for_each(*ON_SERVERS)
def test_reader_waits_for_no_other_that_gives_positions(log):
    """While one reader gives positions, others read those that are there."""
    log.assert_news(0)
    with log.engine.connect() as other, log.engine.connect() as operator:
        other.execute(text(f"SELECT * FROM {beside(log, 'state')[0]} FOR UPDATE"))
        log.write(1)
        assert log.news() == []
        ordering = log.source().ordering(log.engine.dialect.name)
        pids = [blocker.pid for blocker in ordering.blockers(operator)]
        if log.database == "postgresql":
            assert pids == [other.scalar(text("SELECT pg_backend_pid()"))]
        else:
            assert pids == []
    assert log.news() == [1]


@for_each(*ON_SERVERS)
def test_two_readers_give_positions_side_by_side(small_backlog, log):
    """Two readers at once see the same events at the same positions, each once."""
    log.write(*range(100))

    def follow(feed):
        cursor, seen = FIRST, []
        while len(seen) < 100:
            page = feed.read(0, cursor, 7)
            seen += [event.data["n"] for event in page.events]
            cursor = page.cursor
        return seen

    with ThreadPoolExecutor(2) as pool:
        readings = [pool.submit(follow, feed) for feed in (log.feed, log.restarted())]
        for reading in readings:
            assert reading.result(DEADLINE) == list(range(100))


@for_each(SEQUENCED)
def test_reader_needs_no_right_to_write(log):
    """A role that may read the table and its positions gives positions and checks cursors."""
    log.write(0)
    positions, state = beside(log, "positions")[0], beside(log, "state")[0]
    with stranger(log) as (name, engine):
        log.run(f"GRANT SELECT ON log TO {name}")
        log.feed = log.restarted(engine)
        with refusal("GRANT SELECT ON"):
            log.news()
        log.run(f"GRANT SELECT ON {positions}, {state} TO {name}")
        assert log.news() == [0]
        log.run("UPDATE log SET n = 1")
        with pytest.raises(Diverged):
            log.news()


@for_each(SEQUENCED)
def test_stranger_gives_no_event_another_position(log):
    """A role without rights cannot have its own table fire the trigger's function."""
    log.write(0)
    assert log.news() == [0]
    note = beside(log, "outbox")[0].replace("outbox", "note")
    with stranger(log) as (_, engine), engine.connect() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE own (id bigint)")
        fire = "CREATE TRIGGER forge AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION"
        with pytest.raises(DBAPIError, match="permission denied"):
            for statement in (f"{fire} public.{note}()", "INSERT INTO own VALUES (1)"):
                connection.exec_driver_sql(statement)
                connection.commit()
    assert log.news() == []


@for_each(SEQUENCED)
def test_installation_from_before_is_a_warning(log):
    """A check finds a trigger's function that anyone may run, and has the statement against it."""
    note = beside(log, "outbox")[0].replace("outbox", "note")
    log.run(f"GRANT EXECUTE ON FUNCTION {note}() TO PUBLIC")
    assert log.news() == []
    (found,) = [one for one in log.restarted().check() if one.subject == "rights"]
    assert found.level == "warning"
    log.run(found.statement)
    assert {one.level for one in log.restarted().check()} == {"ok"}


@for_each(SEQUENCED)
def test_name_of_a_writers_own_gives_no_function_another_meaning(log):
    """A writer's operators, functions and tables are not used with the installer's rights."""
    outbox = beside(log, "outbox")[0]
    stolen = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
    with log.engine.connect() as connection:
        for line in (
            "CREATE SCHEMA trap",
            f"CREATE TABLE trap.{outbox} (LIKE public.{outbox})",
            f"CREATE TEMPORARY TABLE {outbox} (LIKE public.{outbox})",
            "SET search_path = pg_temp, trap, public",
            "INSERT INTO log (n) VALUES (0)",
            f"CREATE FUNCTION trap.current_setting(text) RETURNS text {stolen}",
            "SET search_path = trap, pg_catalog, public",
            f"SELECT public.{outbox.replace('outbox', 'sequence')}(10)",
        ):
            connection.exec_driver_sql(line)
            connection.commit()
        connection.invalidate()
    assert log.news() == [0]


@for_each(SEQUENCED)
def test_sessions_of_any_kind_read_what_has_positions(log):
    """Among SERIALIZABLE transactions others give positions; one that may not write gives none."""
    log.write(0)
    with connected(log.engine.url, options="-c default_transaction_isolation=serializable") as own:
        with own.connect() as connection, pytest.raises(DBAPIError, match="READ COMMITTED"):
            connection.exec_driver_sql(log.source().ordering("postgresql").step(connection))
        assert [event.data["n"] for event in log.restarted(own).read(0, FIRST, 9).events] == [0]
    log.write(1)
    with connected(log.engine.url, options="-c default_transaction_read_only=on") as own:
        feed = log.restarted(own)
        assert [event.data["n"] for event in feed.read(0, FIRST, 9).events] == [0]
        assert "read-only" in {one.subject for one in feed.check()}
    assert "read-only" not in {one.subject for one in log.restarted().check()}
    assert log.news() == [0, 1]


@for_each(SEQUENCED_MARIADB)
def test_sessions_with_short_texts_give_positions(log):
    """A host's limit of joined texts is no limit of the events that get positions at once."""
    log.write(*range(99))
    with connected(log.engine.url, init_command="SET group_concat_max_len = 64") as own:
        log.feed = log.restarted(own)
        assert log.news() == [*range(99)]
        with own.connect() as connection:
            assert connection.exec_driver_sql("SELECT @@group_concat_max_len").scalar() == 64


@for_each(SEQUENCED)
def test_position_that_was_read_outlives_a_crash(log):
    """Where commits are not awaited, one that gives positions is: else they might come again."""
    lags = []
    with connected(log.engine.url, options="-c synchronous_commit=off") as hasty:
        log.feed = log.restarted(hasty)
        for number in range(3):  # the server writes to its log for reasons of its own, too
            with hasty.begin() as connection:
                append(connection, number)
            assert log.news() == [number]
            lags.append(
                log.count("SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()")
            )
    assert min(lags) <= 0


@shows("two-phase commit", *ON_SERVERS)
def test_prepared_transaction_is_not_seen_before_it_is_committed(log):
    """Events of a prepared transaction are new when it is committed, and hold nothing back."""
    with prepared(log, "INSERT INTO log (n) VALUES (1)") as commit:
        log.assert_news(2)
        commit()
    assert log.news() == [1]


@shows("a table without a log or without transactions", SEQUENCED)
def test_table_without_a_log_has_no_effect_on_positions(primary, primary_log):
    """An unlogged table is empty after a crash, and what is written then is seen as new."""
    log = primary_log
    log.run("CREATE UNLOGGED TABLE log (id bigserial PRIMARY KEY, n integer)")
    log.publish()
    log.assert_news(0, 1)
    log.engine.dispose()
    primary.crash()
    assert log.everything() == []
    log.write(2)
    assert log.count("SELECT min(id) FROM log") == 1
    assert log.news() == [2]
