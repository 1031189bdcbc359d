"""The age of a horizon that open writers hold back, on real databases."""

import logging
import time

import anyio
import pytest
from harness.log import PATIENCE, Case, Log, append, connected, prepared, stranger
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher import horizon_watch
from zeroeventhub.telemetry import PrometheusPublisher

HELD_BACK = [
    Case("", "postgresql", "observed"),
    Case("", "postgresql", "gated"),
    Case("", "mariadb", "observed"),
]
FREE = [
    Case("", "postgresql", "sequenced"),
    Case("", "mariadb", "sequenced"),
    Case("", "sqlite", "single-writer"),
    Case("", "sqlite", "sequenced"),
]


def named(case):
    """Name a case in the list of tests."""
    return f"{case.database}-{case.ordering}"


@pytest.fixture
def log(request, case):
    """A log with an event, in an empty database."""
    log = Log(request.getfixturevalue(case.database), case)
    log.publish()
    log.write(1)
    assert log.news() == [1]
    return log


@pytest.fixture
def late(monkeypatch):
    """What is late, and what is too late, after a moment already."""
    monkeypatch.setattr(horizon_watch, "LATE", 0.05)
    monkeypatch.setattr(horizon_watch, "TOO_LATE", 0.1)


@pytest.fixture
def records(caplog):
    """A function that returns what publishers have logged so far."""
    caplog.set_level(logging.INFO, "zeroeventhub.publisher")
    return lambda: [one for one in caplog.records if one.name == "zeroeventhub.publisher"]


def pid_of(log, connection):
    """The process of a connection, as its server calls it."""
    query = "SELECT pg_backend_pid()" if log.database == "postgresql" else "SELECT CONNECTION_ID()"
    return connection.exec_driver_sql(query).scalar()


@pytest.mark.parametrize("case", HELD_BACK, ids=named)
@pytest.mark.usefixtures("late")
def test_open_writer_ages_the_horizon(log, case, records):
    """The age grows beside an open writer, who is named, and is 0 again when it has ended."""
    assert log.feed.horizon().age == 0
    with log.engine.connect() as slow:
        pid = pid_of(log, slow)
        append(slow, 2)
        first = log.feed.horizon()
        assert (first.settled, first.drawn, first.age, first.blockers) == (1, 2, 0, ())
        time.sleep(0.2)
        log.write(3)
        second = log.feed.horizon()
        assert (second.settled, second.drawn) == (1, 3)
        assert 0.2 <= second.age < PATIENCE
        assert [blocker.pid for blocker in second.blockers] == [pid]
        slow.commit()
    last = log.feed.horizon()
    assert (last.settled, last.drawn, last.age, last.blockers) == (3, 3, 0, ())
    warning, relief = records()
    assert warning.levelname == "WARNING"
    assert (
        f"The horizon of table 'log' has been held back for 0 s. Its oldest writer: pid {pid} "
        in (warning.getMessage())
    )
    assert (warning.table, warning.pid) == ("log", pid)
    assert warning.horizon_age > 0.2
    assert warning.query_age is not None
    assert warning.user == second.blockers[0].user
    assert (relief.levelname, relief.table, relief.pid) == ("INFO", "log", None)


@pytest.mark.parametrize("case", HELD_BACK, ids=named)
@pytest.mark.usefixtures("late")
def test_readers_find_out_by_themselves(log, case, records):
    """Without anybody who asks for it, the log is told once, however often the feed is read."""
    with log.engine.connect() as slow:
        append(slow, 2)
        assert log.news() == []
        time.sleep(0.2)
        for _ in range(5):
            assert log.news() == []
            log.feed.head()
        slow.commit()
    assert log.news() == [2]
    assert [record.levelname for record in records()] == ["WARNING", "INFO"]


@pytest.mark.parametrize("case", HELD_BACK, ids=named)
def test_quick_writers_age_nothing(log, case, records):
    """While writers come and go, and one is always open, the horizon does not grow old."""
    one, two = log.engine.connect(), log.engine.connect()
    with one, two:
        append(one, 2)
        log.news()
        for number in range(3, 20):
            append(two, number)
            one.commit()
            time.sleep(0.02)
            assert log.feed.horizon().age < 1
            one, two = two, one
        one.commit()
    assert records() == []


