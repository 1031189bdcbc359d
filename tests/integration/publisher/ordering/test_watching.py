"""Numbers as they are drawn: writers who are watched, the gate, sequences and partitions."""

import re
from contextlib import closing, nullcontext
from uuid import uuid4

import pytest
from harness.log import LOG, Preparing, append, behind, prepared, stranger
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCED_MARIADB,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.published import install
from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable

BOTH = (OBSERVED, OBSERVED_MARIADB)


@pytest.mark.parametrize(
    "level",
    [
        "REPEATABLE READ",
        pytest.param("READ COMMITTED", marks=pytest.mark.test_all),
        pytest.param("SERIALIZABLE", marks=pytest.mark.test_all),
    ],
)
@for_each(*WATCHING)
def test_writer_between_two_steps_of_a_read_is_waited_for(log, level):
    """A writer who comes or ends between statements of a read has no event passed over."""
    log.assert_waits_between_steps(level)


@pytest.mark.anyio
@for_each(OBSERVED)
async def test_async_feed_passes_no_writer_over_whatever_the_isolation(log):
    """A feed over an async engine reads each statement by itself as well."""
    engine = create_async_engine(log.engine.url, isolation_level="REPEATABLE READ")
    feed = log.source().bind(engine)
    cursor = (await feed.read(0, FIRST, 10)).cursor
    with log.engine.connect() as slow:
        append(slow, 0)
        log.write(1)
        with behind(engine.sync_engine, 0, slow.commit):
            page = await feed.read(0, cursor, 10)
    rest = await feed.read(0, page.cursor, 10)
    assert [event.data["n"] for event in (*page.events, *rest.events)] == [0, 1]
    await engine.dispose()


@pytest.mark.parametrize("watched", [False, True])
@shows("two-phase commit", *WATCHING)
def test_prepared_transaction_is_a_writer(log, watched):
    """A prepared transaction holds back what is behind it, whether its writer was seen before."""
    log.assert_waits_for_prepared(watched=watched)


@pytest.mark.parametrize("step", range(5))
@for_each(*BOTH)
def test_transaction_prepared_between_two_steps_of_a_read_is_waited_for(log, step):
    """A transaction that is prepared while a page is read is among the writers or the prepared."""
    log.assert_news(0)
    with closing(Preparing(log, "INSERT INTO log (n) VALUES (1)")) as slow:
        log.write(2)
        with behind(log.engine, step, slow.prepare):
            assert log.news() == []
        slow.prepare()
        assert log.news() == []
        slow.commit()
    assert log.news() == [1, 2]


@shows("a long transaction elsewhere", OBSERVED_MARIADB)
def test_transaction_prepared_elsewhere_is_a_writer_on_mariadb(log):
    """MariaDB and MySQL do not say where a prepared transaction has written: the feed waits."""
    log.run("CREATE TABLE other (n integer)")
    log.assert_news(0)
    with prepared(log, "INSERT INTO other VALUES (1)") as commit:
        log.write(1)
        assert log.news() == []
        commit()
    assert log.news() == [1]


@for_each(OBSERVED)
def test_horizon_of_numbers_that_start_again_is_not_believed(log):
    """After TRUNCATE … RESTART IDENTITY the old horizon does not vouch for new writers."""
    log.assert_news(0, 1, 2)
    log.run("TRUNCATE log RESTART IDENTITY")
    with log.engine.connect() as slow:
        append(slow, 3)
        log.write(4)
        with pytest.raises(Unavailable):
            log.everything()
        slow.commit()
    assert log.everything() == [3, 4]


@shows("inherited tables", OBSERVED)
def test_inherited_tables_are_watched(log):
    """Events of a table that inherits are seen, and its open writers hold back."""
    log.run("CREATE TABLE more () INHERITS (log)")
    log.assert_news(0)
    log.assert_order_of(lambda slow: slow.exec_driver_sql("INSERT INTO more (n) VALUES (1)"))


@shows("it needs", OBSERVED_MARIADB)
def test_mariadb_has_to_show_its_metadata_locks(bare):
    """Without its plugin MariaDB is refused, and with it the feed goes on."""
    if bare.is_mysql:
        pytest.skip("MySQL shows its locks in performance_schema")
    bare.publish()
    bare.run("UNINSTALL SONAME 'metadata_lock_info'")
    try:
        with refusal("INSTALL SONAME 'metadata_lock_info'"):
            bare.restarted().info()
    finally:
        bare.run("INSTALL SONAME 'metadata_lock_info'")
    bare.assert_news(0)


