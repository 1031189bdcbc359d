"""Snapshots of keys: what is restored from them, what they let go, and what stays counted."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from harness.appended import ORDERED, made
from harness.killed import PLENTY, keep_and_trim, keeping, until_killed
from harness.published import install
from harness.statements import before_insert, execute

from zeroeventhub import FIRST, Compaction, EventLog, ExpectedVersion, NewEvent, Retention
from zeroeventhub.errors import (
    ConfigurationError,
    Conflict,
    ProtocolError,
    StoreUnavailable,
    Trimmed,
)

ANY, NONE, SOME = ExpectedVersion.ANY, ExpectedVersion.NO_EVENTS, ExpectedVersion.SOME_EVENTS


@pytest.fixture
def kept(engine):
    """A log with snapshots, on each database."""
    return made(engine, snapshots=True)


@pytest.fixture
def any_kept(any_engine):
    """A log with snapshots, on a database of any kind."""
    return made(any_engine, snapshots=True)


def append(engine, log, key, numbers, expected=ANY):
    """Append events of some numbers to a key."""
    with engine.begin() as connection:
        events = [NewEvent("counted", {"n": number}) for number in numbers]
        return log.append_to(connection, key, events, expected_version=expected)


def save(engine, log, key, version, data):
    """Save a snapshot."""
    with engine.begin() as connection:
        log.save_snapshot(connection, key, version, data)


def restored(engine, log, key="ada"):
    """The snapshot of a key, the numbers of the events after it, and the version."""
    with engine.connect() as connection:
        found = log.restore(connection, key)
    return found.snapshot, [event.data["n"] for event in found.events], found.version


def trimmable(engine, log, **options):
    """Install and bind a feed of the log that can be trimmed."""
    feed = log.feed(retention=Retention(), **options)
    install(feed, engine)
    return feed.bind(engine)


def trim(bound, **options):
    """Trim all that can go; return how many events are gone."""
    bound.head()
    return bound.trim(bound.plan_trim(below=PLENTY), **options)


def left(engine, log):
    """The keys and versions of the rows that are left."""
    with engine.connect() as connection:
        columns = log.table.c
        query = sa.select(columns.key, columns.version).order_by(columns.position)
        return [tuple(row) for row in connection.execute(query)]


def test_key_is_restored_by_one_query(engine, kept):
    """A key is its newest snapshot and the events after it, which one query reads."""
    append(engine, kept, "ada", range(1, 1_001))
    append(engine, kept, "bob", [1])
    assert restored(engine, kept) == (None, [*range(1, 1_001)], 1_000)
    save(engine, kept, "ada", 998, {"sum": 498_501, "name": "ë"})
    statements = []
    sa.event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert restored(engine, kept) == ({"sum": 498_501, "name": "ë"}, [999, 1_000], 1_000)
    assert len(statements) == 1
    save(engine, kept, "ada", 1_000, [])
    assert restored(engine, kept) == ([], [], 1_000)
    assert restored(engine, kept, "bob") == (None, [1], 1)
    assert restored(engine, kept, "eve") == (None, [], 0)


def test_snapshot_never_runs_ahead(any_engine, any_kept):
    """A snapshot of a version that the key does not have is refused, and nothing is saved."""
    append(any_engine, any_kept, "ada", [1, 2])
    for key, version, known in (("ada", 3, 2), ("bob", 1, 0)):
        with pytest.raises(Conflict) as caught:
            save(any_engine, any_kept, key, version, {})
        assert (caught.value.key, caught.value.version) == (key, known)
    with any_engine.begin() as connection:
        new = [NewEvent("counted", {"n": 3})]
        version = any_kept.append_to(connection, "ada", new, expected_version=2)
        any_kept.save_snapshot(connection, "ada", version, "of its own transaction")
    assert restored(any_engine, any_kept) == ("of its own transaction", [], 3)


def test_later_snapshot_stays(engine, kept):
    """A snapshot replaces one of an earlier version or of the same, and no later one."""
    append(engine, kept, "ada", [1, 2, 3])
    for version, data, stays in (
        (2, "two", "two"),
        (1, "one", "two"),
        (2, "again", "again"),
        (3, {"n": 3}, {"n": 3}),
        (2, "two", {"n": 3}),
    ):
        save(engine, kept, "ada", version, data)
        assert restored(engine, kept)[0] == stays


def test_what_cannot_be_saved_is_refused(sqlite):
    """A log refuses an invalid version, data without a form everywhere, and having no snapshots."""
    log, plain = made(sqlite, snapshots=True), EventLog(sa.MetaData(), "orders")
    append(sqlite, log, "ada", [1])
    for version, data in ((0, {}), (-1, {}), (1, 5), (1, "a\0b"), (1, {1, 2})):
        with pytest.raises(ConfigurationError):
            save(sqlite, log, "ada", version, data)
    with pytest.raises(ConfigurationError, match="snapshots=True"):
        save(sqlite, plain, "ada", 1, {})
    with pytest.raises(ConfigurationError, match="snapshots=True"):
        restored(sqlite, plain)


def test_key_that_no_event_can_have_is_refused(engine, kept):
    """A key that `append_to` refuses is not read as another one, nor is its snapshot replaced."""
    append(engine, kept, "ada", [1, 2])
    save(engine, kept, "ada", 1, {"sum": 1})
    with engine.connect() as connection:
        for key in ["ada ", "a\0b", ""]:
            with pytest.raises(ConfigurationError, match="The key"):
                kept.read_key(connection, key)
            with pytest.raises(ConfigurationError, match="The key"):
                kept.restore(connection, key)
            with pytest.raises(ConfigurationError, match="The key"):
                kept.save_snapshot(connection, key, 2, {"sum": 3})
    assert restored(engine, kept) == ({"sum": 1}, [2], 2)


@pytest.mark.parametrize(
    ("database", "ordering"),
    [pytest.param(*one, marks=[pytest.mark.test_all] if one[1] else []) for one in ORDERED],
)
def test_trimmed_key_counts_on(request, database, ordering):
    """A key goes on from its snapshot where no event is left, and its readers are told."""
    engine = request.getfixturevalue(database)
    log = made(engine, ordering=ordering, snapshots=True, partitions=1)
    bound = trimmable(engine, log)
    append(engine, log, "ada", [1, 2, 3])
    append(engine, log, "bob", [1, 2])
    save(engine, log, "ada", 2, [1, 2])
    save(engine, log, "bob", 2, [1, 2])
    bound.head()
    early = bound.read(0, FIRST, 1).cursor
    plan = bound.plan_trim(below=PLENTY)
    assert (plan.events, bound.trim(plan, rows=1)) == (2, 2)
    assert "the state of key 'ada'" in plan.held_back[0]
    assert left(engine, log) == [("ada", 3), ("bob", 1), ("bob", 2)]
    save(engine, log, "ada", 3, [1, 2, 3])
    append(engine, log, "cy", [1])
    assert trim(bound) == 3
    assert left(engine, log) == [("cy", 1)]
    with pytest.raises(Trimmed):
        bound.read(0, early, 10)
    assert [event.data["n"] for event in bound.read(0, FIRST, 10).events] == [1]
    assert restored(engine, log) == ([1, 2, 3], [], 3)
    for expected in (0, 2, 4, NONE):
        with pytest.raises(Conflict) as caught:
            append(engine, log, "ada", [4], expected)
        assert caught.value.version == 3
    assert append(engine, log, "ada", [4, 5], 3) == 5
    assert append(engine, log, "bob", [3], SOME) == 3
    assert append(engine, log, "ada", [6]) == 6
    assert restored(engine, log) == ([1, 2, 3], [4, 5, 6], 6)


def test_reader_of_trimmed_events_is_told(any_engine, any_kept):
    """A key is read after its snapshot's version, and before only if all of its events are left."""
    append(any_engine, any_kept, "ada", [1, 2, 3])
    save(any_engine, any_kept, "ada", 2, [1, 2])

    def read(after, limit=None):
        with any_engine.connect() as connection:
            found = any_kept.read_key(connection, "ada", after_version=after, limit=limit)
        return [event.version for event in found]

    assert [read(0), read(0, 1), read(1), read(3)] == [[1, 2, 3], [1], [2, 3], []]
    bound = trimmable(any_engine, any_kept)
    trim(bound)
    assert [read(2), read(3), read(9)] == [[3], [], []]
    save(any_engine, any_kept, "ada", 3, [1, 2, 3])
    for after, limit in ((0, None), (0, 1), (1, 1)):
        with pytest.raises(Trimmed, match="restore it"):
            read(after, limit)
    trim(bound)
    with pytest.raises(Trimmed):
        read(2)
    assert read(3) == []


