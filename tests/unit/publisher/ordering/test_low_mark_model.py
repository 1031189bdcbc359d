"""Every interleaving of writers and the low mark of an outbox, and mistakes it must find."""

from itertools import combinations

WRITER = ("lock", "draw", "end")
BATCH = ("check", "move", "follow", "number", "holders")
BATCHES = 2


class Outbox:
    """An outbox whose dead rows are left out below a mark; a batch moves one row at most."""

    amount = 1

    def __init__(self):
        self.sequence = 0
        self.holding = set()
        self.drawn = {}
        self.visible = set()
        self.moved = []
        self.decided = False
        self.low, self.next_low, self.holders = 0, None, None

    def lock(self, writer):
        """Take the lock that a note takes before it draws its number."""
        self.holding.add(writer)

    def draw(self, writer):
        """Draw the number of a note."""
        self.sequence += 1
        self.drawn[writer] = self.sequence

    def end(self, writer):
        """Let everybody see the note, and release the lock."""
        self.holding.remove(writer)
        self.visible.add(self.drawn.pop(writer))

    def check(self):
        """See whether those who held the lock have ended."""
        self.decided = self.holders is not None and not self.holders & self.holding

    def move(self):
        """Move the first rows above the mark that are visible."""
        found = sorted(number for number in self.visible if number > self.low)
        self.moved = found[: self.amount]
        self.visible -= set(self.moved)

    def follow(self):
        """Let the mark follow; end its round if it has come up."""
        if self.decided:
            self.low = self.reach()
        if self.next_low is not None and self.next_low <= self.low:
            self.next_low = self.holders = None

    def number(self):
        """Begin a round, if none is open, with the last number drawn."""
        if self.next_low is None:
            self.next_low = self.sequence

    def read_holders(self):
        """Read who holds the lock, behind the number of a new round."""
        if self.holders is None:
            self.holders = frozenset(self.holding)

    def reach(self):
        """Return how far everything that was decided has been moved."""
        if len(self.moved) < self.amount:
            return self.next_low
        return max(self.low, min(self.next_low, self.moved[-1]))

    @property
    def has_lost(self):
        """Tell whether the mark has passed a row that has not been moved."""
        return any(number <= self.low for number in (*self.visible, *self.drawn.values()))


def is_sound(model=Outbox, batch=BATCH, writers=2, before=0):
    """Tell whether no interleaving lets the mark pass a row that has not been moved.

    Args:
        model: the outbox.
        batch: the steps of a batch.
        writers: how many write beside the batches.
        before: how many have written before.
    """
    batches = batch * BATCHES
    places = range(len(batches) + writers * len(WRITER))
    for of_batches in combinations(places, len(batches)):
        rest = [place for place in places if place not in of_batches]
        for of_first in combinations(rest, len(WRITER)):
            world = model()
            for earlier in range(before):
                for step in WRITER:
                    getattr(world, step)(earlier)
            programs = {"batch": iter(batches), "first": iter(WRITER), "second": iter(WRITER)}
            for place in places:
                who = "batch" if place in of_batches else "first" if place in of_first else "second"
                step = next(programs[who])
                if who == "batch":
                    getattr(world, "read_holders" if step == "holders" else step)()
                else:
                    getattr(world, step)(who)
                if world.has_lost:
                    return False
    return True


def test_no_interleaving_lets_the_mark_pass_a_row():
    """Two writers and two batches can take their steps in any order there is."""
    assert is_sound()
    assert is_sound(writers=1, before=5)


def test_holders_read_before_the_number_are_found():
    """A writer that comes between the two readings has drawn, and is not waited for."""
    assert not is_sound(batch=("check", "move", "follow", "holders", "number"))


def test_check_behind_the_move_is_found():
    """Who ends between the move and the check was not seen by the move."""
    assert not is_sound(batch=("move", "check", "follow", "number", "holders"))


def test_mark_that_passes_what_did_not_fit_is_found():
    """What is decided has not been moved as long as there is more than fits into a batch."""

    class Impatient(Outbox):
        def reach(self):
            return self.next_low

    assert not is_sound(Impatient, writers=1, before=5)
