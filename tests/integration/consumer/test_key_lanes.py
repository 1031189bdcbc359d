"""Lanes: events of different keys beside each other, each key's in order, and one cursor."""

import asyncio
import threading
from itertools import chain, repeat
from random import Random

import pytest
from harness.deliveries import NAME, Poison, Shop, effects, event, failing, write, write_page
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from zeroeventhub import Event, Failures
from zeroeventhub._follow import Advance, Deliver, Place
from zeroeventhub.consumer.applying.lanes import lane_of
from zeroeventhub.errors import ConfigurationError, Fenced
from zeroeventhub.protocol import Page

KEYS = [None, "a", "b", "c", "d", "e"]
PATIENCE = 30


def taking_events(apply):
    """Say that a function takes events."""

    def applying(connection: Connection, one: Event) -> None:
        apply(connection, one)

    return applying


def pages(seed, count):
    """Make a stream of events with keys."""
    random = Random(seed)
    return [event(n, random.choice(KEYS)) for n in range(count)]


def progress(shop):
    """Look up how far lanes have come."""
    with shop.engine.begin() as connection:
        place = shop.store.load(connection, NAME, 0)
        found = shop.store.lanes.progress(connection, NAME, 0, place)
    return None if found is None else (found.lanes, dict(found.done))


def assert_in_order(shop, stream):
    """Check that every event has taken effect once, and those of each key in order."""
    landed = shop.landed()
    assert sorted(landed) == sorted(one.data["n"] for one in stream)
    for key in KEYS:
        mine = [one.data["n"] for one in stream if one.data.get("subject") == key]
        assert [n for n in landed if n in mine] == mine


def test_page_is_applied_in_lanes_with_one_cursor(shop):
    """Every event of a page is applied once, in its key's order, and no progress is left."""
    stream = pages(1, 40)
    deliveries = shop.to(write_page, lanes=4)
    deliveries.deliver(shop.step(*stream[:30], to="30"))
    deliveries.deliver(shop.step(*stream[30:], to="40"))
    assert_in_order(shop, stream)
    assert (shop.place().cursor, progress(shop)) == ("40", None)
    with shop.engine.connect() as connection:
        assert connection.execute(select(shop.store.tables.lanes)).all() == []
    assert sum(count for (count,) in shop.observer["committed"]) == 40


def test_lanes_are_applied_beside_each_other_in_threads(sync_shop):
    """Two lanes are inside of apply at the same time, where the database has several writers."""
    if sync_shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer.")
    meeting = threading.Barrier(2)

    def apply(connection, page):
        """Wait for the other lane."""
        meeting.wait(PATIENCE)
        write_page(connection, page)

    sync_shop.to(apply, lanes=2).deliver(sync_shop.step(*two_lanes()))
    assert sorted(sync_shop.landed()) == [1, 2]


def test_lanes_are_applied_beside_each_other_in_tasks(async_shop):
    """Two lanes are inside of an async apply at the same time."""
    if async_shop.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer.")
    inside, meeting = [], asyncio.Event()

    async def apply(connection: AsyncConnection, one: Event) -> None:
        """Wait for the other lane."""
        inside.append(one)
        if len(inside) == 2:
            meeting.set()
        async with asyncio.timeout(PATIENCE):
            await meeting.wait()
        await connection.run_sync(write, [one])

    async_shop.to(apply, lanes=2).deliver(async_shop.step(*two_lanes()))
    assert sorted(async_shop.landed()) == [1, 2]


def two_lanes(lanes=2):
    """Make one event for each of two lanes, 0 and 1."""
    first = next(key for key in "abcdefgh" if lane_of(key, lanes) == 0)
    second = next(key for key in "abcdefgh" if lane_of(key, lanes) == 1)
    return event(1, first), event(2, second)


def test_lane_that_fails_does_not_undo_the_others(shop):
    """What other lanes have committed stays, the cursor waits, and only the rest comes again."""
    seen = []
    step = shop.step(*two_lanes())
    with pytest.raises(Poison):
        shop.to(taking_events(failing(2, seen=seen)), lanes=2).deliver(step)
    assert (shop.landed(), shop.place(), progress(shop)) == ([1], step.place, (2, {0: 2}))
    assert shop.observer["failed"] == [["Poison", 1]]
    shop.to(taking_events(failing(seen=seen)), lanes=2).deliver(step)
    assert (shop.landed(), shop.place().cursor, progress(shop)) == ([1, 2], "1", None)
    assert sorted(seen) == [1, 2, 2]
    assert shop.observer["committed"] == [[1], [1]]


def test_same_deliveries_go_on_with_what_is_left(shop):
    """Whoever has seen a lane fail applies it again, and not the others."""
    left = [1]

    def apply(connection: Connection, one: Event) -> None:
        """Fail once."""
        write(connection, [one])
        if one.data["n"] == 2 and left:
            left.pop()
            raise Poison

    deliveries, step = shop.to(apply, lanes=2), shop.step(*two_lanes())
    with pytest.raises(Poison):
        deliveries.deliver(step)
    deliveries.deliver(step)
    assert (shop.landed(), shop.place().cursor) == ([1, 2], "1")


