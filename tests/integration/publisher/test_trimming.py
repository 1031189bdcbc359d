"""What trimming deletes and what it leaves: plans, batches, and what limits them."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from harness.killed import source as killed_source
from harness.killed import trimming, until_killed
from harness.log import LOG, Log, append, stranger
from harness.ordering_table import ALL, OBSERVED, SEQUENCING, SINGLE_WRITER, for_each, of_any
from harness.shop import orders
from harness.statements import execute
from harness.trimmed import numbers, position_of, trim
from sqlalchemy import MetaData, insert

from zeroeventhub import EventLog, ExpectedVersion, NewEvent, TableFeed
from zeroeventhub.errors import BadCursor, ConfigurationError, Diverged, FeedFailure, Trimmed
from zeroeventhub.publisher.retention import Retention

HOUR = timedelta(hours=1)


def source(**options):
    """Return a feed over orders in two partitions."""
    given = {"data": "data", "partition": "part", "partitions": 2, "time": "placed"}
    return TableFeed(orders, **{**given, "retention": Retention(), **options})


def fill(engine):
    """Place ten orders, the oldest of ten hours ago."""
    now = datetime.now(UTC)
    with engine.begin() as connection:
        for hours in range(10, 0, -1):
            row = {"part": hours % 2, "placed": now - hours * HOUR, "data": {"n": hours}}
            connection.execute(insert(orders), row)


def change(engine, where=None, **values):
    """Change one order or all of them."""
    statement = orders.update() if where is None else orders.update().where(orders.c.id == where)
    execute(engine, statement.values(**values))


def test_plan_by_age(shop, feed):
    """A trim by age ends before the first younger event of any partition."""
    plan = feed.plan_trim(older_than=4.5 * HOUR)
    assert (plan.events, plan.first, plan.until, plan.wanted) == (6, 1, 6, 6)
    assert plan.newest - plan.oldest == 5 * HOUR
    assert "6 events would go, positions 1 to 6, of " in str(plan)
    change(shop, 4, part=0, placed=datetime.now(UTC))
    plan = feed.plan_trim(older_than=4.5 * HOUR)
    assert (plan.events, plan.until) == (3, 3)
    assert feed.trim(plan) == 3
    assert (numbers(feed), numbers(feed, 1)) == ([7, 6, 4, 2], [5, 3, 1])


def test_plan_by_age_tells_of_an_event_that_is_to_come(any_shop, any_feed):
    """A plan says which event keeps younger ones back because a clock was ahead when it came."""
    change(any_shop, 4, placed=datetime.now(UTC) + 1000 * HOUR)
    plan = any_feed.plan_trim(older_than=4.5 * HOUR)
    assert plan.until == 3
    assert "Events above position 3 stay: the time of the next one lies in the future" in str(plan)
    assert any_feed.plan_trim(older_than=4.5 * HOUR, below=3).held_back == ()
    assert any_feed.plan_trim(below=9).held_back == ()
    change(any_shop, 4, placed=datetime.now(UTC))
    assert any_feed.plan_trim(older_than=4.5 * HOUR).held_back == ()


def test_event_that_was_deleted_keeps_no_trim_by_age_back(publishing):
    """Where the last event that would go was deleted before, the age of those before it counts."""
    make, engine = publishing
    feed = make(time="placed", retention=Retention())
    fill(engine)
    assert feed.head() == 10
    execute(engine, orders.delete().where(orders.c.id == 6))
    plan = feed.plan_trim(older_than=4.5 * HOUR)
    assert plan.newest - plan.oldest == 4 * HOUR
    assert feed.trim(plan) == 5
    assert numbers(feed) == [4, 3, 2, 1]


def test_all_that_is_said_holds_for_what_goes(any_feed):
    """The lowest of all bounds applies."""
    for cut, until in (
        ({"older_than": 4.5 * HOUR, "below": 4}, 3),
        ({"older_than": 4.5 * HOUR, "below": 9}, 6),
        ({"older_than": 4.5 * HOUR, "sealed": 2}, 2),
        ({"sealed": lambda: 5}, 5),
        ({"below": any_feed.cursor_after(7)}, 7),
        ({"below": 99}, 10),
        ({"older_than": timedelta(0)}, 10),
    ):
        assert any_feed.plan_trim(**cut).until == until, cut
    for cut in ({"older_than": 20 * HOUR}, {"below": 1}, {"sealed": 0}, {"sealed": -1}):
        plan = any_feed.plan_trim(**cut)
        assert (plan.first, plan.events, plan.until) == (None, 0, 0)
        assert any_feed.trim(plan) == 0
        assert str(plan) == "Nothing to trim: the mark is at position 0."


def test_what_cannot_be_meant_is_refused(any_shop, any_feed):
    """A plan without a bound, or with an invalid one, is refused."""
    last = any_feed.cursor_after(10)
    change(any_shop, 10, data={"n": 99})
    change(any_shop, placed=None)
    for options, cut, error, complaint in (
        ({}, {}, ConfigurationError, "Say what to trim"),
        ({}, {"older_than": -HOUR}, ConfigurationError, "zero or more"),
        ({}, {"older_than": 30}, ConfigurationError, r"such as timedelta\(days=30\), not 30"),
        ({}, {"below": 3, "silence": 7}, ConfigurationError, "An age is a timedelta"),
        ({}, {"older_than": timedelta.max}, ConfigurationError, "years 1 to 9999"),
        ({}, {"below": math.nan}, ConfigurationError, "below is a position"),
        ({}, {"below": 9, "sealed": math.nan}, ConfigurationError, "sealed is a position"),
        ({}, {"sealed": lambda: math.nan}, ConfigurationError, "sealed is a position"),
        ({"time": None}, {"older_than": HOUR}, ConfigurationError, "does not know the times"),
        ({}, {"older_than": HOUR}, ConfigurationError, "has no time"),
        ({"retention": None}, {"below": 3}, ConfigurationError, r"retention=Retention\(\)"),
        ({}, {"below": "nonsense"}, BadCursor, None),
        ({}, {"below": "1-99"}, Diverged, None),
        ({}, {"below": last}, Diverged, None),
    ):
        with pytest.raises(error, match=complaint):
            source(**options).bind(any_shop).plan_trim(**cut)


def test_sqlite_without_autoincrement_keeps_its_last_event(sqlite):
    """Without AUTOINCREMENT, SQLite would give the last row's number again, so it stays."""
    log, plain = Log(sqlite, SINGLE_WRITER), LOG.to_metadata(MetaData())
    plain.dialect_options["sqlite"]["autoincrement"] = False
    log.publish(plain, append_only=True, retention=Retention())
    log.assert_news(0, 1, 2)
    plan = log.feed.plan_trim(below=log.cursor)
    assert (plan.events, plan.until, plan.wanted) == (2, 2, 3)
    assert "SQLite would give its number again" in str(plan)
    log.feed.trim(plan)
    log.assert_news(3)
    assert log.everything() == [2, 3]


