"""The inbox on every database: what was seen is told from what was not, exactly."""

import pytest
from harness.statements import execute
from harness.stores import NAME, call, is_refused_for_now, kept_waiting, new_store, unseen
from sqlalchemy import update

from zeroeventhub.errors import StoreUnavailable


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