# Three kinds of users and what they lack, of whom MariaDB has only the last.
RIGHTS = {
    "locks": ([], "GRANT SELECT ON performance_schema"),
    "prepared": (["SELECT ON performance_schema.*"], "GRANT XA_RECOVER_ADMIN"),
    "nothing": (["SELECT ON performance_schema.*", "XA_RECOVER_ADMIN ON *.*"], None),
}


@pytest.mark.parametrize("lacking", RIGHTS)
@shows("it needs", OBSERVED_MARIADB)
def test_reader_on_mysql_needs_two_rights(bare, lacking):
    """A user who may not see locks or prepared transactions is refused; others see the writers."""
    if lacking != "nothing" and not bare.is_mysql:
        pytest.skip("MariaDB shows them to everybody")
    bare.publish()
    bare.write(0)
    with stranger(bare) as (name, engine):
        rights, complaint = RIGHTS[lacking]
        granted = [f"SELECT ON {bare.engine.url.database}.log", *(rights if bare.is_mysql else ())]
        bare.run(*(f"GRANT {right} TO {name}" for right in granted))
        bare.feed = bare.restarted(engine)
        with nullcontext() if complaint is None else refusal(complaint):
            assert bare.news() == [0]
            bare.assert_order_of(lambda slow: append(slow, 1))


MARKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"


def marks(connection):
    """Count the marks that are left in the locks of all transactions."""
    return connection.exec_driver_sql(MARKS).scalar()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE log DISABLE TRIGGER {first}",
        "ALTER TABLE log ENABLE TRIGGER {last}",
        "DROP TRIGGER {last} ON log",
        "COMMENT ON FUNCTION {function}() IS 'zeroeventhub, version 1'",
    ],
)
@for_each(GATED, SEQUENCED)
def test_disarmed_trigger_is_refused(log, case, change):
    """A trigger that is gone, not always on, or of another version, is none."""
    kind = "gate" if case == GATED else "note"
    function = log.count(f"SELECT proname FROM pg_proc WHERE proname LIKE 'zeroeventhub_{kind}%%'")
    gate = ("zeroeventhub_gate", "zeroeventhub_guard")
    first, last = gate if case == GATED else (function, function)
    log.run(change.format(first=first, last=last, function=function))
    with refusal("no (gate|trigger) of this version"):
        log.restarted().info()


@for_each(GATED, SEQUENCED)
def test_replica_role_does_not_pass_by_the_trigger(log):
    """Writers that switch off ordinary triggers, as replication does, are noted all the same."""
    with log.engine.connect() as slow:
        slow.exec_driver_sql("SET LOCAL session_replication_role = replica")
        append(slow, 1)
        log.write(2)
        seen = log.news()
        slow.commit()
    assert [*seen, *log.news()] == ([2, 1] if log.ordering == "sequenced" else [1, 2])


@shows("a savepoint rolled back", GATED)
def test_mark_of_a_savepoint_rolled_back_goes(log):
    """A writer who rolled back holds nothing back, and takes one lock however often it writes."""
    with log.engine.connect() as slow:
        savepoint = slow.begin_nested()
        append(slow, 0, 0, 0)
        assert marks(slow) == 1
        log.write(1)
        assert log.news() == []
        savepoint.rollback()
        assert log.news() == [1]
        append(slow, 2)
        log.write(3)
        assert log.news() == []
        slow.commit()
    assert log.news() == [2, 3]


@pytest.mark.parametrize("start", [1, 2**32])
@for_each(GATED)
def test_first_number_of_a_sequence_lies_above_the_mark(log, start):
    """A sequence that has been set but not drawn from yields a mark below its next number."""
    log.run(f"SELECT setval('log_id_seq', {start}, false)")
    with log.engine.connect() as slow:
        append(slow, 0)
        log.write(1)
        assert (log.news(), log.feed.horizon().settled) == ([], start - 1)
        slow.commit()
    assert log.news() == [0, 1]


@pytest.mark.parametrize("step", range(4))
@for_each(GATED)
def test_writer_that_comes_later_does_not_set_the_horizon_back(log, step):
    """A mark that is left while the horizon is read lies above it, and leaves it where it is."""
    log.write(0)
    with log.engine.connect() as slow:

        def come():
            log.write(1)
            append(slow, 2)

        with behind(log.engine, step, come):
            assert log.feed.horizon().settled in {1, 2}


