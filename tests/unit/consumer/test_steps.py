"""How often a step is tried, how long the pauses are, and when a page moves the cursor."""

import random

import pytest
from harness.followed import ONE, World, follow, leased, of_kind, read

from zeroeventhub import Event, Page
from zeroeventhub.consumer.steps import Discover, Fetch, Pause
from zeroeventhub.errors import ProtocolError, Unavailable, Unreachable


def pauses(count, error):
    """The seconds of the pauses between a row of equal failures."""
    world = World(ONE, answers={Discover: [error] * count})
    return [pause.seconds for pause in of_kind(follow(world, attempts=None), Pause)]


def test_pauses_grow_up_to_a_ceiling_and_start_anew_after_a_success():
    """Pauses are random below a ceiling that doubles with each attempt, up to half a minute."""
    random.seed(1)
    rows = zip(*(pauses(12, Unreachable("away")) for _ in range(100)), strict=True)
    ceilings = [min(30, 0.1 * 2**attempt) for attempt in range(1, 13)]
    for seconds, ceiling in zip(map(max, rows), ceilings, strict=True):
        assert ceiling / 2 < seconds <= ceiling
    failures = [Unreachable("away")] * 10
    world = World(ONE, {0: ["a", "b"]}, answers={Fetch: [*failures, None, failures[0]]})
    follow(world, attempts=None)
    assert of_kind(world.taken, Pause)[-1].seconds <= 0.2


def test_feed_is_left_alone_for_as_long_as_it_asks():
    """A pause is at least as long as the feed asked for, up to half a minute."""
    assert all(seconds >= 20 for seconds in pauses(20, Unavailable("busy", retry_after=20)))
    assert pauses(20, Unavailable("busy", retry_after=1e9)) == [30] * 20


def test_events_that_do_not_move_the_cursor_are_refused():
    """They would come again for ever."""
    world = leased("a")
    world.page = lambda step: Page([Event.of("a")], step.cursor)
    with pytest.raises(ProtocolError, match="without moving the cursor"):
        read(world)
