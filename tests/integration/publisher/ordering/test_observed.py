"""Writers who are watched, and who is waited for; sequences, and how their numbers have to rise."""

import re
from contextlib import closing, nullcontext, suppress
from itertools import count

import pytest
from harness.log import LOG, Preparing, append, prepared, stranger
from harness.ordering_table import (
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    SEQUENCED,
    SEQUENCING,
    SINGLE_WRITER,
    WATCHING,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.statements import behind, scalars
from harness.stores import LOCK_WAITS, beside, outcome
from harness.waiting import until
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, LAST
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
    log.feed = log.source().bind(log.engine.execution_options(isolation_level=level))
    assert log.news() == []
    for step in count():
        with log.engine.connect() as slow:

            def come(slow=slow):
                append(slow, 1)
                log.write(2)

            with behind(log.engine, step, come) as done:
                early = log.news()
            slow.commit()
        if not done:
            break
        assert (early, log.news()) == ([], [1, 2])
    assert step >= 3
    for before in range(step):
        with log.engine.connect() as slow:
            append(slow, 1)
            log.write(2)
            with behind(log.engine, before, slow.commit):
                early = log.news()
            slow.commit()
        assert [*early, *log.news()] == [1, 2]


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
    log.assert_news(0)
    with closing(Preparing(log, "INSERT INTO log (n) VALUES (1)")) as writer:
        if watched:
            log.write(2)
            assert log.news() == []
        writer.prepare()
        log.write(3)
        for _ in range(3):
            assert log.news() == []
        writer.commit()
    assert log.news() == ([1, 2, 3] if watched else [1, 3])


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


@for_each(OBSERVED_MARIADB)
def test_numbers_that_a_partitioned_table_takes_back_are_waited_for(bare):
    """Numbers that a statement drew ahead and gave back have not been decided by its end."""
    bare.publish_partitioned()
    with bare.engine.connect() as gate:
        gate.exec_driver_sql("SELECT GET_LOCK(DATABASE(), 0)")
        ahead = beside(
            lambda: bare.run(
                "INSERT INTO log (n) SELECT IF(n < 5, n, 4 + GET_LOCK(DATABASE(), 60)) FROM "
                "JSON_TABLE('[1, 2, 3, 4, 5]', '$[*]' COLUMNS (n integer PATH '$')) AS five"
            )
        )
        until(lambda: any(scalars(bare.engine, NAMED_LOCK_WAITS)), "four rows are written")
        assert bare.news() == []
        gate.exec_driver_sql("SELECT RELEASE_ALL_LOCKS()")
        outcome(ahead)
    with bare.engine.connect() as slow:
        append(slow, 6)
        bare.write(*range(7, 16))
        early = bare.news()
        slow.commit()
    assert [*early, *bare.news()] == [*range(1, 16)]


NAMED_LOCK_WAITS = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"


@pytest.mark.parametrize("more", [[4], [4, 5, 6]], ids=["below", "above"])
@for_each(OBSERVED)
def test_horizon_of_numbers_that_start_again_is_not_believed(log, more):
    """After TRUNCATE … RESTART IDENTITY the old horizon does not vouch for new writers."""
    log.assert_news(0, 1, 2)
    log.run("TRUNCATE log RESTART IDENTITY")
    with log.engine.connect() as slow:
        append(slow, 3)
        log.write(*more)
        with pytest.raises(Unavailable):
            log.everything()
        slow.commit()
    assert log.everything() == [3, *more]


@for_each(OBSERVED, GATED)
def test_sequence_of_a_table_that_takes_the_place_of_another_is_read(log):
    """Writers of a table that was put in the place of another are waited for from then on."""
    log.assert_news(0)
    with log.engine.connect() as given_up:
        append(given_up, *range(9))
    assert log.news() == []
    log.run(
        "CREATE TABLE anew (LIKE log INCLUDING ALL)",
        "CREATE SEQUENCE anew_id OWNED BY anew.id",
        "ALTER TABLE anew ALTER id SET DEFAULT nextval('anew_id')",
        "INSERT INTO anew (n) SELECT n FROM log",
        "ALTER TABLE log RENAME TO old",
        "ALTER TABLE anew RENAME TO log",
    )
    with log.engine.begin() as connection:
        log.source().install(connection)
    with log.engine.connect() as slow:
        append(slow, 1)
        log.write(2)
        with suppress(Unavailable):
            assert log.news() == []
        slow.commit()
    assert log.news() == [1, 2]


@for_each(OBSERVED, GATED)
def test_table_can_be_emptied_beside_a_reader(log):
    """A reader that waits for a table holds nothing that its TRUNCATE needs."""
    log.assert_news(0)
    with log.engine.connect() as host:
        host.exec_driver_sql("SET deadlock_timeout = '1ms'; LOCK TABLE log")
        reading = beside(log.everything)
        until(lambda: any(scalars(log.engine, LOCK_WAITS["postgresql"])), "the reader waits")
        host.exec_driver_sql("TRUNCATE log RESTART IDENTITY")
        host.commit()
    outcome(reading)


@pytest.mark.parametrize("lock", ["LOCK TABLES log READ", "FLUSH TABLES log FOR EXPORT"])
@for_each(OBSERVED_MARIADB)
def test_lock_that_only_keeps_writers_out_holds_nothing_back(log, lock):
    """A dump that locks the table is no writer, also to a feed that starts meanwhile."""
    log.assert_news(0)
    with log.engine.connect() as dump:
        dump.exec_driver_sql(lock)
        log.feed = log.restarted()
        assert log.everything() == [0]
        dump.exec_driver_sql("UNLOCK TABLES")


@for_each(OBSERVED_MARIADB)
def test_table_can_be_altered_beside_a_reader(log):
    """While a table is altered online, its events are seen as ever."""
    log.assert_news(0)
    log.run(
        "CREATE TEMPORARY TABLE digits SELECT * FROM "
        "JSON_TABLE('[0,1,2,3,4,5,6,7,8,9]', '$[*]' COLUMNS (d integer PATH '$')) AS ten",
        "INSERT INTO log (n) SELECT 1 FROM log, " + ", ".join(f"digits AS d{n}" for n in range(5)),
    )
    log.cursor = log.feed.read(0, LAST, 1).cursor
    altering = beside(lambda: log.run("ALTER TABLE log FORCE, ALGORITHM = INPLACE, LOCK = NONE"))
    is_altering = "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER TABLE log%%'"
    until(lambda: any(scalars(log.engine, is_altering)), "the table is altered")
    log.write(2)
    until(lambda: log.news() == [2], "the event is seen")
    assert any(scalars(log.engine, is_altering))
    outcome(altering)


@shows("inherited tables", OBSERVED)
def test_inherited_tables_are_watched(log):
    """Events of a table that inherits are seen, and its open writers hold back."""
    log.run("CREATE TABLE more () INHERITS (log)")
    log.assert_news(0)
    log.assert_order_of(lambda slow: slow.exec_driver_sql("INSERT INTO more (n) VALUES (1)"))


@for_each(OBSERVED_MARIADB)
def test_comment_is_not_read_as_the_last_number(log):
    """A comment that looks like the end of a table's declaration passes no open writer over."""
    log.run("ALTER TABLE log MODIFY n integer COMMENT ') ENGINE=InnoDB AUTO_INCREMENT=900 '")
    log.assert_news(0)
    log.assert_order_of(lambda slow: append(slow, 1))


@for_each(OBSERVED)
def test_inherited_table_that_draws_its_own_numbers_is_refused(log):
    """A table that inherits and has a sequence of its own is refused, with what mends it."""
    log.assert_news(0, 1)
    log.run("CREATE TABLE more (id bigserial PRIMARY KEY) INHERITS (log)")
    with refusal("sequence of its own") as refused:
        log.restarted().info()
    log.run(re.search(r"ALTER TABLE .*\)", str(refused.value))[0])
    log.feed = log.restarted()
    log.run("INSERT INTO more (n) VALUES (2)")
    assert log.news() == [2]


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


@for_each(OBSERVED, GATED)
def test_sequence_that_starts_below_the_first_position_is_refused(bare):
    """A sequence that would give events numbers below 1 is refused before it gives any."""
    LOG.create(bare.engine)
    bare.run("ALTER SEQUENCE log_id_seq MINVALUE -5 START -5 RESTART -5")
    with refusal("start at 1") as refused:
        bare.publish()
    bare.run(re.search(r"ALTER SEQUENCE .* RESTART 1", str(refused.value))[0])
    bare.publish()
    bare.assert_news(0, 1)


@for_each(OBSERVED_MARIADB)
def test_number_above_the_last_position_is_refused(bare):
    """Numbers that fit into no cursor are refused, of which an unsigned column has many."""
    bare.run(
        "CREATE TABLE log (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, n integer) "
        f"AUTO_INCREMENT = {2**63 - 1}"
    )
    bare.publish()
    bare.assert_news(0)
    bare.write(1)
    with refusal("end at 9223372036854775807"):
        bare.restarted().info()


@shows("numbers above the sequence", *SEQUENCING, SINGLE_WRITER)
def test_numbers_above_the_sequence_are_seen(log):
    """Rows with numbers far above the last are events, and so are those that come after them."""
    log.write(0)
    log.run("INSERT INTO log (id, n) VALUES (70, 1)")
    assert log.news() == [0, 1]
    log.assert_news(2)