@for_each(GATED)
def test_mark_is_found_when_its_bits_have_come_round(log):
    """A mark below a power of two holds back numbers above it."""
    log.run(f"SELECT setval('log_id_seq', {2**32 - 2})")
    with log.engine.connect() as slow:
        append(slow, 0)
        log.write(1, 2, 3)
        assert log.feed.horizon().settled == 2**32 - 2
        assert log.news() == []
        slow.commit()
    assert log.news() == [0, 1, 2, 3]


@shows("a number handed in by a client", GATED)
def test_number_handed_in_is_refused_by_the_guard(log):
    """A number that was drawn before its INSERT began is refused, with what to do."""
    log.write(0, 1)
    drawn = log.count("SELECT nextval('log_id_seq')")
    for number in (1, drawn):
        with pytest.raises(IntegrityError, match=r"drawn before this INSERT(.|\n)*leave id out"):
            log.run(f"INSERT INTO log (id, n) VALUES ({number}, 9)")
    log.write(2)
    assert log.news() == [0, 1, 2]


@for_each(GATED)
def test_writer_needs_no_right_but_to_insert(log):
    """The gate reads a sequence that writers may but draw from, and obeys none of their names."""
    writer = f"writer_{uuid4().hex}"
    names = (
        "current_setting(text, boolean)",
        "set_config(text, text, boolean)",
        "pg_sequence_last_value(regclass)",
        "pg_advisory_xact_lock_shared(integer, integer)",
    )
    stolen = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$"
    with log.engine.connect() as connection:
        for statement in (
            f"CREATE ROLE {writer}",
            f"CREATE SCHEMA evil AUTHORIZATION {writer}",
            f"GRANT INSERT (n) ON log TO {writer}",
            f"GRANT UPDATE ON SEQUENCE log_id_seq TO {writer}",
            f"SET LOCAL ROLE {writer}",
            "CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false)",
            "CREATE DOMAIN evil.oid AS pg_catalog.oid CHECK (false)",
            "CREATE DOMAIN evil.regclass AS pg_catalog.regclass CHECK (false)",
            *(f"CREATE FUNCTION evil.{name} RETURNS boolean {stolen}" for name in names),
            f"CREATE FUNCTION evil.same(text, text) RETURNS boolean {stolen}",
            f"CREATE FUNCTION evil.same(bigint, bigint) RETURNS bigint {stolen}",
            f"CREATE FUNCTION evil.less(bigint, integer) RETURNS bigint {stolen}",
            "CREATE OPERATOR evil.<> (FUNCTION = evil.same, LEFTARG = text, RIGHTARG = text)",
            "CREATE OPERATOR evil.& (FUNCTION = evil.same, LEFTARG = bigint, RIGHTARG = bigint)",
            "CREATE OPERATOR evil.- (FUNCTION = evil.less, LEFTARG = bigint, RIGHTARG = integer)",
            "SET LOCAL search_path = evil, pg_catalog, public",
        ):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("INSERT INTO public.log (n) VALUES (1)")
        assert marks(connection) == 1


@shows("it needs", GATED)
def test_gate_is_two_triggers_and_two_functions(bare):
    """A table without its gate is refused; a gate is what is documented, and can be taken back."""
    triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"
    functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'zeroeventhub%%'"
    LOG.create(bare.engine)
    with refusal("zeroeventhub ddl --ordering gated"):
        bare.restarted().info()
    bare.publish()
    bare.write(0)
    install(bare.source(), bare.engine)
    assert (bare.count(triggers), bare.count(functions)) == (2, 2)
    assert inspect(bare.engine).get_table_names() == ["log"]
    assert bare.news() == [0]
    with bare.engine.begin() as connection:
        bare.source().uninstall(connection)
        bare.source().uninstall(connection)
    assert (bare.count(triggers), bare.count(functions)) == (0, 0)
    bare.write(1)
    with refusal("zeroeventhub ddl --ordering gated"):
        bare.restarted().info()


@shows("a partitioned table", GATED)
def test_row_written_to_a_partition_directly_is_refused(bare):
    """A row that has not passed the gate of its table is refused by the guard of its partition."""
    bare.publish_partitioned()
    for leaf, number in (("log_low", 1), ("log_high", 2)):
        with pytest.raises(IntegrityError, match="before this INSERT"):
            bare.run(f"INSERT INTO {leaf} (n) VALUES ({number})")
    bare.assert_news(2)


