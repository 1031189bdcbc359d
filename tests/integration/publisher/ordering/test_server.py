"""What a server tells of itself: engines, versions, standbys and replicas, promotions, dumps."""

import socket
from contextlib import contextmanager, nullcontext, suppress
from uuid import uuid4

import pytest
from harness.databases import new_database, own_mariadb, restore
from harness.log import LOG, Log, append, connected, prepared
from harness.ordering_table import (
    ALL,
    GATED,
    OBSERVED,
    OBSERVED_MARIADB,
    ON_SERVERS,
    ON_SQLITE,
    SEQUENCED,
    SEQUENCED_MARIADB,
    assert_refused,
    for_each,
    refusal,
    shows,
)
from harness.waiting import until
from sqlalchemy import event, make_url
from sqlalchemy.exc import DBAPIError

from zeroeventhub.errors import Diverged, Unavailable


@shows("a table without a log or without transactions", OBSERVED_MARIADB, SEQUENCED_MARIADB)
def test_table_without_transactions_is_refused(bare):
    """A table of an engine without transactions is refused with the statement that mends it."""
    bare.run("CREATE TABLE log (id bigint AUTO_INCREMENT PRIMARY KEY, n integer) ENGINE = MyISAM")
    assert_refused(bare, "ALTER TABLE log ENGINE = InnoDB")
    with refusal("MyISAM"):
        bare.restarted().info()
    bare.run("ALTER TABLE log ENGINE = InnoDB")
    bare.publish()


@for_each(OBSERVED_MARIADB)
def test_connection_that_loses_characters_is_refused(bare):
    """Where a column may hold characters that the connection lacks, they came as question marks."""
    bare.run("CREATE TABLE log (id bigint AUTO_INCREMENT PRIMARY KEY, n integer, note text)")
    for charset, loses in TEXTS.items():
        bare.run(f"ALTER TABLE log MODIFY note text CHARACTER SET {charset}")
        for connection in ("utf8mb4", "utf8", "latin1"):
            refused = refusal("charset=utf8mb4") if connection in loses else nullcontext()
            with connected(bare.engine.url, charset=connection) as engine, refused:
                bare.restarted(engine).info()


TEXTS = {"utf8mb4": ["utf8", "latin1"], "utf8": ["latin1"], "latin1": [], "ascii": []}
"""By the character set of a column, those of connections that may lose its characters."""


@for_each(SEQUENCED, SEQUENCED_MARIADB)
def test_older_server_is_refused(bare, monkeypatch):
    """A server that lacks what the ordering is made of is refused with what it is."""
    LOG.create(bare.engine)
    with bare.engine.connect() as connection:
        monkeypatch.setattr(connection.dialect, "server_version_info", (10, 5))
        with refusal("or later"):
            bare.source().ordering(bare.engine.dialect.name).ddl(connection)


@for_each(*ON_SERVERS)
def test_table_may_lie_where_the_engine_translates_its_schema(bare):
    """A feed of a tenant's engine reads, and checks, the table in the schema of the tenant."""
    schema = f"tenant_{uuid4().hex}"
    bare.run(f"CREATE SCHEMA {schema}")
    try:
        bare.engine = bare.engine.execution_options(schema_translate_map={None: schema})
        bare.publish(partition="n", partitions=1)
        with bare.engine.begin() as connection:
            connection.execute(LOG.insert(), [{"n": 0}, {"n": 0}])
        assert bare.news() == [0, 0]
        assert {one.level for one in bare.feed.check()} <= {"ok", "warning"}
    finally:
        if bare.database == "mariadb":
            bare.run(f"DROP SCHEMA {schema}")


@contextmanager
def on_standby(log, primary):
    """Yield a standby of a log's server, and an engine of the log's copy there."""
    with primary.standby() as standby:
        url = log.engine.url.update_query_dict({"host": standby.socket})
        with connected(url) as engine:
            yield standby, engine