@pytest.mark.parametrize("case", FREE, ids=named)
def test_horizon_that_nobody_holds_back_has_no_age(log, case):
    """Where positions are given after the commit, or one writes at a time, nothing is open."""
    with log.engine.connect() as slow:
        append(slow, 2)
        log.feed.horizon()
        time.sleep(0.02)
        found = log.feed.horizon()
        assert (found.age, found.blockers) == (0, ())
        slow.rollback()


@pytest.mark.parametrize("case", HELD_BACK[:1], ids=named)
@pytest.mark.usefixtures("late")
def test_process_that_knows_nothing_yet_tells_who_it_waits_for(log, case, records):
    """A feed that answers 503 since it started tells how long it has done so, and by whom."""
    with log.engine.connect() as slow:
        pid = pid_of(log, slow)
        append(slow, 2)
        restarted = log.restarted()
        for _ in range(2):
            with pytest.raises(Unavailable):
                restarted.head()
            time.sleep(0.2)
        found = restarted.horizon()
        assert (found.settled, found.drawn) == (None, None)
        assert found.age >= 0.4
        assert [blocker.pid for blocker in found.blockers] == [pid]
        slow.commit()
    assert restarted.horizon().age == 0
    assert [record.pid for record in records()] == [pid, None]


@pytest.mark.parametrize("case", HELD_BACK[:2], ids=named)
@pytest.mark.usefixtures("late")
def test_prepared_transaction_is_told_by_its_name(log, case, records):
    """A transaction without a process is told by its identifier."""
    with prepared(log, "INSERT INTO log (n) VALUES (2)") as decide:
        log.feed.horizon()
        time.sleep(0.2)
        (blocker,) = log.feed.horizon().blockers
        assert (blocker.pid, blocker.query_age) == (None, None)
        decide()
    (warning,) = records()
    assert (warning.pid, warning.application) == (None, blocker.application)
    assert "prepared transaction of " in warning.getMessage()


@pytest.mark.parametrize("case", HELD_BACK[2:], ids=named)
@pytest.mark.usefixtures("late")
def test_user_who_may_not_see_writers_reads_all_the_same(log, case, records):
    """Without the right to see who writes, the age is told without a name, and pages come."""
    with stranger(log) as (name, engine):
        database = log.engine.url.database
        log.run(f"GRANT SELECT ON {database}.log TO {name}")
        feed = log.restarted(engine)
        feed.horizon()
        with log.engine.connect() as slow:
            append(slow, 2)
            feed.horizon()
            time.sleep(0.2)
            assert len(feed.read(0, "_first", 10).events) == 1
            found = feed.horizon()
            assert (found.age > 0.2, found.blockers) == (True, ())
            slow.commit()
    (warning,) = records()
    assert warning.getMessage().endswith("Its oldest writer: none is to be seen.")


@pytest.mark.parametrize("case", HELD_BACK[:1], ids=named)
@pytest.mark.usefixtures("late")
def test_async_feed_tells_the_same(log, case, postgresql_url):
    """A feed that is bound to an async engine has the same method; metrics need a sync one."""

    async def watch():
        engine = create_async_engine(postgresql_url)
        try:
            feed = log.source().bind(engine)
            assert (await feed.horizon()).age == 0
            with log.engine.connect() as slow:
                append(slow, 2)
                await feed.horizon()
                await anyio.sleep(0.2)
                found = await feed.horizon()
                assert found.age >= 0.2
                assert [blocker.pid for blocker in found.blockers] == [pid_of(log, slow)]
            with pytest.raises(ConfigurationError, match="sync engine"):
                PrometheusPublisher(CollectorRegistry()).observe_horizon(feed)
        finally:
            await engine.dispose()

    anyio.run(watch)


@pytest.mark.parametrize("case", HELD_BACK[:1], ids=named)
@pytest.mark.usefixtures("late")
def test_metrics_show_who_holds_the_horizon_back(log, case):
    """The gauges of a collection come of a look through the feed's own engine."""
    registry = CollectorRegistry(auto_describe=True)
    with connected(log.engine.url) as engine, log.engine.connect() as slow:
        feed = log.restarted(engine)
        feed.horizon()
        append(slow, 2)
        feed.horizon()
        time.sleep(0.2)
        PrometheusPublisher(registry).observe_horizon(feed, "log")
        age = registry.get_sample_value(
            "zeroeventhub_publisher_horizon_age_seconds", {"feed": "log"}
        )
        assert age >= 0.2
        labels = {"feed": "log", "pid": str(pid_of(log, slow))}
        name = "zeroeventhub_publisher_blocker_age_seconds"
        assert registry.get_sample_value(name, labels) >= 0.2
