"""What an operator sees of consumers, on every database."""

from datetime import UTC, datetime

import pytest
from harness.statements import execute
from harness.stores import NAME, call, claim, enter, expire, fail, inherit, load, move

from zeroeventhub.consumer.steps import Place
from zeroeventhub.errors import Fenced


def test_standings_show_who_reads_what(store):
    """An operator sees every place of every consumer, and the leases that hold yet."""
    call(store, store.load, 0, name="audit", start="z")
    load(store, 1, start="a")
    load(store, 0, start="a")
    load(store, 2, start="gone")
    inherit(store, {0: [2]}, remaining=[0, 1])
    claim(store, "one", [0])
    assert claim(store, "two", [0, 1]).held == {1}
    expire(store, "two")
    with store.engine.connect() as connection:
        found = store.standings(connection)
        of_one = store.standings(connection, NAME)
    assert [(one.consumer, one.partition, one.cursor, one.owner) for one in found] == [
        ("audit", 0, "z", None),
        (NAME, 0, "a", "one"),
        (NAME, 1, "a", None),
    ]
    assert [(one.consumer, one.partition) for one in of_one] == [(NAME, 0), (NAME, 1)]
    assert 0 < found[1].lease_seconds <= 30
    assert found[2].lease_seconds is None
    assert found[0].updated_at.tzinfo is not None
    ages = [abs((found[0].updated_at - one.updated_at).total_seconds()) for one in found]
    assert max(ages) < 60


def test_error_of_a_halt_is_shown_where_the_partition_halted(store):
    """An operator sees the last error and when it was, of the partition that halted alone."""
    place = load(store, 0, start="a")
    load(store, 1, start="a")
    call(store, store.load, 0, start="a", name="audit")
    for tries in (1, 3):
        fail(store, place, ValueError(f"no customer \0 in try {tries}"), tries)
    found = call(store, store.standings, name=None)
    assert [(one.error, one.tries) for one in found] == [
        (None, None),
        ("ValueError: no customer \\x00 in try 3", 3),
        (None, None),
    ]
    assert found[0].halted_at is None
    assert abs((found[1].halted_at - found[1].updated_at).total_seconds()) < 60


def test_retries_are_shown_until_the_partition_halts(store):
    """Of tries that failed an operator sees the last error, since when, and when the next is due;
    the last one is no retry, but a halt.
    """
    place, past = load(store, 0, start="a"), datetime(2026, 1, 31, tzinfo=UTC)
    fail(store, place, ValueError("earlier"), 1, pause=9.0)
    age = store.tables.failures.update().values(since=past)
    execute(store.engine, age)
    fail(store, place, ValueError("no"), 2, pause=30.0)
    (found,) = call(store, store.standings)
    assert (found.error, found.tries, found.halted_at) == ("ValueError: no", 2, None)
    assert (found.retried_since, 0 < found.retry_seconds <= 30) == (past, True)
    fail(store, place, ValueError("anew"), 1, pause=-1.0)
    (found,) = call(store, store.standings)
    assert found.retried_since > past
    assert found.retry_seconds <= -1
    execute(store.engine, age)
    fail(store, place, ValueError("no"), 3)
    (found,) = call(store, store.standings)
    assert found.halted_at > past
    assert (found.retried_since, found.retry_seconds) == (None, None)


def enter_anew(store):
    """Enter a partition as a process does that starts."""
    claim(store, "one", [0])
    enter(store, 0, "one")


@pytest.mark.parametrize(
    "go_on",
    [
        lambda store: move(store, 0, Place("a"), "b"),
        lambda store: call(store, store.set, 0, "a"),
        lambda store: call(store, store.reset, cursor="a"),
        enter_anew,
    ],
    ids=["moved", "set", "reset", "entered"],
)
@pytest.mark.parametrize("pause", [None, 30.0], ids=["halt", "retry"])
def test_error_is_gone_once_the_partition_goes_on(store, go_on, pause):
    """Who moves, sets, resets or enters a cursor clears its error; a stale one is not stored."""
    place = load(store, 0, start="a")
    fail(store, place, ValueError("no"), 3, pause=pause)
    go_on(store)
    with pytest.raises(Fenced):
        fail(store, place, ValueError("stale"), 3, pause=pause)
    (found,) = call(store, store.standings)
    assert (found.error, found.tries) == (None, None)
    assert (found.halted_at, found.retried_since, found.retry_seconds) == (None, None, None)
    fail(store, load(store, 0), ValueError("again"), 1)
    assert call(store, store.standings)[0].error == "ValueError: again"