@pytest.mark.parametrize("ordering", [None, "sequenced"])
def test_events_with_versions_are_not_trimmed(engine, ordering):
    """Events with versions stay, and so do all later ones."""
    metadata = MetaData()
    log = EventLog(metadata, "log", partitions=4, ordering=ordering)
    metadata.create_all(engine)
    feed = log.feed(retention=Retention())
    counted = [NewEvent("counted", {"n": n}) for n in range(3)]
    with engine.begin() as connection:
        feed.install(connection)
        log.append(connection, [NewEvent("seen", {"n": n}) for n in range(5)])
        log.append_to(connection, "ada", counted[:2], expected_version=ExpectedVersion.NO_EVENTS)
        log.append(connection, [NewEvent("seen", {"n": n}) for n in range(5)])
    bound = feed.bind(engine)
    bound.head()
    plan = bound.plan_trim(below=12)
    assert (plan.events, plan.wanted) == (5, 11)
    assert "the state of key 'ada'" in plan.held_back[0]
    bound.trim(plan)
    with engine.begin() as connection:
        assert len(log.read_key(connection, "ada")) == 2
        assert log.append_to(connection, "ada", counted[2:], expected_version=2) == 3
    assert bound.plan_trim(below=12).events == 0


@for_each(*(case for case in ALL if case not in SEQUENCING and case.database != "sqlite"))
def test_never_above_the_horizon(log, case):
    """Events above the horizon stay."""
    log.assert_news(0, 1)
    with log.engine.connect() as slow:
        append(slow, 2)
        log.write(3, 4)
        plan = log.feed.plan_trim(below=10**6)
        assert (plan.events, plan.until) == (2, 2)
        log.feed.trim(plan)
        slow.commit()
    assert log.news() == [2, 3, 4]
    assert log.everything() == [2, 3, 4]


