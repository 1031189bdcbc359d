"""What every ordering promises: what open writers hold back, and every kind of statement."""

import pytest
from harness.log import LOG, PARTITIONED, append, connected, polling, prepared
from harness.ordering_table import (
    ALL,
    ATTACHED,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SERVERS,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCED_SQLITE,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.published import install
from harness.statements import execute
from sqlalchemy import MetaData, inspect
from sqlalchemy.exc import IntegrityError

from zeroeventhub import FIRST, LAST
from zeroeventhub.errors import Diverged, Trimmed, Unavailable

ROUTINES = {
    "postgresql": "SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal) "
    "+ (SELECT count(*) FROM pg_proc WHERE proname LIKE 'zeroeventhub%%')",
    "mariadb": "SELECT (SELECT count(*) FROM information_schema.triggers "
    "WHERE trigger_schema = database()) + (SELECT count(*) FROM information_schema.routines "
    "WHERE routine_schema = database())",
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'",
}
# How many triggers and functions an ordering installs, and how many tables.
ADDED = {GATED: (4, 0), SEQUENCED: (3, 3), SEQUENCED_MARIADB: (3, 3), SEQUENCED_SQLITE: (1, 1)}


@shows("it needs", *ADDED)
def test_what_is_installed_can_be_taken_back(bare, case):
    """A table without what its ordering needs is refused; what is installed can be taken back."""

    def added():
        return bare.count(ROUTINES[bare.database]), len(inspect(bare.engine).get_table_names()) - 1

    LOG.create(bare.engine)
    with refusal(f"zeroeventhub ddl --ordering {bare.ordering}"):
        bare.restarted().info()
    bare.publish()
    assert added() == ADDED[case]
    bare.assert_news(0, 1, 2)
    install(bare.source(), bare.engine)
    assert added() == ADDED[case]
    bare.assert_news(3)
    assert bare.everything() == [0, 1, 2, 3]
    for _ in range(2):
        with bare.engine.begin() as connection:
            bare.source().uninstall(connection)
    assert added() == (0, 0)
    bare.write(4)
    assert bare.count("SELECT count(*) FROM log") == 5
    with refusal(f"zeroeventhub ddl --ordering {bare.ordering}"):
        bare.restarted().info()


@shows("an open writer of the table", *ON_SERVERS)
def test_open_writer_holds_back_what_was_drawn_behind_it(log):
    """What was drawn behind an open writer is seen once that has ended, in the order of numbers.

    Where positions are given after the commit, it holds back its own events alone.
    """
    log.assert_news(0)
    log.assert_order_of(lambda slow: append(slow, 1))
    with log.engine.connect() as slow:
        append(slow, 3)
        log.write(4)
        early = log.news()
        slow.rollback()
    assert (early, log.news()) == (([4], []) if log.ordering == "sequenced" else ([], [4]))
    assert log.everything() == ([0, 2, 1, 4] if log.ordering == "sequenced" else [0, 1, 2, 4])


# Who waits for a transaction that stays open waits for good: any limit shows it.
LIMITS = {
    "postgresql": {"options": "-c lock_timeout=5s"},
    "mariadb": {"init_command": "SET innodb_lock_wait_timeout = 5, lock_wait_timeout = 5"},
}


@shows("writers wait for each other", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_writers_do_not_wait_for_each_other(log):
    """A writer beside an open one draws, writes and commits at once, while others read."""
    with connected(log.engine.url, **LIMITS[log.database]) as engine, polling(log.feed):
        # At MySQL's default everybody waits for a writer who has taken back a part of his work.
        impatient = engine.execution_options(isolation_level="READ COMMITTED")
        for number in range(0, 15, 3):
            with impatient.connect() as slow:
                # It is a writer, although it has drawn nothing as yet.
                slow.exec_driver_sql("INSERT INTO log (n) SELECT n FROM log WHERE n < 0")
                with impatient.begin() as quick:
                    append(quick, number)
                append(slow, number + 1)
                savepoint = slow.begin_nested()
                append(slow, 99)
                savepoint.rollback()
                with impatient.begin() as quick:
                    append(quick, number + 2)
                slow.commit()
    assert sorted(log.everything()) == list(range(15))


@shows("a long transaction elsewhere", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_transaction_elsewhere_has_no_effect(log, case):
    """A writer to other tables, prepared or not, or a reader of this one holds nothing back."""
    log.run("CREATE TABLE other (n integer)")
    lasting = log.engine.execution_options(isolation_level="REPEATABLE READ")
    with log.engine.connect() as elsewhere, lasting.connect() as export:
        export.exec_driver_sql("SELECT * FROM log")
        elsewhere.exec_driver_sql("INSERT INTO other VALUES (1)")
        log.assert_news(0)
        log.assert_news(1)
    if case != OBSERVED_MARIADB:
        with prepared(log, "INSERT INTO other VALUES (1)"):
            log.assert_news(2)


@shows("a new process beside an open writer", OBSERVED, OBSERVED_MARIADB)
def test_new_process_waits_for_open_writers(log):
    """A new process does not know what is decided until the writers of its time have ended."""
    log.write(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        log.write(2)
        log.feed = log.restarted()
        for _ in range(2):
            with pytest.raises(Unavailable):
                log.news()
        slow.commit()
    assert log.news() == [0, 1, 2]


@shows("a new process beside an open writer", GATED, *SEQUENCING, SINGLE_WRITER)
def test_new_process_knows_at_once(log, case):
    """A new process beside an open writer shows what is decided, and no more."""
    log.write(0)
    with log.engine.connect() as slow:
        append(slow, 1)
        if case not in ON_SQLITE:
            log.write(2)
        log.feed = log.restarted()
        assert log.news() == ([0, 2] if case in {SEQUENCED, SEQUENCED_MARIADB} else [0])
        slow.commit()
    assert log.news() == ([1, 2] if case == GATED else [1])


@shows("a savepoint rolled back", *ALL)
def test_events_of_a_savepoint_rolled_back_are_not_seen(log):
    """Rows that a savepoint rolled back are no events; the transaction's other rows are."""
    with log.engine.connect() as connection:
        append(connection, 0)
        savepoint = connection.begin_nested()
        append(connection, 1)
        savepoint.rollback()
        append(connection, 2)
        connection.commit()
    log.write(3)
    assert log.news() == [0, 2, 3]


def copied(connection):
    """Write event 1 by COPY."""
    with connection.connection.cursor().copy("COPY log (n) FROM STDIN") as lines:
        lines.write_row([1])


@pytest.mark.parametrize("way", ["COPY", "INSERT … SELECT", "LOAD DATA"])
@shows("COPY, LOAD DATA, INSERT … SELECT", *ON_SERVERS)
def test_bulk_is_like_any_insert(bare, tmp_path, way):
    """Events that are written in bulk hold back others, and are held back by others."""
    if way == ("COPY" if bare.database == "mariadb" else "LOAD DATA"):
        pytest.skip("the other database has this")
    if way == "LOAD DATA" and bare.count("SELECT @@global.local_infile") == 0:
        pytest.skip("local_infile is off on this server")
    file = tmp_path / "events"
    file.write_text("1\n")
    statement = {
        "INSERT … SELECT": "INSERT INTO log (n) SELECT n FROM originals",
        "LOAD DATA": f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE log (n)",
    }.get(way)
    arguments = {"local_infile": True} if way == "LOAD DATA" else {}

    def write(connection):
        connection.exec_driver_sql(statement) if statement else copied(connection)

    with connected(bare.engine.url, **arguments) as bare.engine:
        bare.publish()
        bare.run("CREATE TABLE originals (n integer)", "INSERT INTO originals VALUES (1)")
        assert bare.news() == []
        bare.assert_order_of(write)
        with bare.engine.connect() as slow:
            append(slow, 4)
            with bare.engine.begin() as connection:
                write(connection)
            early = bare.news()
            slow.commit()
        late = bare.news()
    assert (early, late) == (([1], [4]) if bare.ordering == "sequenced" else ([], [4, 1]))


UPSERTS = {
    "postgresql": {
        "ignored": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT DO NOTHING",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT (n) DO UPDATE SET n = log.n",
    },
    "mariadb": {
        "ignored": "INSERT IGNORE INTO log (n) VALUES (0), (1)",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON DUPLICATE KEY UPDATE n = log.n",
    },
    "sqlite": {
        "ignored": "INSERT OR IGNORE INTO log (n) VALUES (0), (1)",
        "updated": "INSERT INTO log (n) VALUES (0), (1) ON CONFLICT (n) DO UPDATE SET n = log.n",
    },
}


def publish_unique(log):
    """Publish a log in which no number stands twice, with event 0."""
    LOG.create(log.engine)
    log.run("CREATE UNIQUE INDEX log_n ON log (n)")
    log.publish()
    if log.database != "sqlite":
        # At MySQL's default everybody waits for a writer who has met what was there.
        log.engine = log.engine.execution_options(isolation_level="READ COMMITTED")
    log.assert_news(0)


@pytest.mark.parametrize("known", ["ignored", "updated"])
@shows("ON CONFLICT, IGNORE, REPLACE", *ALL)
def test_upsert_is_like_any_insert(bare, known):
    """Of the rows of an upsert those that are new are events, and those that are known are not."""
    publish_unique(bare)
    statement = UPSERTS[bare.database][known]
    if bare.database == "sqlite":
        bare.run(statement)
        bare.write(2)
        assert bare.news() == [1, 2]
    else:
        bare.assert_order_of(lambda slow: slow.exec_driver_sql(statement))


@shows("a table without a log or without transactions", OBSERVED, GATED, later=(GATED,))
def test_table_without_a_log_is_refused(log):
    """An unlogged table is refused with the statement that mends it, at any time."""
    log.run("ALTER TABLE log SET UNLOGGED")
    assert_refused(log, "ALTER TABLE log SET LOGGED")
    with refusal("ALTER TABLE log SET LOGGED"):
        log.restarted().info()
    log.run("ALTER TABLE log SET LOGGED")
    log.assert_news(0)


@shows("a partitioned table", *WATCHING, SEQUENCED, SEQUENCED_MARIADB)
def test_partitioned_table_is_published_whole(bare, case):
    """Events of all partitions are in one order, also if a writer names a partition itself."""
    bare.publish_partitioned()
    bare.assert_order_of(lambda slow: append(slow, 1))
    if case != GATED:
        leaf = "log_low" if bare.database == "postgresql" else "log PARTITION (p_high)"
        insert = f"INSERT INTO {leaf} (n) VALUES (1)"
        bare.assert_order_of(lambda slow: slow.exec_driver_sql(insert))


@shows("a partitioned table", OBSERVED, GATED)
def test_partition_that_is_a_foreign_table_is_refused(bare):
    """Its server shows a feed's transaction only what was committed before that began there."""
    bare.publish_partitioned()
    bare.run(
        "ALTER TABLE log DROP CONSTRAINT log_pkey",  # which no foreign table has
        "CREATE FOREIGN DATA WRAPPER other",
        "CREATE SERVER other FOREIGN DATA WRAPPER other",
        "CREATE FOREIGN TABLE far PARTITION OF log FOR VALUES FROM (1000) TO (2000) SERVER other",
    )
    with refusal("far, a part of 'log', is a foreign table"):
        bare.restarted().info()
    bare.run("DROP FOREIGN TABLE far", "DROP FOREIGN DATA WRAPPER other CASCADE")
    bare.feed = bare.restarted()
    bare.assert_news(1)


@shows(ATTACHED, *WATCHING, SEQUENCED, SEQUENCED_MARIADB, later=(GATED,))
def test_rows_of_a_partition_that_is_attached_are_not_seen(bare):
    """Rows that come with a partition are behind every cursor, or have no position yet."""
    bare.publish_partitioned()
    if bare.database == "postgresql":
        bare.run(
            "CREATE TABLE leaf (id bigint NOT NULL, n integer NOT NULL)",
            "INSERT INTO leaf VALUES (nextval('log_id_seq'), 1000)",
        )
        attach = "ALTER TABLE log ATTACH PARTITION leaf FOR VALUES FROM (1000) TO (2000)"
    else:
        bare.run(
            "CREATE TABLE leaf (id bigint AUTO_INCREMENT PRIMARY KEY, n integer)",
            "INSERT INTO leaf VALUES (2, 1000)",
            "ALTER TABLE log REORGANIZE PARTITION p_low INTO "
            "(PARTITION p_first VALUES LESS THAN (2), PARTITION p_low VALUES LESS THAN (3))",
            "ALTER TABLE log AUTO_INCREMENT = 3",
        )
        attach = "ALTER TABLE log EXCHANGE PARTITION p_low WITH TABLE leaf"
    bare.assert_news(2)
    with bare.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(attach)
    bare.assert_news(3)
    if bare.ordering != "sequenced":
        assert bare.everything() == [0, 1000, 2, 3]
        return
    assert bare.everything() == [0, 2, 3]
    is_pair = bare.database == "postgresql"
    source = bare.source(PARTITIONED, position=None) if is_pair else bare.source()
    install(source, bare.engine)
    assert bare.news() == [1000]


@shows("a partitioned table", OBSERVED, GATED, SEQUENCED)
def test_row_that_moves_to_another_partition(bare):
    """A row that an UPDATE moves is new to its partition: to the guard, and to sequenced."""
    bare.publish_partitioned()
    bare.assert_news(5, 6)
    moved = "UPDATE log SET n = 1 WHERE n = 5"
    if bare.ordering == "gated":
        with pytest.raises(IntegrityError, match="before this INSERT"):
            bare.run(moved)
    else:
        bare.run(moved)
    assert bare.news() == ([1] if bare.ordering == "sequenced" else [])


def as_mutable(log):
    """Let a consumer go on with the feed that only compares numbers."""
    log.feed = log.source(mutable=True).bind(log.engine)


def assert_gone(log, error=Diverged):
    """Show that the consumer's cursor is refused, by the feed and by that of a new process."""
    for feed in (log.feed, log.restarted()):
        log.feed = feed
        with pytest.raises(error) as gone:
            log.news()
        assert gone.value.status == 410
    return gone.value


@shows("UPDATE of events", *ALL, later=ON_SERVERS)
def test_update_is_not_seen_behind_a_cursor(log):
    """A change of an event that was read is not heard of, but the cursor at it is refused."""
    log.assert_news(0, 1, 2)
    log.run("UPDATE log SET n = n + 10 WHERE n < 2")
    assert log.news() == []
    assert log.everything() == [10, 11, 2]
    log.run("UPDATE log SET n = 12 WHERE n = 2")
    assert_gone(log)
    as_mutable(log)
    assert log.news() == []
    log.assert_news(3)
    assert log.everything() == [10, 11, 12, 3]


@shows("DELETE of events", *WATCHING, SINGLE_WRITER, later=(OBSERVED_MARIADB, GATED))
def test_cursor_of_a_deleted_event_is_gone(log):
    """The cursor of a deleted event is refused; the cursors of other events stay valid."""
    log.assert_news(0, 1, 2, 3)
    for deleted, left in (("n = 1", [0, 2, 3]), ("n = 0", [2, 3])):
        log.run(f"DELETE FROM log WHERE {deleted}")
        assert log.news() == []
        # The next process knows as much as the one that has seen them all.
        log.feed = log.restarted()
        assert log.news() == []
        assert log.everything() == left
    log.assert_news(4)
    log.run("DELETE FROM log WHERE n = 4")
    assert_gone(log)
    log.write(5)
    assert_gone(log)
    log.run("DELETE FROM log WHERE n < 4")
    assert assert_gone(log, Trimmed).earliest == "1-0"


@shows("DELETE of events", *ALL, later=WATCHING)
def test_delete_keeps_cursors_good_where_it_is_allowed(log, case):
    """Where events may be deleted, or their positions outlive them, cursors stay good."""
    if case not in SEQUENCING:
        as_mutable(log)
    log.assert_news(0, 1, 2, 3)
    for deleted, left in (("n = 1", [0, 2, 3]), ("n = 3", [0, 2]), ("n < 9", [])):
        log.run(f"DELETE FROM log WHERE {deleted}")
        assert log.news() == []
        assert log.everything() == left
    log.assert_news(4)
    log.run("DELETE FROM log")
    log.cursor = log.feed.read(0, LAST, 1).cursor
    assert log.news() == []
    log.assert_news(5)


TRUNCATE = {
    "postgresql": ["TRUNCATE log RESTART IDENTITY"],
    "mariadb": ["TRUNCATE log"],
    "sqlite": ["DELETE FROM log"],
}


@shows("TRUNCATE, with numbers that start again", *WATCHING)
def test_cursors_from_before_a_truncate_are_gone(log):
    """A cursor is answered with 410, beyond the new end and when the new end is beyond it."""
    log.assert_news(0, 1, 2)
    log.run(*TRUNCATE[log.database])
    log.write(3)
    assert_gone(log)
    assert log.everything() == [3]
    log.write(4, 5)
    assert_gone(log)
    log.write(6)
    assert_gone(log)
    assert log.everything() == [3, 4, 5, 6]


@shows("TRUNCATE, with numbers that start again", *SEQUENCING)
def test_cursors_outlive_a_truncate(log):
    """Events that come with numbers from before a TRUNCATE are new ones behind every cursor."""
    log.assert_news(0, 1, 2)
    again = ["DELETE FROM sqlite_sequence WHERE name = 'log'"] if log.database == "sqlite" else []
    log.run(*TRUNCATE[log.database], *again)
    assert log.news() == []
    log.write(3, 4)
    assert log.count("SELECT min(id) FROM log") == 1
    assert log.news() == [3, 4]
    assert log.everything() == [3, 4]


@shows("TRUNCATE, with numbers that start again", SINGLE_WRITER)
def test_numbers_of_sqlite_do_not_start_again(log):
    """The first event in an emptied table of SQLite has the number behind the last."""
    log.assert_news(0, 1, 2)
    log.run(*TRUNCATE[log.database])
    assert_gone(log, Trimmed)
    log.write(3)
    assert log.count("SELECT min(id) FROM log") == 4
    assert_gone(log, Trimmed)
    as_mutable(log)
    assert log.news() == [3]


@shows("a number handed in by a client", OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER)
def test_number_handed_in_is_not_seen_behind_a_cursor(log):
    """A row that is given a low number by a client is passed over by a consumer beyond it."""
    log.write(0, 1, 2)
    log.run("DELETE FROM log WHERE id = 2")
    assert log.news() == [0, 2]
    log.run("INSERT INTO log (id, n) VALUES (2, 9)")
    assert log.news() == []
    assert log.everything() == [0, 9, 2]
    if log.database == "sqlite":
        log.run("INSERT OR REPLACE INTO log (id, n) VALUES (1, 8)")
        log.assert_news(3)
        assert log.everything() == [8, 9, 2, 3]


@for_each(*ALL, later=(GATED, OBSERVED_MARIADB))
def test_history_is_loaded_under_its_own_numbers_before_the_first_reading(bare):
    """History that is loaded before the feed is there comes first, and new events follow it."""
    LOG.create(bare.engine)
    bare.run("INSERT INTO log (id, n) VALUES (99, 0), (100, 1)")
    if bare.database == "postgresql":
        bare.run("SELECT setval('log_id_seq', 100)")
    bare.publish()
    bare.write(2, 3)
    assert bare.news() == [0, 1, 2, 3]


OTHER = LOG.to_metadata(MetaData(), name="other")


@pytest.mark.parametrize(
    "outcome", ["commit", pytest.param("rollback", marks=pytest.mark.test_all)]
)
@for_each(*ALL, later=(*ON_SQLITE, GATED))
def test_change_is_in_all_of_its_feeds_or_in_none(bare, outcome):
    """A transaction that writes to two feeds is seen in both or in neither, and holds back each."""
    bare.publish(OTHER)
    other = bare.feed
    bare.publish()
    assert (bare.feed.head(), other.head()) == (0, 0)
    with bare.engine.connect() as slow:
        append(slow, 0)
        slow.exec_driver_sql("INSERT INTO other (n) VALUES (0)")
        if bare.database != "sqlite":
            execute(bare.engine, "INSERT INTO other (n) VALUES (1)")
            early = [1] if bare.ordering == "sequenced" else []
            assert [event.data["n"] for event in other.read(0, FIRST, 9).events] == early
        getattr(slow, outcome)()
    expected = [0] if outcome == "commit" else []
    assert bare.news() == expected
    seen = {event.data["n"] for event in other.read(0, FIRST, 9).events}
    assert seen == {*expected, *([] if bare.database == "sqlite" else [1])}