@contextmanager
def read_only(log):
    """Make a server what a replica is to its clients; who may do that may still write to it."""
    log.run("SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        log.run("SET GLOBAL read_only = 0")


@shows("on a standby or replica", OBSERVED, GATED, later=(GATED,))
def test_standby_is_refused(primary, primary_log):
    """A standby does not see who writes on its primary, and is refused."""
    log = primary_log
    log.publish()
    with on_standby(log, primary) as (_, engine), refusal("standby"):
        log.restarted(engine).info()


@shows("on a standby or replica", SEQUENCED)
def test_standby_shows_what_its_primary_has_sequenced(primary, primary_log, case):
    """A standby shows what has a position, and waits with those who are ahead of it."""
    log = primary_log
    log.publish()
    log.assert_news(0)
    with on_standby(log, primary) as (standby, engine):
        copied = Log(engine, case)
        copied.feed = log.restarted(engine)
        standby.catch_up(primary)
        assert copied.news() == [0]
        log.write(1)
        standby.catch_up(primary)
        assert copied.news() == []
        # Giving it a position is the primary's.
        assert log.news() == [1]
        standby.ask("SELECT pg_wal_replay_pause()")
        log.assert_news(2)
        page = log.restarted(engine).read(0, log.cursor, 10)
        assert (page.events, page.cursor) == ([], log.cursor)
        standby.ask("SELECT pg_wal_replay_resume()")
        standby.catch_up(primary)
        assert copied.news() == [1, 2]


@shows("on a standby or replica", OBSERVED_MARIADB)
def test_replica_is_refused(log):
    """A server that is read-only does not see who writes on its primary, and is refused."""
    with read_only(log), refusal("read-only"):
        log.restarted().info()


@for_each(OBSERVED_MARIADB)
def test_replica_that_may_be_written_to_is_a_warning(case):
    """A replica that is not read-only does not see who writes on its primary; check says so."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    reached = ("--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}")
    with (
        own_mariadb("--server-id=1", "--log-bin=log", *reached) as first,
        own_mariadb("--server-id=2") as second,
        new_database(first.url) as url,
        connected(url) as source,
        connected(second.url) as other,
        connected(make_url(second.url).set(database=source.url.database)) as target,
    ):
        log, copied = Log(source, case), Log(target, case)
        log.run("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1' IDENTIFIED BY 'replica'")
        with other.connect() as connection:
            connection.exec_driver_sql(
                f"CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, "
                "master_user='replica', master_password='replica', master_use_gtid=slave_pos"
            )
            connection.exec_driver_sql("START SLAVE")
        log.publish()
        log.assert_news(0)
        copied.feed = copied.source().bind(target)
        until(lambda: _has_arrived(copied, 1), "the first event is there", 20)
        until(lambda: copied.news() == [0], "the first event is read", 20)
        with source.connect() as slow:
            append(slow, 1)
            log.write(2)
            until(lambda: copied.news() == [2], "the third event is read", 20)
            slow.commit()
        until(lambda: _has_arrived(copied, 3), "the second event is there", 20)
        log.write(3)
        until(lambda: copied.news() == [3], "the second event is passed over", 20)
        for server, expected in ((log, []), (copied, ["SET GLOBAL read_only = 1"])):
            found = [one for one in server.feed.check() if one.subject == "replica"]
            assert [one.statement for one in found] == expected
        with read_only(copied):
            assert "replica" not in {one.subject for one in copied.restarted().check()}


def _has_arrived(log, count):
    """Tell whether so many events are on a server that has at first not even their table."""
    with suppress(DBAPIError):
        return log.count("SELECT count(*) FROM log") == count
    return False


@shows("on a standby or replica", SEQUENCED_MARIADB)
def test_replica_shows_what_its_primary_has_sequenced(log, case):
    """A server that is read-only shows what has a position, and waits with who is ahead of it."""
    log.assert_news(0)
    with read_only(log):
        copied = Log(log.engine, case)
        copied.feed = log.restarted()
        assert copied.news() == [0]
        log.write(1)
        assert copied.news() == []
        assert copied.feed.horizon().drawn == 1
        # The feed that was there before takes the server for the primary that it was.
        assert log.news() == [1]
        page = copied.feed.read(0, "1-99", 10)
        assert (page.events, page.cursor) == ([], "1-99")
        assert copied.news() == [1]


@contextmanager
def on_node(case):
    """Yield a log on a server that takes itself for a node of a Galera cluster."""
    with (
        own_mariadb("--wsrep-on=ON", "--binlog-format=ROW") as server,
        new_database(server.url) as url,
        connected(url) as engine,
    ):
        yield Log(engine, case)


@for_each(OBSERVED_MARIADB)
def test_node_of_a_cluster_is_refused(case):
    """A node does not see who writes on the other nodes, and is refused."""
    with on_node(case) as log, refusal("choose the ordering sequenced"):
        log.publish()


@for_each(SEQUENCED_MARIADB)
def test_node_of_a_cluster_waits_with_who_is_ahead_of_it(case):
    """A cursor that another node has given is no other history's where its event is yet to come."""
    with on_node(case) as log:
        log.publish()
        log.assert_news(0)
        page = log.feed.read(0, "1-99", 10)
        assert (page.events, page.cursor) == ([], "1-99")
        log.assert_news(1)


@contextmanager
def moved(log, server):
    """Let a log's engine lead to another server, as a name does after a failover."""

    def lead(_dialect, _record, _arguments, parameters):
        parameters["host"] = server.socket

    event.listen(log.engine, "do_connect", lead)
    log.engine.dispose()
    try:
        yield
    finally:
        event.remove(log.engine, "do_connect", lead)
        log.engine.dispose()


@shows("on a standby or replica", OBSERVED, GATED, later=(GATED,))
def test_connection_that_leads_to_a_standby_is_refused(primary, primary_log):
    """A standby is refused also if the feed's connections lead there between two checks."""
    log = primary_log
    log.publish()
    log.assert_news(0)
    with log.engine.connect() as slow:
        slow.detach()  # else it would go back to a pool that is gone by then
        append(slow, 1)
        log.write(2)
        with primary.standby() as standby:
            standby.catch_up(primary)
            with moved(log, standby):
                for look in (log.news, log.feed.head):
                    with refusal("standby"):
                        look()
        slow.commit()
    assert log.news() == [1, 2]


@shows("after a standby was promoted", OBSERVED, GATED, SEQUENCED, later=(GATED, SEQUENCED))
def test_feed_goes_on_after_promotion(primary, primary_log, case, monkeypatch, short_rounds):
    """Cursors stay good on a promoted standby, and who wrote before it is waited for after it."""
    monkeypatch.setattr("zeroeventhub.publisher.checks.CHECK_INTERVAL", 0)
    log = primary_log
    log.publish()
    log.assert_news(0, 1)
    with prepared(log, "INSERT INTO log (n) VALUES (2)") as commit:
        log.write(3)
        seen = log.news()
        with primary.standby() as standby, moved(log, standby):
            early = Log(log.engine, case)
            early.feed = log.restarted()
            if case == SEQUENCED:
                assert early.news() == [0, 1, 3]
            else:
                with refusal("standby"):
                    early.news()
            standby.promote()
            log.write(4)
            assert seen == ([3] if case == SEQUENCED else [])
            if case == OBSERVED:
                # What was settled on another server says nothing here, where numbers may be drawn
                # again: whoever reads sees the open writers end first.
                for feed in (early, log):
                    with pytest.raises(Unavailable):
                        feed.news()
            else:
                assert early.news() == ([4] if case == SEQUENCED else [0, 1])
                assert log.news() == ([4] if case == SEQUENCED else [])
            commit()
            assert log.news() == ([2] if case == SEQUENCED else [2, 3, 4])
            everything = [0, 1, 3, 4, 2] if case == SEQUENCED else [0, 1, 2, 3, 4]
            assert early.everything() == everything
            log.assert_order_of(lambda slow: append(slow, 1))
        # The server that was left behind has the transaction as well.
        commit()


@shows("after a standby was promoted", OBSERVED_MARIADB, SEQUENCED_MARIADB)
def test_feed_goes_on_after_promotion_of_a_replica(bare, case, monkeypatch):
    """Cursors stay good on a server that is read-only no more, and new events are seen."""
    monkeypatch.setattr("zeroeventhub.publisher.checks.CHECK_INTERVAL", 0)
    bare.publish()
    bare.assert_news(0)
    with read_only(bare):
        bare.write(1)
        if case == SEQUENCED_MARIADB:
            assert bare.news() == []
        else:
            with refusal("read-only"):
                bare.news()
    assert bare.news() == [1]
    bare.assert_order_of(lambda slow: append(slow, 1))


@for_each(OBSERVED_MARIADB)
def test_what_another_server_has_drawn_says_nothing_here(log):
    """Once a name leads to another server, the feed waits for the writers that are open there."""
    log.write(0)
    number = log.count("SELECT @@server_id")
    with log.engine.connect() as slow, connected(log.engine.url) as engine:
        log.feed = log.restarted(engine)
        assert log.news() == [0]
        append(slow, 1)
        log.run(f"SET GLOBAL server_id = {number + 1}")
        try:
            engine.dispose()
            with pytest.raises(Unavailable):
                log.news()
            slow.commit()
            assert log.news() == [1]
        finally:
            log.run(f"SET GLOBAL server_id = {number}")


@pytest.fixture
def crashing(request, case):
    """A server that may crash, with a published log, whose engine a crash leaves broken."""
    if case.database == "mariadb":
        with own_mariadb() as server, connected(server.url) as engine:
            log = Log(engine, case)
            # It knows since which second it runs.
            until(lambda: int(log.count(UPTIME)) > 0, "a second has passed", 5)
            log.publish()
            yield server, log
    else:
        server, log = request.getfixturevalue("primary"), request.getfixturevalue("primary_log")
        for setting in ("SET wal_writer_delay = '10s'", "RESET wal_writer_delay"):
            server.ask(f"ALTER SYSTEM {setting}")
            server.ask("SELECT pg_reload_conf()")
            if setting.startswith("SET"):
                log.publish()
                yield server, log


UPTIME = (
    "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'UPTIME'"
)


@for_each(OBSERVED, OBSERVED_MARIADB)
def test_numbers_that_are_drawn_again_after_a_crash_are_waited_for(crashing):
    """A server that crashes forgets numbers that open writers drew: the horizon starts anew."""
    server, log = crashing
    log.assert_news(0)
    lost = log.engine.connect()
    append(lost, *range(100, 164))
    assert log.news() == []
    server.crash()
    lost.invalidate()
    log.engine.dispose()
    with log.engine.connect() as slow:
        append(slow, 1)
        log.write(*range(2, 66))
        with pytest.raises(Unavailable):
            log.news()
        slow.commit()
    assert log.news() == [*range(1, 66)]


@contextmanager
def restored(log, case, server=None):
    """Dump a log's database and restore it to another, of the same server or a given one."""
    if log.database == "sqlite":
        place = nullcontext(log.engine.url.set(database=f"{log.engine.url.database}.copy"))
    elif log.is_mysql:
        pytest.skip("the programs of MariaDB do not dump MySQL")
    else:
        place = new_database(server or log.engine.url.render_as_string(hide_password=False))
    with place as url:
        restore(log.engine.url, url)
        with connected(url) as engine:
            copied = Log(engine, case)
            copied.feed = log.restarted(engine)
            copied.cursor = log.cursor
            yield copied


@pytest.mark.parametrize("deleted", [2, pytest.param(1, marks=pytest.mark.test_all)])
@shows("after dump and restore", *ALL, later=(GATED, *ON_SQLITE))
def test_feed_goes_on_after_dump_and_restore(log, case, deleted):
    """Cursors stay good in a restored database, even behind a deleted last event; news is seen."""
    log.feed = log.source(mutable=deleted == 2).bind(log.engine)
    log.assert_news(0, 1, 2)
    log.run(f"DELETE FROM log WHERE n = {deleted}")
    with restored(log, case) as copied:
        assert copied.news() == []
        copied.write(3)
        assert copied.news() == [3]
        assert copied.everything() == [0, 3 - deleted, 3]
        if case not in ON_SQLITE:
            copied.assert_order_of(lambda slow: append(slow, 1))


@shows("after dump and restore", *ALL, later=ON_SERVERS)
def test_cursor_from_after_the_dump_is_refused(log, case):
    """A cursor of an event that the dump lacks is answered with 410, whatever is written since."""
    log.assert_news(0, 1)
    with restored(log, case) as copied:
        log.assert_news(2)
        early, copied.cursor = copied.cursor, log.cursor
        for number in (3, 4):
            with pytest.raises(Diverged):
                copied.news()
            copied.write(number)
            assert copied.everything() == [0, 1, *range(3, number + 1)]
        with pytest.raises(Diverged):
            copied.news()
        copied.cursor = early
        assert copied.news() == [3, 4]


@shows("after dump and restore", SEQUENCED, SEQUENCED_MARIADB, later=(SEQUENCED_MARIADB,))
def test_events_without_positions_are_restored(bare, case, primary, short_rounds):
    """Events that were dumped before anybody read them get positions in the restored database."""
    bare.publish()
    bare.assert_news(0)
    with bare.engine.connect() as slow:
        # The dump holds that one is waited for whom the restored database has never seen.
        append(slow, 9)
        bare.assert_news(1)
        bare.write(2, 3)
        server = None
        if case == SEQUENCED:
            # A server that is younger counts its transactions from lower numbers.
            server = primary.url
            let_age(bare, primary)
        with restored(bare, case, server) as copied:
            assert copied.news() == [2, 3]
            for number in range(4, 8):
                copied.write(number)
                assert copied.news() == [number]
            copied.assert_order_of(lambda slow: append(slow, 1))
            assert copied.everything() == [*range(8), 2, 1]


def let_age(log, other):
    """Let a log's server count its transactions further than another has come."""
    last = other.ask("SELECT pg_current_xact_id()::text::bigint")
    further = f"pg_current_xact_id()::text::bigint < {last + 1000}"
    with log.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DO $$ BEGIN WHILE {further} LOOP COMMIT; END LOOP; END $$")
