"""Every interleaving of writers and the low mark of an outbox, and mistakes it must find."""

from itertools import combinations

WRITER = ("begin", "draw", "end")
BATCH = ("enter", "move", "mark")
BATCHES = 3


class Outbox:
    """An outbox whose dead rows are left out below a mark; a batch moves one row at most."""

    amount = 1

    def __init__(self):
        self.id = self.completed = self.sequence = 0
        self.running = {}
        self.visible = set()
        self.lost = False
        self.low, self.next_low, self.boundary = 0, None, None
        self.drawn = {}

    def begin(self, writer):
        """Take an id, by writing an event, before a number is drawn for it."""
        self.id += 1
        self.running[writer] = self.id

    def draw(self, writer):
        """Draw the number of a note."""
        self.sequence += 1
        self.drawn[writer] = self.sequence

    def end(self, writer):
        """Let everybody see the note."""
        self.completed = max(self.completed, self.running.pop(writer))
        self.visible.add(self.drawn.pop(writer))

    def enter(self, batch):
        """Begin a batch: take an id, and see whether nobody below the boundary is open."""
        self.begin(batch)
        self.decided = self.boundary is not None and min(self.running.values()) >= self.boundary

    def move(self, batch):
        """Move the first rows above the mark that are visible."""
        found = sorted(number for number in self.visible if number > self.low)
        self.moved = found[: self.amount]
        self.visible -= set(self.moved)

    def mark(self, batch):
        """Let the mark follow, and end the batch."""
        if self.decided:
            self.low = self.reach()
        if self.next_low is None or self.next_low <= self.low:
            self.next_low, self.boundary = self.sequence, self.first_boundary()
        elif self.boundary is None:
            self.boundary = self.running[batch]
        self.completed = max(self.completed, self.running.pop(batch))
        left = {*self.visible, *self.drawn.values()}
        self.lost = any(number <= self.low for number in left)

    def reach(self):
        """Return how far everything that was decided has been moved."""
        if len(self.moved) < self.amount:
            return self.next_low
        return max(self.low, min(self.next_low, self.moved[-1]))

    def first_boundary(self):
        """Return the boundary in the batch that has read the number: there is none yet."""


def is_sound(model=Outbox, writers=2, before=0):
    """Tell whether no interleaving lets the mark pass a row that has not been moved.

    Args:
        model: the outbox.
        writers: how many write beside the batches.
        before: how many have written before.
    """
    batches = BATCH * BATCHES
    places = range(len(batches) + writers * len(WRITER))
    for of_batches in combinations(places, len(batches)):
        rest = [place for place in places if place not in of_batches]
        for of_first in combinations(rest, len(WRITER)):
            world = model()
            for number in range(before):
                for step in WRITER:
                    getattr(world, step)(f"earlier {number}")
            programs = {"batch": iter(batches), "first": iter(WRITER), "second": iter(WRITER)}
            for place in places:
                who = "batch" if place in of_batches else "second"
                who = "first" if place in of_first else who
                getattr(world, next(programs[who]))(who)
                if world.lost:
                    return False
    return True


def test_no_interleaving_lets_the_mark_pass_a_row():
    """Two writers and three batches can take their steps in any order there is."""
    assert is_sound()
    assert is_sound(writers=1, before=5)


def test_boundary_behind_the_last_id_that_has_ended_is_found():
    """An id that was given and has not ended may lie above the last that has."""

    class Snapshot(Outbox):
        def first_boundary(self):
            return self.completed + 1

    assert not is_sound(Snapshot)


def test_mark_that_passes_what_did_not_fit_is_found():
    """What is decided has not been moved as long as there is more than fits into a batch."""

    class Impatient(Outbox):
        def reach(self):
            return self.next_low

    assert not is_sound(Impatient, writers=1, before=5)


def test_mark_that_follows_at_once_is_found():
    """A number that was drawn is not yet decided."""

    class Hasty(Outbox):
        def enter(self, batch):
            super().enter(batch)
            self.decided = self.next_low is not None

    assert not is_sound(Hasty)
