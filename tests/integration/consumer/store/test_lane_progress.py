"""Lanes on every database: how far each has come counts in one place, once."""

from dataclasses import replace

import pytest
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
    progress,
)

from zeroeventhub import FIRST
from zeroeventhub.errors import Fenced


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
