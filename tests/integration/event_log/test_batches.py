"""Batches of several writers: one transaction for all, or one for each, and never a part of one."""

from dataclasses import replace

import msgspec
import pytest
import sqlalchemy as sa
from harness.appended import batch, ids, made
from harness.deliveries import kill
from harness.engines import connected
from harness.killed import appending, until_killed, writers

from zeroeventhub import EventLog, NewEvent, TableFeed
from zeroeventhub.errors import (
    BadRequest,
    ConfigurationError,
    Conflict,
    Forbidden,
    IdReused,
    OutOfSequence,
    Unavailable,
)
from zeroeventhub.new_events import Batch


@pytest.fixture
def log(engine):
    """A log that takes batches, on each database."""
    return made(engine, append=True)


def counted(engine):
    """Return a list of commits to come."""
    commits = []
    sa.event.listen(engine, "commit", commits.append)
    return commits


def test_writers_share_one_transaction(engine, log):
    """Batches with and without versions and sequences are appended by one commit."""
    feed = log.feed().bind(engine)
    feed.info()
    commits = counted(engine)
    found = feed.append(writers(0))
    assert len(commits) == 1
    assert [[one.id for one in each] for each in found] == [
        ["e0", "e1"],
        ["e2", "e3"],
        ["e4", "e5"],
        ["e6", "e7"],
    ]
    assert [one.version for one in found[2]] == [1, 2]
    assert feed.append(writers(0)) == found
    assert sorted(ids(engine, log)) == [f"e{n}" for n in range(8)]
    assert feed.producer_sequence("p") == 1


def test_bad_batch_keeps_no_other_out(engine, log):
    """Of batches that come together, only the bad ones are refused, each for its own reason."""
    feed = log.feed().bind(engine)
    first, second, third = batch(3)
    feed.append([Batch([first])])
    versioned = replace(third, id="v1", expected_version=4)
    found = feed.append(
        [
            Batch([replace(first, data={}), second]),
            Batch([second]),
            Batch([replace(second, data={})]),
            Batch([versioned]),
            Batch([replace(third, id="p1")], producer="p", sequence=2),
            Batch([replace(third, id="f1")], partitions=frozenset()),
            Batch([third, replace(versioned, expected_version=None), versioned]),
            Batch([third]),
        ]
    )
    kinds = [IdReused, list, IdReused, Conflict, OutOfSequence, Forbidden, BadRequest, list]
    assert [type(one) for one in found] == kinds
    assert ids(engine, log) == ["e0", "e1", "e2"]
    assert (found[3].key, found[3].version, found[4].sequence) == (third.key, 0, 0)


def test_what_the_database_cannot_store_is_refused_for_good(engine):
    """A batch with a value that the database refuses is not asked for again, and keeps none out."""
    log = made(engine, sa.CheckConstraint("type <> 'bad'"), append=True)
    number = msgspec.Raw(b'{"n":1e-20000}')  # smaller than PostgreSQL stores
    nested = msgspec.Raw(b"[" * 99 + b"]" * 99)  # more than MariaDB stores
    new = [NewEvent("bad", {}), NewEvent("a", number), NewEvent("a", nested), *batch(1)]
    found = log.feed().bind(engine).append([Batch([one]) for one in new])
    takes = {"sqlite": (list, list), "postgresql": (BadRequest, list)}
    expected = (BadRequest, *takes.get(engine.dialect.name, (list, BadRequest)), list)
    assert tuple(map(type, found)) == expected


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("count", [1, 2])
def test_connection_that_is_lost_is_no_fault_of_the_feed(request, database, count):
    """Writers whose commit did not reach the database get 503, alone or together."""
    engine = request.getfixturevalue(database)
    log = made(engine, append=True)
    feed = log.feed().bind(engine)
    feed.info()
    sa.event.listen(engine, "commit", lambda connection: kill(other, connection), once=True)
    with connected(engine.url) as other:
        try:
            (outcome, *_) = feed.append(writers(0)[:count])
        except Unavailable as error:
            outcome = error
    assert isinstance(outcome, Unavailable)
    assert len(feed.append(writers(0)[:count])) == count


@pytest.mark.anyio
async def test_batches_from_async_code(engine, async_engine, log):
    """An async engine appends batches as a sync one does."""
    feed = log.feed().bind(async_engine)
    found = await feed.append([*writers(0), Batch([replace(batch(1)[0], data={})])])
    assert [type(one) for one in found] == [*[list] * 4, IdReused]
    assert await feed.producer_sequence("p") == 1
    assert len(ids(engine, log)) == 8


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.test_all)])
def test_killed_at_points_of_an_append(engine, log, stride):
    """Wherever a process is killed, its batches are all in the log or none; if sent again, once."""
    url = engine.url.render_as_string(hide_password=False)
    feed, at, first, kills, left_out, killed = log.feed().bind(engine), 1, 0, 0, 0, True
    while killed:
        killed = until_killed(appending, url, first, at)
        kills += killed
        written = len(ids(engine, log)) - first
        assert written in {0, 8}
        assert feed.producer_sequence("p") == (first + written) // 8
        left_out += not written
        assert all(isinstance(one, list) for one in feed.append(writers(first)))
        first, at = first + 8, at + stride
        assert len(ids(engine, log)) == first
    assert 0 < left_out <= kills


def test_feed_takes_batches_only_of_a_log_that_does(sqlite):
    """A feed over another table, or of a log without appends, has nothing to append with."""
    plain = made(sqlite)
    for feed in (plain.feed(), TableFeed(plain.table)):
        bound = feed.bind(sqlite)
        assert "append" not in bound.info().extensions
        with pytest.raises(ConfigurationError, match="append=True"):
            bound.append([Batch(batch(1))])
    switched = EventLog(sa.MetaData(), "switched", append=True)
    assert "append" not in switched.feed(append=None).bind(sqlite).reader.checks.info.extensions


def test_append_says_where_events_are(engine, log):
    """An append in process returns partitions and versions, also of events that were there."""
    new = [
        NewEvent("placed", {"n": 1}, "a", "e1", expected_version=0),
        NewEvent("placed", {"n": 2}, "b", "e2"),
        NewEvent("placed", {"n": 3}, "a", "e3"),
    ]
    for _ in range(2):
        with engine.begin() as connection:
            found = log.append(connection, new)
            assert log.find(connection, new) == found
        assert [(one.id, one.version) for one in found] == [("e1", 1), ("e2", None), ("e3", 2)]
    with engine.connect() as connection, pytest.raises(IdReused):
        log.find(connection, [*new, NewEvent("placed", {}, id="e4")])
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="leave out"):
        log.append_to(connection, "a", new[:1], expected_version=2)