RIGHTS = {
    "observed": ["SELECT, DELETE ON log", "SELECT ON SEQUENCE log_id_seq"],
    "sequenced": ["SELECT, DELETE, UPDATE ON log", "USAGE ON SCHEMA public"],
}


@for_each(OBSERVED, *(case for case in SEQUENCING if case.database == "postgresql"))
def test_rights_that_trimming_needs(log, case):
    """Trimming needs rights to read and delete events and to change the mark; reading, SELECT."""
    log.assert_news(*range(4))
    rights = [*RIGHTS[case.ordering], "SELECT, UPDATE ON zeroeventhub_retention"]
    if case.ordering == "sequenced":
        tables = log.source().ordering("postgresql").source.table.metadata.tables
        rights += [f"SELECT, DELETE ON {table}" for table in tables]
    with stranger(log) as (name, engine):
        for right in rights:
            log.run(f"GRANT {right} TO {name}")
        feed = log.source(retention=Retention()).bind(engine)
        assert trim(feed, 3) == 2
        log.run(f"REVOKE UPDATE ON zeroeventhub_retention FROM {name}")
        assert numbers(feed) == [2, 3]
        with pytest.raises(Trimmed):
            feed.read(0, "1-1", 9)
        plan = feed.plan_trim(below=4)
        with pytest.raises(FeedFailure):
            feed.trim(plan)
    assert log.everything() == [2, 3]


def judged(log, feed, history):
    """Show that every reader gets all events after its cursor, or is refused; return the mark.

    The history is of all events ever written: their numbers, and the cursors after them.
    """
    mark = position_of(feed.cursor_after(0))
    following = [number for number, at in history if position_of(at) > mark]
    assert numbers(feed) == following
    assert log.count("SELECT count(*) FROM log") == len(following)
    for number, cursor in history[-10:]:
        if position_of(cursor) >= mark:
            assert numbers(feed, 0, cursor) == [*range(number + 1, len(history))], cursor
        else:
            with pytest.raises(Trimmed) as trimmed:
                feed.read(0, cursor, 1000)
            assert position_of(trimmed.value.earliest) == mark
    return mark


@pytest.mark.slow
@pytest.mark.parametrize("stride", [29, pytest.param(4, marks=pytest.mark.test_all)])
@of_any([SINGLE_WRITER], *ALL)
def test_killed_at_points_of_trimming(log, case, stride):
    """Wherever a trim is killed, no reader skips an event, and the next process continues."""
    url = log.engine.url.render_as_string(hide_password=False)
    at, history, kills, marks, killed = 1, [], 0, set(), True
    while killed:
        written = range(len(history), len(history) + 6)
        log.write(*written)
        page = log.feed.read(0, history[-1][1] if history else "1-0", 1000, each=True)
        history += zip(written, page.cursors, strict=True)
        below = position_of(history[-1][1]) - 1
        killed = until_killed(trimming, url, case.ordering, below, at)
        kills += killed
        marks.add(judged(log, log.feed, history))
        judged(log, killed_source(case.ordering).bind(log.engine), history)
        trim(log.feed, below)
        assert judged(log, log.feed, history) == below - 1
        at += stride
    assert kills > 1
    assert len(marks) > 1