@pytest.mark.parametrize("seen", [0, pytest.param(2, marks=pytest.mark.test_all)])
def test_version_that_was_trimmed_meanwhile_is_not_given_again(engine, kept, seen):
    """Who has read a key's version cannot append after a rival whose events were trimmed."""
    bound = trimmable(engine, kept)
    if seen:
        append(engine, kept, "ada", [1, 2])

    def rival():
        append(engine, kept, "ada", range(seen + 1, 6))
        save(engine, kept, "ada", 5, "of the rival")
        assert trim(bound) == 5

    with before_insert(engine, 0, rival) as acted, pytest.raises(StoreUnavailable):
        append(engine, kept, "ada", [0], seen)
    assert acted
    assert restored(engine, kept) == ("of the rival", [], 5)
    assert append(engine, kept, "ada", [6], 5) == 6


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_transaction_that_cannot_see_a_trim_does_not_append(postgresql, level):
    """PostgreSQL hides what was trimmed from transactions above READ COMMITTED: they may read."""
    log = made(postgresql, snapshots=True)
    append(postgresql, log, "ada", [1])
    strict = postgresql.execution_options(isolation_level=level)
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        append(strict, log, "ada", [2])
    assert restored(strict, log) == (None, [1], 1)


def counted(restored):
    """The numbers that a key's snapshot and the events after it hold."""
    return [*(restored.snapshot or []), *(event.data["n"] for event in restored.events)]


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_beside_trims(engine, kept):
    """Handlers restore, append and save while all that may go is trimmed: each key counts on."""
    bound, own, written = trimmable(engine, kept), sa.create_engine(engine.url, pool_size=6), []
    bound.head()

    def handle(seed):
        chance = random.Random(seed)
        for _ in range(10):
            key = f"k{chance.randrange(3)}"
            with suppress(Conflict, StoreUnavailable, sa.exc.OperationalError):
                with own.begin() as connection:
                    found = kept.restore(connection, key)
                    numbers = counted(found)
                    assert numbers == [*range(1, found.version + 1)]
                    new = [NewEvent("counted", {"n": found.version + 1})]
                    kept.append_to(connection, key, new, expected_version=found.version)
                    if chance.random() < 0.7:
                        numbers.append(found.version + 1)
                        kept.save_snapshot(connection, key, found.version + 1, numbers)
                written.append(key)

    def keep_trimming(handlers):
        gone = 0
        while not all(handler.done() for handler in handlers):
            gone += trim(bound, rows=3)
        return gone

    with ThreadPoolExecutor(6) as pool:
        handlers = [pool.submit(handle, seed) for seed in range(5)]
        gone = pool.submit(keep_trimming, handlers)
        for handler in handlers:
            handler.result(60)
    own.dispose()
    assert gone.result() + trim(bound) > 0
    with engine.connect() as connection:
        for key in sorted({*written}):
            found = kept.restore(connection, key)
            assert counted(found) == [*range(1, written.count(key) + 1)]
            assert found.version == written.count(key)