def test_progress_is_finished_with_the_lanes_that_it_was_made_with(shop):
    """Another number of lanes is only taken up when nothing is left of the old one."""
    stream = pages(2, 20)
    with pytest.raises(Poison):
        shop.to(taking_events(failing(19)), lanes=3).deliver(shop.step(*stream, to="20"))
    assert progress(shop)[0] == 3
    for lanes, (start, end) in zip([1, 5, 2], [(0, 4), (4, 12), (12, 20)], strict=True):
        shop.to(write_page, lanes=lanes).deliver(shop.step(*stream[start:end], to=f"to {end}"))
        if end < 20:
            # Longer than what was read again: the lanes that are ahead stay ahead.
            assert progress(shop)[0] == 3
    assert_in_order(shop, stream)
    assert progress(shop) is None


def test_cursor_that_moves_over_no_events_keeps_what_lanes_have_done(shop):
    """A page that brings only a checkpoint, when it is read again, repeats nothing."""
    step = shop.step(*two_lanes(), to="2")
    with pytest.raises(Poison):
        shop.to(taking_events(failing(2)), lanes=2).deliver(step)
    shop.to(write_page, lanes=2).advance(Advance(0, step.place, "1"))
    assert (shop.place().cursor, progress(shop)) == ("1", (2, {0: 2}))
    shop.to(write_page, lanes=2).deliver(shop.step(*two_lanes(), to="2"))
    assert shop.landed() == [1, 2]


def test_advance_is_fenced(shop):
    """A cursor that has moved is not moved over no events."""
    with pytest.raises(Fenced):
        shop.to(write_page).advance(Advance(0, Place("elsewhere"), "1"))


def test_lane_of_a_process_that_lost_its_right_is_fenced(shop):
    """No lane of an older epoch commits anything."""
    step = shop.step(*two_lanes())
    stale = Deliver(0, Place(step.place.cursor, step.place.epoch + 1), step.page)
    with pytest.raises(Fenced):
        shop.to(write_page, lanes=2).deliver(stale)
    assert (shop.landed(), progress(shop)) == ([], None)


def test_page_of_one_lane_takes_one_transaction(shop):
    """Where only one lane has anything to do, it moves the cursor itself."""
    shop.to(write_page, lanes=4).deliver(shop.step(event(1, "a"), event(2, "a")))
    assert shop.observer["applying"] == [[[1, 2]]]
    assert shop.observer["committed"] == [[2]]


def test_lanes_set_aside_and_hold_back_what_fails(shop):
    """Each lane writes the letters of its own events."""
    failures = Failures(tries=1, then="set-aside", hold_back=True)
    stream = [event(n, key) for n, key in enumerate("abcabcabc")]
    deliveries = shop.to(taking_events(failing(0, 4)), lanes=3, failures=failures)
    deliveries.deliver(shop.step(*stream, set_aside=True))
    assert sorted(shop.landed()) == [1, 2, 5, 8]
    assert sorted(shop.letters()) == [
        (0, "failed", 1), (3, "held", 0), (4, "failed", 1), (6, "held", 0), (7, "held", 0),
    ]  # fmt: skip


def test_more_lanes_than_one_need_a_key_and_no_fewer_than_one_can_be(sqlite):
    """What cannot work is refused where it is said."""
    shop = Shop(sqlite)
    with pytest.raises(ConfigurationError, match="lanes is 1 or more"):
        shop.to(write_page, lanes=0)
    with pytest.raises(ConfigurationError, match="key is a function"):
        shop.to(write_page, lanes=2, key=None)


class Crashed(BaseException):
    """Stands for the end of a process."""


def test_crashes_anywhere_neither_lose_nor_repeat_nor_reorder(sync_shop):
    """Lanes crash at any event, pages are read again in any size, with any number of lanes."""
    shop = sync_shop

    @settings(
        max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.data())
    def crash(data):
        with shop.engine.begin() as connection:
            shop.store.reset(connection, NAME)
            connection.execute(delete(effects))
        keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=14), label="keys")
        stream = [event(n, key) for n, key in enumerate(keys)]
        crashes = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=4), label="crashes")
        shop.place()
        reads = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 10)), max_size=8)
        start, plan = 0, data.draw(reads, label="lanes and sizes")
        for number, (lanes, wanted) in enumerate(chain(plan, repeat((2, 5)))):
            if start == len(stream):
                break
            size = min(wanted, len(stream) - start)
            deliveries = shop.to(taking_events(crashing(crashes)), lanes=lanes)
            end, place = start + size, shop.place()
            cursor = f"{end}, {number}"
            try:
                if size == 0:
                    deliveries.advance(Advance(0, place, cursor))
                else:
                    page = Page(stream[start:end], cursor)
                    deliveries.deliver(Deliver(0, place, page))
            except (Crashed, Poison):
                assert shop.place() == place
            else:
                start = end
        assert_in_order(shop, stream)
        assert progress(shop) is None

    crash()


def crashing(crashes):
    """Make a function that writes events, and once each crashes or raises at some."""
    lock = threading.Lock()

    def apply(connection, one):
        write(connection, [one])
        with lock:
            ends = one.data["n"] in crashes
            if ends:
                crashes.remove(one.data["n"])
        if ends:
            raise (Crashed if one.data["n"] % 2 else Poison)

    return apply
