"""Every interleaving of writers and a reader of a gate, and mistakes that it must find."""

from dataclasses import dataclass, field
from itertools import combinations

import pytest

from zeroeventhub.publisher.ordering.postgresql.gated import lowest, restore

WRITER = ("enter", "draw", "draw", "end")
READER = ("number", "marks", "judge")


@dataclass
class Database:
    """A sequence, open writers with their marks and numbers, and what a reader has read."""

    sequence: int = 0
    marks: dict[int, int] = field(default_factory=dict)
    drawn: dict[int, list[int]] = field(default_factory=dict)
    number: int = 0
    seen: tuple[int, ...] = ()

    def enter(self, writer):
        """Leave a mark that holds the last number drawn, in the trigger before an INSERT."""
        self.marks[writer] = self.sequence

    def draw(self, writer):
        """Draw a number, which only this transaction can make visible."""
        self.sequence += 1
        self.drawn.setdefault(writer, []).append(self.sequence)

    def end(self, writer):
        """Commit or abort: the numbers are decided, and the mark goes."""
        self.drawn.pop(writer, None)
        self.marks.pop(writer, None)

    def read(self, step):
        """Take a reader's step; return whether what it would read up to is decided."""
        if step == "number":
            self.number = self.sequence
        elif step == "marks":
            self.seen = tuple(self.marks.values())
        else:
            horizon = lowest(self.number, self.seen)
            return all(number > horizon for open_ in self.drawn.values() for number in open_)
        return True


def is_sound(reader=READER, writer=WRITER, database=Database):
    """Tell whether no interleaving of two writers and a reader reads what is not decided."""
    places = range(2 * len(writer) + len(reader))
    for of_reader in combinations(places, len(reader)):
        rest = [place for place in places if place not in of_reader]
        for of_first in combinations(rest, len(writer)):
            world, programs = database(), [iter(reader), iter(writer), iter(writer)]
            for place in places:
                who = 0 if place in of_reader else 1 if place in of_first else 2
                step = next(programs[who])
                if who:
                    getattr(world, step)(who)
                elif not world.read(step):
                    return False
    return True


def test_no_interleaving_reads_what_is_not_decided():
    """Two writers and a reader can take their steps in any order there is."""
    assert is_sound()


def test_marks_read_before_the_number_are_found():
    """A reader that looks at the marks first misses a writer that comes in between."""
    assert not is_sound(reader=("marks", "number", "judge"))


def test_mark_left_behind_a_number_is_found():
    """A writer that draws before it leaves its mark is not held by it."""
    assert not is_sound(writer=("draw", "enter", "draw", "end"))


def test_mark_that_does_not_hold_the_last_number_is_found():
    """A mark that is one too high lets the writer's first number pass."""

    class HighMark(Database):
        def enter(self, writer):
            self.marks[writer] = self.sequence + 1

    assert not is_sound(database=HighMark)


def test_mark_that_goes_before_the_numbers_are_decided_is_found():
    """A lock of the statement in place of the transaction is given up too early."""

    class EarlyRelease(Database):
        def draw(self, writer):
            super().draw(writer)
            self.marks.pop(writer, None)

    assert not is_sound(database=EarlyRelease)


@pytest.mark.parametrize("mark", [0, 5, 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**62])
@pytest.mark.parametrize("distance", [-1000, 0, 1, 2**31 - 1])
def test_mark_is_completed_from_its_low_bits(mark, distance):
    """A mark is found again from 32 of its bits, also if it was left behind the last number."""
    number = max(mark + distance, 0)
    assert restore(mark % 2**32, number) == mark
