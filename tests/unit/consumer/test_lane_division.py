"""Lanes: what each has still to do of a page, however often and in whatever size it is read."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Event
from zeroeventhub.consumer.applying.lanes import divide, lane_of

keys = st.sampled_from([None, "a", "b", "c", "d", "é"])


def key_of(event):
    """The key of an event of these tests."""
    return event.data["k"]


def events_of(keys):
    """Events that are numbered, with these keys."""
    return [Event.of({"n": number, "k": key}) for number, key in enumerate(keys)]


@given(keys | st.just("\ud800"), st.integers(1, 64))
def test_lane_of_a_key_is_one_of_them(key, lanes):
    """A key has one lane, and events without a key share the first."""
    assert 0 <= lane_of(key, lanes) < lanes
    assert lane_of(None, lanes) == 0


def test_lane_of_a_key_is_the_same_in_every_process():
    """The lane does not hang on what a process hashes strings with."""
    code = """
from zeroeventhub.consumer.applying.lanes import lane_of
print([lane_of(c, 7) for c in 'abcdef'])
"""
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {f"{[lane_of(c, 7) for c in 'abcdef']}\n".encode()}


@given(st.data())
def test_each_event_is_decided_once_and_in_the_order_of_its_key(data):
    """Crashes between lanes, pages of other sizes and other numbers of lanes repeat nothing."""
    stream = events_of(data.draw(st.lists(keys, max_size=12), label="keys"))
    start, lanes, done, seen = 0, 1, {}, []
    while start < len(stream):
        if not done:
            lanes = data.draw(st.integers(1, 4), label="lanes")
        size = data.draw(st.integers(1, len(stream) - start), label="size")
        division = divide(stream[start : start + size], key_of, lanes=lanes, done=done)
        crashed = data.draw(
            st.sets(st.sampled_from([*[part.lane for part in division.parts], None])),
            label="crashed",
        )
        for part in division.parts:
            assert part.done == done.get(part.lane, 0)
            if part.lane not in crashed:
                seen += [event.data for event in part.events]
                done = {**done, part.lane: size}
        if not crashed:
            start, done = start + size, division.ahead
    assert sorted(event["n"] for event in seen) == list(range(len(stream)))
    for key in {event["k"] for event in seen}:
        mine = [event["n"] for event in seen if event["k"] == key]
        assert mine == sorted(mine)
