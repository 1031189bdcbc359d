"""The age of a horizon that open writers hold back, and what is told of them."""

import logging
from datetime import timedelta

import pytest
from harness.log import append, prepared, stranger
from harness.ordering_table import GATED, OBSERVED, OBSERVED_MARIADB, WATCHING, for_each
from harness.waiting import until

from zeroeventhub import FIRST, LAST
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher import horizon_monitor

TOO_LATE = 0.1


@pytest.fixture
def log(log, monkeypatch):
    """A log with an event, whose horizon is late, and too late, after a moment already."""
    monkeypatch.setattr(horizon_monitor, "LATE", TOO_LATE / 2)
    monkeypatch.setattr(horizon_monitor, "TOO_LATE", TOO_LATE)
    log.assert_news(1)
    return log


@pytest.fixture
def records(caplog):
    """A function that returns what publishers have logged so far."""
    caplog.set_level(logging.INFO, "zeroeventhub.publisher")
    return lambda: [one for one in caplog.records if one.name == "zeroeventhub.publisher"]


def pid_of(log, connection):
    """The process of a connection, as its server calls it."""
    query = "SELECT pg_backend_pid()" if log.database == "postgresql" else "SELECT CONNECTION_ID()"
    return connection.exec_driver_sql(query).scalar()


def held_back(feed):
    """Wait until a feed's horizon has been held back for too long; return the report."""

    def is_old():
        report = feed.horizon()
        return report if report.age > TOO_LATE else None

    return until(is_old, "the horizon is too old")


@for_each(*WATCHING)
def test_open_writer_ages_the_horizon(log, records):
    """The age grows beside an open writer, who is named, and is 0 again when it has ended."""
    assert log.feed.horizon().age == log.feed.lag(0, FIRST).held_back == 0
    with log.engine.connect() as slow, log.engine.connect() as reading:
        pid = pid_of(log, slow)
        if log.database == "postgresql":
            slow.exec_driver_sql("SET LOCAL application_name = 'nightly import'")
        append(slow, 2)
        pid_of(log, reading)  # who writes nothing is not named
        first = log.feed.horizon()
        assert (first.settled, first.drawn, first.age, first.blockers) == (1, 2, 0, ())
        log.write(3)
        second = held_back(log.feed)
        assert (second.settled, second.drawn) == (1, 3)
        (blocker,) = second.blockers
        assert (blocker.pid, blocker.user) == (pid, log.engine.url.username)
        assert timedelta() < blocker.age
        assert log.feed.lag(0, LAST).held_back > TOO_LATE
        if log.database == "postgresql":
            assert blocker.application == "nightly import"
        slow.commit()
    last = log.feed.horizon()
    assert (last.settled, last.drawn, last.age, last.blockers) == (3, 3, 0, ())
    warning, relief = records()
    assert (warning.levelname, warning.table, warning.pid) == ("WARNING", "log", pid)
    assert f"held back for 0 s. Its oldest writer: pid {pid} " in warning.getMessage()
    assert warning.horizon_age > TOO_LATE
    assert warning.query_age is not None
    assert warning.user == blocker.user
    if log.database == "postgresql":
        assert str(blocker).endswith(" s ago ('nightly import')")
    assert (relief.levelname, relief.table, relief.pid) == ("INFO", "log", None)


@for_each(*WATCHING, later=(GATED, OBSERVED_MARIADB))
def test_readers_find_out_by_themselves(log, records):
    """A late horizon is logged once, however often the feed is read."""
    with log.engine.connect() as slow:
        append(slow, 2)
        assert log.news() == []
        until(lambda: log.news() == [] and records(), "a reading tells of a late horizon")
        for _ in range(3):
            assert log.news() == []
            log.feed.head()
        slow.commit()
    assert log.news() == [2]
    assert [record.levelname for record in records()] == ["WARNING", "INFO"]


@for_each(OBSERVED)
def test_process_that_knows_nothing_yet_tells_what_it_waits_for(log, records):
    """A feed that answers 503 since it started tells how long it has done so, and by whom."""
    with log.engine.connect() as slow:
        pid = pid_of(log, slow)
        append(slow, 2)
        restarted = log.restarted()
        for _ in range(2):
            with pytest.raises(Unavailable):
                restarted.head()
        found = held_back(restarted)
        assert (found.settled, found.drawn) == (None, None)
        assert [blocker.pid for blocker in found.blockers] == [pid]
        slow.commit()
    assert restarted.horizon().age == 0
    assert [record.pid for record in records()] == [pid, None]


@for_each(OBSERVED, GATED)
def test_prepared_transaction_is_told_by_its_name(log, records):
    """A prepared transaction, which has no process, is named by its identifier."""
    with prepared(log, "INSERT INTO log (n) VALUES (2)") as decide:
        (blocker,) = held_back(log.feed).blockers
        assert (blocker.pid, blocker.query_age) == (None, None)
        assert blocker.age > timedelta()
        decide()
    (warning,) = records()
    assert (warning.pid, warning.application) == (None, blocker.application)
    assert "prepared transaction of " in warning.getMessage()


@for_each(OBSERVED_MARIADB)
def test_user_who_may_not_see_writers_reads_all_the_same(log, records):
    """Without the right to see who writes, the age is told without a name, and pages come."""
    with stranger(log) as (name, engine):
        log.run(f"GRANT SELECT ON {log.engine.url.database}.log TO {name}")
        feed = log.restarted(engine)
        feed.horizon()
        with log.engine.connect() as slow:
            append(slow, 2)
            assert held_back(feed).blockers == ()
            assert len(feed.read(0, "_first", 10).events) == 1
            slow.commit()
    (warning,) = records()
    assert warning.getMessage().endswith("Its oldest writer: none is visible.")