@shows("inherited tables", GATED, SEQUENCED)
def test_inherited_tables_are_refused(bare):
    """A table that others inherit from is refused, whether they came before its trigger or not."""
    heir = "CREATE TABLE more () INHERITS (log)"
    LOG.create(bare.engine)
    bare.run(heir)
    assert_refused(bare, "inherit")
    bare.run("DROP TABLE more")
    bare.publish()
    bare.run(heir)
    with refusal("inherit"):
        bare.restarted().info()


UNRULY = {
    "cached": "CACHE 20",
    "descending": "INCREMENT -1 MINVALUE 1 MAXVALUE 1000 RESTART 1000",
    "cycling": "MAXVALUE 3 CYCLE",
}


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", OBSERVED, GATED, later=(GATED,))
def test_unruly_sequences_are_refused(log, kind):
    """A sequence whose numbers do not rise one by one is refused, before and after the start."""
    log.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    with refusal("INCREMENT 1 CACHE 1 NO CYCLE"):
        log.restarted().info()
    assert_refused(log, "INCREMENT 1 CACHE 1 NO CYCLE")


@pytest.mark.parametrize("kind", UNRULY)
@shows("CACHE above 1, descending or cycling numbers", SEQUENCED)
def test_unruly_sequences_can_be_sequenced(bare, kind):
    """Sessions that draw numbers in any order, even twice, have their events seen in turn."""
    LOG.create(bare.engine)
    bare.run(f"ALTER SEQUENCE log_id_seq {UNRULY[kind]}")
    bare.publish()
    with bare.engine.connect() as one, bare.engine.connect() as two:
        for number in range(6):
            session = (one, two)[number % 2]
            # A number comes again only once its last event is gone.
            bare.run("DELETE FROM log")
            append(session, number)
            session.commit()
            assert bare.news() == [number]


@shows("it needs", OBSERVED, GATED)
def test_reader_needs_the_table_and_its_sequence(log):
    """A role is refused until it may read the table and the sequence, and needs no more."""
    log.write(0)
    with stranger(log) as (name, engine):
        feed = log.restarted(engine)
        with pytest.raises((ConfigurationError, FeedFailure)):
            feed.info()
        log.run(f"GRANT SELECT ON log TO {name}")
        with refusal("GRANT SELECT ON SEQUENCE"):
            feed.info()
        log.run(f"GRANT SELECT ON SEQUENCE log_id_seq TO {name}")
        assert [event.data["n"] for event in feed.read(0, FIRST, 10).events] == [0]


@shows("numbers above the sequence", OBSERVED, GATED, later=(GATED,))
def test_numbers_above_the_sequence_are_refused(log):
    """Rows that the sequence has not reached are refused, with the statement that mends it."""
    log.run("INSERT INTO log (id, n) VALUES (7, 0)")
    feed = log.restarted()
    with refusal("setval") as refused:
        feed.info()
    assert_refused(log, "setval")
    log.run(re.search(r"SELECT setval\(.*\d\)", str(refused.value))[0])
    log.feed = feed
    assert log.news() == [0]
    log.assert_news(1)


@shows("numbers above the sequence", *SEQUENCING, SINGLE_WRITER)
def test_numbers_above_the_sequence_are_seen(log):
    """Rows with numbers far above the last are events, and so are those that come after them."""
    log.write(0)
    log.run("INSERT INTO log (id, n) VALUES (70, 1)")
    assert log.news() == [0, 1]
    log.assert_news(2)


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
def test_partitioned_table_is_published_whole(bare):
    """Events of all partitions are in one order, those that came later among them."""
    bare.publish_partitioned()
    bare.assert_order_of(lambda slow: append(slow, 1))


@shows("a partitioned table", OBSERVED, OBSERVED_MARIADB, SEQUENCED, SEQUENCED_MARIADB)
def test_partition_may_be_written_to_directly(bare):
    """A writer to a partition by its own name writes events of the table."""
    bare.publish_partitioned()
    leaf = "log_low" if bare.database == "postgresql" else "log PARTITION (p_low)"
    bare.assert_order_of(lambda slow: slow.exec_driver_sql(f"INSERT INTO {leaf} (n) VALUES (1)"))


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
