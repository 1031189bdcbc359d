"""Lanes on every database: how far each has come counts in one place, once."""

import threading

import pytest
from harness.stores import NAME, at, call, claim, empty_store, enter, expire, load, move, new_store

from zeroeventhub import FIRST
from zeroeventhub._follow import Place
from zeroeventhub.cursors.lanes import LaneProgress
from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import Fenced


@pytest.fixture
def store(shop_engine):
    """A store that holds nothing, on each database in turn."""
    return empty_store(shop_engine)


def progress(store, place, partition=0):
    """Return how far lanes have come."""
    return call(store, store.lanes.progress, partition, place)


def advance(store, place, lane, before, after, *, lanes=2, partition=0):
    """Let a lane come further."""
    method = store.lanes.advance
    call(store, method, partition, place, lane=lane, lanes=lanes, before=before, after=after)


def test_lanes_count_from_the_cursor(store):
    """Each lane counts for itself; who reads the page again learns where each stands."""
    place = load(store, 0)
    assert progress(store, place) is None
    advance(store, place, 0, 0, 3)
    advance(store, place, 1, 0, 2)
    advance(store, place, 0, 3, 5)
    assert progress(store, place) == LaneProgress(2, {0: 5, 1: 2})
    assert progress(store, Place("other")) is None
    assert progress(store, place, partition=1) is None


def test_lane_counts_once(store):
    """A lane that has come further since, or counts among others, is fenced."""
    place = load(store, 0)
    advance(store, place, 0, 0, 3)
    for lane, before, lanes in [(0, 0, 2), (0, 2, 2), (0, 3, 4), (1, 1, 2)]:
        with pytest.raises(Fenced):
            advance(store, place, lane, before, 9, lanes=lanes)
    assert progress(store, place) == LaneProgress(2, {0: 3})


def test_lane_is_fenced_like_a_move(store):
    """Neither behind another cursor nor in another epoch does a lane come further."""
    claim(store, "one", [0])
    before = enter(store, 0, "one")
    advance(store, before, 0, 0, 3)
    expire(store, "one")
    claim(store, "two", [0])
    after = enter(store, 0, "two")
    for place in (before, Place("a", after.epoch), Place(f"{FIRST} ", after.epoch)):
        with pytest.raises(Fenced):
            advance(store, place, 0, 3, 4)
        with pytest.raises(Fenced):
            advance(store, place, 1, 0, 4)
    with pytest.raises(Fenced):
        advance(store, after, 0, 0, 1, partition=1)
    assert progress(store, after) == LaneProgress(2, {0: 3})
    advance(store, after, 0, 3, 4)
    assert progress(store, after) == LaneProgress(2, {0: 4})


def test_lanes_begin_again_behind_the_next_cursor(store):
    """What was counted behind the cursor before does not count, cleared or not."""
    place = load(store, 0)
    advance(store, place, 0, 0, 3)
    advance(store, place, 1, 0, 4)
    move(store, 0, place, "a")
    there = Place("a", place.epoch)
    assert progress(store, there) is None
    advance(store, there, 0, 0, 2, lanes=3)
    assert progress(store, there) == LaneProgress(3, {0: 2})
    call(store, store.lanes.clear, 0)
    assert progress(store, there) is None
    assert progress(store, place) is None


def test_lane_that_was_rolled_back_has_not_moved(store):
    """How far a lane has come is of one moment with its effects."""
    place = load(store, 0)
    with store.engine.connect() as connection:
        store.lanes.advance(connection, NAME, 0, place, lane=0, lanes=2, before=0, after=3)
        connection.rollback()
    assert progress(store, place) is None


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_lanes_work_side_by_side_and_cursor_waits(request, database, level):
    """Lanes do not wait for each other; who moves the cursor or enters waits for all of them."""
    store = at(new_store(request.getfixturevalue(database)), level)
    place = load(store, 0)
    claim(store, "two", [0])
    entered = []

    def come_in():
        try:
            entered.append(enter(store, 0, "two"))
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            entered.append(error)

    with store.engine.connect() as one, store.engine.connect() as other:
        for lane, connection in enumerate([one, other]):
            store.lanes.advance(connection, NAME, 0, place, lane=lane, lanes=2, before=0, after=1)
        thread = threading.Thread(target=come_in)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        one.commit()
        other.commit()
        thread.join()
    if entered[0] != Place(FIRST, 1):
        assert is_transient(entered[0])
        entered = [enter(store, 0, "two")]
    assert progress(store, entered[0]) == LaneProgress(2, {0: 1, 1: 1})
    with pytest.raises(Fenced):
        advance(store, place, 0, 1, 2)


def test_lane_that_waited_for_the_cursor_is_fenced(engine):
    """A lane that begins while the right to the cursor passes on does not count."""
    store = new_store(engine)
    place = load(store, 0)
    results = []

    def come_further():
        try:
            results.append(advance(store, place, 0, 0, 1))
        except Exception as error:  # noqa: BLE001 - which one is looked at below
            results.append(error)

    with store.engine.connect() as connection:
        store.set(connection, NAME, 0, FIRST)
        thread = threading.Thread(target=come_further)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        connection.commit()
        thread.join()
    assert isinstance(results[0], Fenced)
    assert progress(store, load(store, 0)) is None
