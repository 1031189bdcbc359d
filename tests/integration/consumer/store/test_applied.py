"""Lanes and the inbox on every database: how far lanes have come, and which events were seen."""

from dataclasses import replace

import pytest
from harness.statements import execute
from harness.stores import (
    NAME,
    advance,
    call,
    claim,
    enter,
    expire,
    is_refused_for_now,
    kept_waiting,
    load,
    move,
    new_store,
    progress,
    unseen,
)
from sqlalchemy import update

from zeroeventhub import FIRST
from zeroeventhub.errors import Fenced, StoreUnavailable


def test_lanes_count_from_the_cursor(store):
    """Each lane counts for itself, from the cursor at which the page was begun and no other."""
    place = load(store, 0)
    assert progress(store, place) is None
    advance(store, place, 0, 0, 3)
    advance(store, place, 1, 0, 2)
    advance(store, place, 0, 3, 5)
    assert progress(store, place) == (2, {0: 5, 1: 2})
    assert progress(store, replace(place, cursor="other")) is None
    assert progress(store, place, partition=1) is None
    assert call(store, store.lanes.progress, 0, place, name="audit") is None
    move(store, 0, place, "a")
    there = replace(place, cursor="a")
    assert progress(store, there) is None
    advance(store, there, 0, 0, 2, lanes=3)
    assert progress(store, there) == (3, {0: 2})
    call(store, store.lanes.clear, 0)
    assert progress(store, there) is None


def test_lane_counts_once(store):
    """A lane that has come further, or counts among others, is fenced; a rollback undoes it."""
    place = load(store, 0)
    advance(store, place, 0, 0, 3)
    for lane, before, lanes in [(0, 0, 2), (0, 2, 2), (0, 4, 2), (0, 3, 4), (1, 1, 2)]:
        with pytest.raises(Fenced):
            advance(store, place, lane, before, 9, lanes=lanes)
    assert progress(store, place) == (2, {0: 3})
    with store.engine.connect() as connection:
        store.lanes.advance(connection, NAME, 0, place, lane=0, lanes=2, before=3, after=4)
        connection.rollback()
    assert progress(store, place) == (2, {0: 3})


def test_lane_is_fenced_like_a_move(store):
    """A lane comes further neither from another cursor nor in another epoch."""
    claim(store, "one", [0])
    before = enter(store, 0, "one")
    advance(store, before, 0, 0, 3)
    expire(store, "one")
    claim(store, "two", [0])
    after = enter(store, 0, "two")
    for place in (before, replace(after, cursor="a"), replace(after, cursor=f"{FIRST} ")):
        with pytest.raises(Fenced):
            advance(store, place, 0, 3, 4)
        with pytest.raises(Fenced):
            advance(store, place, 1, 0, 4)
    with pytest.raises(Fenced):
        advance(store, after, 0, 0, 1, partition=1)
    assert progress(store, after) == (2, {0: 3})
    advance(store, after, 0, 3, 4)
    assert progress(store, after) == (2, {0: 4})


def test_lanes_work_side_by_side_and_cursor_waits(leveled_store):
    """Lanes do not wait for each other; a process that enters waits for all of them."""
    store = leveled_store
    place = load(store, 0)
    claim(store, "two", [0])
    with (
        store.engine.connect() as other,
        kept_waiting(store, enter, store, 0, "two") as (one, entered),
    ):
        for lane, connection in enumerate([one, other]):
            store.lanes.advance(connection, NAME, 0, place, lane=lane, lanes=2, before=0, after=1)
        other.commit()
    if is_refused_for_now(entered[0]):
        entered = [enter(store, 0, "two")]
    assert entered == [replace(place, epoch=1)]
    assert progress(store, entered[0]) == (2, {0: 1, 1: 1})
    with pytest.raises(Fenced):
        advance(store, place, 0, 1, 2)


def test_lane_that_waited_for_the_cursor_is_fenced(store):
    """A lane that begins while the right to the cursor passes on does not count."""
    place = load(store, 0)
    with kept_waiting(store, advance, store, place, 0, 0, 1) as (connection, results):
        store.set(connection, NAME, 0, FIRST)
    assert isinstance(results[0], Fenced)
    assert progress(store, load(store, 0)) is None


def test_event_is_new_once(store):
    """An id is new once for a consumer, by whatever partition it comes, and within a page."""
    assert unseen(store, ["a", "b", "a"]) == {"a", "b"}
    assert unseen(store, ["b", "c"]) == {"c"}
    assert unseen(store, ["a", "d"], partition=1) == {"d"}
    assert unseen(store, ["a"], name="audit") == {"a"}
    assert unseen(store, []) == set()
    assert unseen(store, ["a", "b", "c", "d"]) == set()


def test_event_that_was_rolled_back_is_new(store):
    """An id is noted in the transaction of its event's effects, or not at all."""
    with store.engine.connect() as connection:
        assert store.inbox.unseen(connection, NAME, 0, ["a"]) == {"a"}
        assert store.inbox.unseen(connection, NAME, 0, ["a"]) == set()
        connection.rollback()
    assert unseen(store, ["a"]) == {"a"}


def test_ids_are_told_apart(store):
    """Ids of any length and any characters are themselves, and never another one."""
    long, digest = "x" * 100_000, "a" * 64
    ids = ["a", "A", "a ", " a", "ä", "a\u0308", "a\0", "", "\ud800", "\udfff", "🎉", long]
    ids += [long[1:], digest, digest[1:], "'", "%s", ":a"]
    for number in range(len(ids)):
        assert unseen(store, ids[: number + 1]) == {ids[number]}


def test_thousands_are_noted_at_once(store):
    """Every id of a page counts that is larger than what a database takes in one statement."""
    ids = list(map(str, range(2500)))
    assert unseen(store, ids[:1500]) == set(ids[:1500])
    assert unseen(store, ids) == set(ids[1500:])
    assert unseen(store, ids) == set()


def test_old_ids_are_forgotten(store):
    """What is older than so many days goes; what is not, and other consumers', stays."""
    unseen(store, ["old"])
    unseen(store, ["old"], name="audit")
    inbox = store.tables.inbox
    execute(store.engine, update(inbox).values(seen_at=inbox.c.seen_at - 3 * 86400))
    unseen(store, ["new"])
    assert call(store, store.inbox.prune, days=3.1) == 0
    assert call(store, store.inbox.prune, days=2.9) == 1
    assert unseen(store, ["old", "new"]) == {"old"}
    assert unseen(store, ["old"], name="audit") == set()


def test_one_of_two_partitions_applies_an_event(leveled_store):
    """An event that comes by two partitions at once is new in one, and the other tries again."""
    store = leveled_store

    def note():
        return unseen(store, ["a", "b"], partition=1)

    with kept_waiting(store, note) as (connection, results):
        assert store.inbox.unseen(connection, NAME, 0, ["b", "c"]) == {"b", "c"}
    if results != [{"a"}]:
        assert is_refused_for_now(results[0])
        assert note() == {"a"}


def test_event_of_a_rival_is_found_in_an_older_snapshot(mariadb):
    """Where a transaction reads one snapshot, an id that came since is not taken for new."""
    store = new_store(mariadb)
    with mariadb.connect() as connection:
        store.inbox.unseen(connection, NAME, 0, ["x"])
        unseen(store, ["a"], partition=1)
        with pytest.raises(StoreUnavailable):
            store.inbox.unseen(connection, NAME, 0, ["a"])
        connection.rollback()
