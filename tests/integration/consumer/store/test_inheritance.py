"""Cursors of partitions that are gone, handed to those that go on from there."""

from dataclasses import replace

import pytest
from harness.stores import (
    NAME,
    advance,
    at,
    call,
    cursor,
    inherit,
    kept_waiting,
    load,
    move,
    new_store,
)
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, Event
from zeroeventhub.databases.errors import is_transient
from zeroeventhub.errors import Fenced, StoreUnavailable, TokenChanged


def test_heirs_start_where_their_parent_stood(store):
    """Every heir takes the nearest parent's cursor, and one that has its own keeps it."""
    for partition, start in [(0, "old"), (1, "near"), (4, "own")]:
        load(store, partition, start=start)
    inherit(store, {2: [1, 0], 3: [1], 4: [0], 5: [9]})
    assert [cursor(store, heir) for heir in (2, 3, 4, 5)] == ["near", "near", "own", FIRST]


def test_partition_that_was_taken_over_is_not_started_again(store):
    """A feed that still shows a parent, as during a deployment, does not repeat its events."""
    place = load(store, 0, start="a")
    inherit(store, {1: [0], 2: [0]})
    with pytest.raises(TokenChanged):
        load(store, 0)
    with pytest.raises(Fenced):
        move(store, 0, place, "b")
    assert call(store, store.cursors) == {1: "a", 2: "a"}
    move(store, 1, load(store, 1), "b")
    inherit(store, {1: [0], 2: [0]})
    assert call(store, store.cursors) == {1: "b", 2: "a"}


def test_partition_that_comes_back_takes_its_heirs_cursor(store):
    """A partition that was gone, and is now an heir of its heir, goes on from there, fenced."""
    place = load(store, 0, start="a")
    inherit(store, {1: [0]})
    move(store, 1, load(store, 1), "b")
    inherit(store, {0: [1]})
    assert load(store, 0) == replace(place, cursor="b", epoch=2)
    with pytest.raises(Fenced):
        move(store, 0, replace(place, cursor="b"), "c")


def test_heirs_see_a_commit_that_was_under_way(store):
    """An inheritance waits for a commit of the parent that has begun, and takes its cursor."""
    place = load(store, 0, start="a")
    with kept_waiting(store, inherit, store, {1: [0]}) as (connection, results):
        connection.execute(store.move(NAME, 0, place, "b"))
    assert results == [None]
    assert cursor(store, 1) == "b"


@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_heirs_take_no_cursor_of_an_older_snapshot(request, server):
    """A transaction that reads an old snapshot hands the newest cursor over, or tries again."""
    store = at(new_store(request.getfixturevalue(server)), "REPEATABLE READ")
    place = load(store, 0, start="a")
    with store.engine.connect() as connection:
        store.cursors(connection, NAME)
        move(store, 0, place, "b")
        try:
            store.inherit(connection, NAME, {1: [0]}, [1])
            connection.commit()
        except DBAPIError as error:
            assert is_transient(error)  # noqa: PT017 - or there is none
            connection.rollback()
            inherit(store, {1: [0]})
    assert cursor(store, 1) == "b"


def test_heirs_wait_for_lanes_that_are_half_done(store):
    """A cursor after which events are applied already is not handed over, or they would repeat."""
    place = load(store, 0, start="a")
    advance(store, place, 1, 0, 3)
    inherit(store, {1: [0]}, remaining=[0, 1])
    call(store, store.reset, [1], "z")
    with pytest.raises(StoreUnavailable, match="zeroeventhub cursors set"):
        inherit(store, {2: [0]}, remaining=[1, 2])
    assert load(store, 0) == place
    move(store, 0, place, "b")
    inherit(store, {2: [0]}, remaining=[1, 2])
    assert cursor(store, 2) == "b"


def test_heirs_get_the_dead_letters(store):
    """Letters of a partition that is gone are due in the first of its heirs."""
    add = store.dead_letters.add
    for partition in (0, 1):
        load(store, partition)
        call(store, add, partition, Event.of(1), key=None, error=ValueError("no"), tries=1)
    inherit(store, {2: [0], 3: [0, 1]}, remaining=[1, 2, 3])
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [2, 1]