@pytest.mark.slow
@pytest.mark.test_all
def test_killed_at_points_of_keeping_and_trimming(engine):
    """Wherever a process that appends, saves and trims is killed, keys and readers go on."""
    url, at, killed, kills = engine.url.render_as_string(hide_password=False), 1, True, 0
    log = made(engine, snapshots=True, partitions=1)
    bound = trimmable(engine, log)
    while killed:
        killed = until_killed(keeping, url, at)
        kills += killed
        with engine.connect() as connection:
            for key in ("ada", "bob"):
                found = log.restore(connection, key)
                assert counted(found) == [*range(1, found.version + 1)]
        bound.head()
        page = bound.read(0, FIRST, 1_000)
        assert len(page.events) == len(left(engine, log))
        keep_and_trim(engine, log, bound)
        at += 7
    assert kills > 1


class Paid:
    """What a present event is decoded as."""

    def __init__(self, cents):
        self.cents = cents


def from_euros(data: dict) -> Paid:
    """Make a present event of an old one."""
    return Paid(data["euros"] * 100)


def test_old_events_are_read_as_present_ones(sqlite):
    """A log reads the data of each type by its model, which may be an upcaster."""
    plain = made(sqlite, snapshots=True)
    log = EventLog(
        sa.MetaData(), "orders", snapshots=True, models={"paid": from_euros, "noted": list}
    )
    with sqlite.begin() as connection:
        new = [NewEvent("paid", {"euros": 3}), NewEvent("noted", ["x"]), NewEvent("noted", {})]
        log.append_to(connection, "ada", new, expected_version=0)
        paid, noted, broken = log.restore(connection, "ada").events
        assert paid.data.cents == 300
        assert paid.data is paid.data
        assert noted.data == ["x"]
        with pytest.raises(ProtocolError, match="does not fit list"):
            _ = broken.data
        assert [event.data for event in plain.read_key(connection, "ada")] == [
            {"euros": 3},
            ["x"],
            {},
        ]
        log.append_to(connection, "bob", [NewEvent("other", {})], expected_version=0)
        with pytest.raises(ProtocolError, match="'other'"):
            log.read_key(connection, "bob")


