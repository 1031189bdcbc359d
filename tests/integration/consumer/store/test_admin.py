"""What an operator sees of cursors, and does to them."""

import pytest
from harness.stores import NAME, advance, call, claim, cursor, end, expire, inherit, load, progress

from zeroeventhub import FIRST, LAST, Event
from zeroeventhub.errors import ConfigurationError, TokenChanged


def unseen(store, ids, partition=0, **options):
    """Note ids of events, and return those that are new."""
    return call(store, store.inbox.unseen, partition, ids, **options)


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


def test_operator_sets_a_cursor(store):
    """A cursor is set whether it was there or not, and lanes that counted from it are forgotten."""
    place = load(store, 0)
    advance(store, place, 0, 0, 3)
    end(store, 0, place)
    call(store, store.set, 0, FIRST)
    assert (cursor(store, 0), load(store, 0).epoch) == (FIRST, 1)
    assert progress(store, place) is None
    assert not call(store, store.standings)[0].ended
    call(store, store.set, 7, LAST)
    assert cursor(store, 7) == LAST
    load(store, 8, start="a")
    inherit(store, {9: [8]})
    call(store, store.set, 8, "b")
    assert cursor(store, 8) == "b"


@pytest.mark.parametrize(
    ("name", "partition", "cursor"),
    [(NAME, 0, ""), (NAME, 0, "x" * 4097), ("x" * 201, 0, "a"), (NAME, 32768, "a")],
)
def test_what_no_consumer_can_have_is_not_set(any_store, name, partition, cursor):
    """A cursor, a name or a partition that cannot be is refused, and nothing is changed."""
    load(any_store, 1)
    with pytest.raises(ConfigurationError):
        call(any_store, any_store.set, partition, cursor, name=name)
    assert [one.partition for one in call(any_store, any_store.standings, name=None)] == [1]


def test_reset_forgets_what_would_keep_events_from_being_applied(store):
    """A consumer that starts again starts as if it were new, and others are left alone."""
    for name in (NAME, "audit"):
        for partition in (0, 1):
            call(store, store.set, partition, "a", name=name)
            unseen(store, [str(partition)], partition, name=name)
    add, here = store.dead_letters.add, load(store, 0)
    for partition in (0, 1):
        call(store, add, partition, Event.of(1), key=None, error=ValueError("no"), tries=1)
        advance(store, load(store, partition), 0, 0, 2, partition=partition)
    end(store, 1, load(store, 1))
    assert call(store, store.reset, [1]) == 1
    assert (cursor(store, 0), cursor(store, 1)) == ("a", FIRST)
    assert not any(one.ended for one in call(store, store.standings))
    assert [one.partition for one in call(store, store.dead_letters.letters)] == [0]
    assert unseen(store, ["0", "1"]) == {"1"}
    assert progress(store, here) == (2, {0: 2})
    assert call(store, store.reset, cursor="b") == 2
    assert (cursor(store, 0), cursor(store, 1)) == ("b", "b")
    assert call(store, store.dead_letters.letters) == []
    assert unseen(store, ["0", "1"]) == {"0", "1"}
    assert progress(store, here) is None
    assert call(store, store.cursors, name="audit") == {0: "a", 1: "a"}
    assert unseen(store, ["0", "1"], name="audit") == set()


def test_reset_of_an_heir_forgets_events_of_its_parents(any_store):
    """Events that came by a partition that is gone come again, and are then applied again."""
    store = any_store
    load(store, 0, start="a")
    unseen(store, ["x"])
    inherit(store, {1: [0], 2: [0]})
    assert unseen(store, ["x"], 1) == set()
    assert call(store, store.reset, [1]) == 1
    assert unseen(store, ["x"], 1) == {"x"}
    assert call(store, store.reset) == 2
    with pytest.raises(TokenChanged):
        load(store, 0)
