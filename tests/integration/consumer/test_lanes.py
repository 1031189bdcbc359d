"""Lanes: events of different keys beside each other, each key's in order, and one cursor."""

import threading
from itertools import chain, repeat
from random import Random

import pytest
from harness.deliveries import (
    Inside,
    Poison,
    effects,
    event,
    failing,
    halting,
    numbers,
    write,
    write_page,
)
from harness.statements import count_of, execute
from harness.stores import advance, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, text

from zeroeventhub import Event, Failures
from zeroeventhub.errors import ConfigurationError, Halted, TokenChanged, TooManyDeadLetters
from zeroeventhub.extensions import COMPACTED

KEYS = [None, "a", "d", "c", "f", "j", "é"]


def assert_in_order(shop, stream):
    """Check that every event has taken effect once, and those of each key in order."""
    landed = shop.landed()
    assert sorted(landed) == sorted(numbers(stream))
    for key in KEYS:
        mine = numbers(one for one in stream if one.data.get("subject") == key)
        assert [n for n in landed if n in mine] == mine


def test_page_is_applied_in_lanes_with_one_cursor(every_shop):
    """Every event of a page is applied once, in its key's order, and no progress is left."""
    shop, random = every_shop, Random(1)
    stream = [event(n, random.choice(KEYS)) for n in range(40)]
    shop.feed.publish(*stream)
    shop.run(write_page, lanes=4, limit=30)
    assert_in_order(shop, stream)
    assert (shop.cursor(), shop.lanes()) == ("40", None)
    assert count_of(shop.engine, shop.store.tables.lanes) == 0
    assert sum(count for (count,) in shop.observer["committed"]) == 40


def two_lanes():
    """Make one event for each of two lanes, 0 and 1."""
    return event(1, "d"), event(2, "a")


def test_lane_that_fails_does_not_undo_the_others(either_shop):
    """What other lanes have committed stays, the cursor waits, and only the rest comes again."""
    shop, seen = either_shop, []
    shop.feed.publish(*two_lanes())
    shop.put("0")
    with halting(Poison):
        shop.run(failing(2, seen=seen), lanes=2, failures=Failures(tries=2))
    assert (shop.landed(), shop.cursor(), shop.lanes()) == ([1], "0", (2, {0: 2}))
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)]
    shop.run(failing(seen=seen), lanes=2)
    assert (shop.landed(), shop.cursor(), shop.lanes()) == ([1, 2], "2", None)
    assert (seen.count(1), seen.count(2)) == (1, 3)
    assert shop.observer["committed"] == [(1,), (1,)]


def test_keys_keep_their_lanes(sync_shop):
    """A page that was begun is finished by other processes, and later releases, in its lanes."""
    keys = {"a": 4, "c": 0, "d": 2, "f": 5, "j": 6, "k": 1, "v": 3, "é": 4}
    sync_shop.feed.publish(*[event(n, key) for n, key in enumerate(keys)], event(9))
    sync_shop.put("0")
    with halting(Poison):
        sync_shop.run(failing(9), lanes=7)
    assert sync_shop.lanes() == (7, dict.fromkeys(set(keys.values()) - {0}, len(keys) + 1))


def test_no_more_lanes_write_than_there_are_now(postgresql_shop):
    """A page that was begun in many lanes is finished by few at a time."""
    shop, inside = postgresql_shop, Inside()
    shop.feed.publish(*[event(n, key) for n, key in enumerate("acdfjkv")])
    shop.put("0")
    with halting(Poison):
        shop.run(failing(*range(6)), lanes=7)
    assert shop.landed() == [6]

    def slow(connection, page):
        connection.execute(text("SELECT pg_sleep(0.02)"))
        write_page(connection, page)

    shop.run(slow, lanes=2, observer=inside)
    assert (inside.most, len(shop.landed())) == (2, 7)


@pytest.mark.parametrize(("holds", "most"), [(False, 5), (True, 10)])
def test_lanes_together_set_no_more_aside_than_a_partition_may_have(postgresql_shop, holds, most):
    """Where events of each lane fail, or are held back, the partition halts with no more."""
    shop, keys = postgresql_shop, "acdfjkv"
    aside = Failures(1, "set-aside", hold_back=holds, at_most=most)
    shop.put("0")

    def slow(connection, one: Event):
        connection.execute(text("SELECT pg_sleep(0.02)"))
        raise Poison(one.data["n"])

    if holds:
        shop.feed.publish(*[event(n, key) for n, key in enumerate(keys)])
        shop.run(slow, lanes=7, failures=aside)
    shop.feed.publish(*[event(n, key) for n, key in enumerate(keys * 2)])
    with halting(TooManyDeadLetters):
        shop.run(slow, lanes=7, failures=aside)
    assert count_of(shop.engine, shop.store.tables.dead_letters) <= most


