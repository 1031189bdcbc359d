"""Offsets: the ranges between two of them, and in which order these are read."""

from zeroeventhub import FIRST
from zeroeventhub.bulk.offsets import Offsets, Range, chains


def test_ranges_come_after_those_that_are_read_before_them():
    """A child is read after its parent, and from a feed that cannot stop so many events more."""
    end = Offsets({0: "z", 1: "b", 2: "c"}, starts_after={0: 2}, counts={1: 7, 2: 9})
    start = Offsets({1: "a"}, counts={1: 5})
    assert sorted(chains(start, end), key=len) == [
        [Range(1, "a", "b", 2)],
        [Range(2, FIRST, "c", 9), Range(0, FIRST, "z")],
    ]