def test_compaction_behind_snapshots(any_engine, any_kept):
    """Compaction keeps the last event of each key, and all that no snapshot covers."""
    tombstone = any_kept.table.c.type == "closed"
    compaction = Compaction(tombstone=tombstone, keep_tombstones=timedelta(0))
    bound = trimmable(any_engine, any_kept, compaction=compaction)
    append(any_engine, any_kept, "ada", [1, 2, 3, 4])
    append(any_engine, any_kept, "bob", [1, 2])
    with any_engine.begin() as connection:
        for key in ("cy", "eve"):
            events = [NewEvent("counted", {"n": 1}), NewEvent("closed", {})]
            any_kept.append_to(connection, key, events, expected_version=0)
        any_kept.save_snapshot(connection, "ada", 3, [1, 2, 3])
        any_kept.save_snapshot(connection, "cy", 2, "closed")
    append(any_engine, any_kept, "zoe", [1])
    past = datetime.now(UTC) - timedelta(minutes=1)
    execute(any_engine, any_kept.table.update().values(time=past))
    bound.head()
    assert bound.compact() == 5
    rest = [("ada", 4), ("bob", 1), ("bob", 2), ("eve", 1), ("eve", 2), ("zoe", 1)]
    assert left(any_engine, any_kept) == rest
    assert restored(any_engine, any_kept) == ([1, 2, 3], [4], 4)
    assert restored(any_engine, any_kept, "cy") == ("closed", [], 2)
    assert append(any_engine, any_kept, "cy", [3], 2) == 3


def test_tombstone_stays_as_long_as_an_event_that_it_deletes(any_engine, any_kept):
    """A tombstone without a version is kept while its key has an event that no snapshot covers."""
    tombstone = any_kept.table.c.type == "closed"
    compaction = Compaction(tombstone=tombstone, keep_tombstones=timedelta(0))
    bound = trimmable(any_engine, any_kept, compaction=compaction)
    for key in ("ada", "bob"):
        append(any_engine, any_kept, key, [1, 2])
    with any_engine.begin() as connection:
        closed = [NewEvent("closed", {}, key=key) for key in ("ada", "bob", "cy")]
        any_kept.append(connection, closed)
        any_kept.save_snapshot(connection, "bob", 2, "closed")
    append(any_engine, any_kept, "zoe", [1])
    past = datetime.now(UTC) - timedelta(minutes=1)
    execute(any_engine, any_kept.table.update().values(time=past))
    bound.head()
    assert bound.compact() == 4
    assert left(any_engine, any_kept) == [("ada", 1), ("ada", 2), ("ada", None), ("zoe", 1)]
    save(any_engine, any_kept, "ada", 2, "closed")
    assert bound.compact() == 3
    assert left(any_engine, any_kept) == [("zoe", 1)]