def test_progress_that_a_run_remembers_is_of_one_place(shop):
    """Lanes that were ahead begin anew where an operator moves the cursor between two readings."""
    shop.feed.publish(*[event(n, "da"[n % 2]) for n in range(8)])
    shop.put("0")
    with halting(Poison):
        shop.run(failing(7), lanes=2)
    assert (shop.landed(), shop.lanes()) == ([0, 2, 4, 6], (2, {0: 8}))
    shop.feed.trouble[0, "4"] = [TokenChanged("The partitions have changed.")]
    describe, moves = shop.feed.info, ["0"]

    def info():
        if not shop.feed.trouble[0, "4"] and moves:
            shop.put(moves.pop())
        return describe()

    shop.feed.info = info
    shop.run(write_page, lanes=2, limit=4)
    assert sorted(shop.landed()) == sorted([0, 2, 4, 6, 1, 3, *range(8)])


@pytest.mark.parametrize(("cursor", "extensions"), [("_first", ()), ("0", [COMPACTED])])
def test_page_that_may_lose_events_takes_one_transaction(sync_shop, cursor, extensions):
    """Events that a trim or compaction removes from a page in work hide no later ones."""
    shop = sync_shop
    shop.feed.extensions |= {*extensions}
    shop.feed.publish(*two_lanes(), event(3, "d"), event(4, "a"))
    shop.put(cursor)
    with halting(Poison):
        shop.run(failing(2), lanes=2)
    del shop.feed.logs[0][0]
    shop.feed.publish(event(5, "d"))
    shop.run(failing(), lanes=2)
    assert shop.landed()[-3:] == [3, 4, 5]


def test_page_that_lanes_have_begun_before_the_feed_was_compacted_is_not_counted_on(sync_shop):
    """A feed that begins to be compacted while a page is half applied halts, and skips nothing."""
    shop = sync_shop
    shop.feed.publish(*two_lanes(), event(3, "d"), event(4, "a"))
    shop.put("0")
    with halting(Poison):
        shop.run(failing(2), lanes=2)
    shop.feed.extensions |= {COMPACTED}
    del shop.feed.logs[0][0]
    shop.feed.publish(event(5, "d"))
    with halting(ConfigurationError, "zeroeventhub cursors set"):
        shop.run(failing(), lanes=2)
    assert shop.landed() == [1, 3]
    shop.put("0")
    shop.run(failing(), lanes=2)
    assert shop.landed() == [1, 3, 2, 3, 4, 5]


def test_page_that_lanes_have_begun_is_not_read_one_by_one(sync_shop):
    """A loop of one's own knows nothing of lanes, and would apply again what they have applied."""
    shop = sync_shop
    shop.feed.publish(*two_lanes())
    before = shop.page()
    advance(shop.store, load(shop.store, 0), 1, 0, 2)
    for page in (before, shop.page()):
        with (
            pytest.raises(ConfigurationError, match="let `run` finish the page"),
            shop.engine.begin() as connection,
        ):
            page.commit(connection)
    assert shop.cursor() == "_first"


def test_page_that_lanes_have_begun_is_not_passed_where_it_begins_without_events(sync_shop):
    """A loop that reads less at once, and so no event first, keeps what lanes have applied."""
    shop = sync_shop
    shop.feed.publish(None, *two_lanes())
    shop.put("0")
    with halting(Poison):
        shop.run(failing(2), lanes=2)
    with pytest.raises(ConfigurationError, match="let `run` finish the page"):
        shop.page(limit=1)
    shop.run(failing())
    assert shop.landed() == [1, 2]


def test_crashes_anywhere_neither_lose_nor_repeat_nor_reorder(sync_shop):
    """Lanes crash at any event, pages are read again in any size, with any number of lanes."""
    shop = sync_shop

    @settings(max_examples=10, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def crash(data):
        shop.put("0")
        execute(shop.engine, delete(effects))
        keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=14), label="keys")
        stream = [event(n, key) for n, key in enumerate(keys)]
        crashes = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=4), label="crashes")
        sizes = st.tuples(st.integers(1, 4), st.integers(1, 10))
        plan = data.draw(st.lists(sizes, max_size=6), label="lanes and sizes")
        holes = data.draw(st.sets(st.integers(0, len(keys))), label="positions without an event")
        shop.feed.logs[0] = [
            one
            for n, each in enumerate([*stream, None])
            for one in ([None, each] if n in holes else [each])
        ]
        for lanes, limit in chain(plan, repeat((2, 5))):
            try:
                shop.run(crashing(crashes), lanes=lanes, limit=limit)
            except (SystemExit, Halted):
                continue
            break
        assert_in_order(shop, stream)
        assert shop.lanes() is None

    crash()


def crashing(crashes):
    """Make a function that writes events, and once each crashes or raises at some."""
    lock = threading.Lock()

    def apply(connection, one: Event):
        write(connection, [one])
        with lock:
            ends = one.data["n"] in crashes
            if ends:
                crashes.remove(one.data["n"])
        if ends:
            raise (SystemExit if one.data["n"] % 2 else Poison)

    return apply
