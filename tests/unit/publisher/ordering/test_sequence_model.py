"""Every interleaving of writers and of those who give positions, and mistakes it must find."""

from dataclasses import dataclass, field
from itertools import count

WRITER = ("note", "commit")
SEQUENCER = ("lock", "see", "give")


@dataclass
class Database:
    """An outbox, the positions given, and the last of them, as everybody can see them now."""

    numbers: count = field(default_factory=lambda: count(1))
    noted: dict[str, int] = field(default_factory=dict)
    outbox: dict[int, str] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    last: int = 0
    holder: str | None = None
    came_before: set[tuple[str, str]] = field(default_factory=set)
    known: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[int, str]] = field(default_factory=dict)

    def note(self, writer):
        """Insert an event; its trigger draws a number and notes it, for nobody to see yet."""
        settled = {*self.outbox.values(), *self.positions}
        self.came_before |= {(earlier, writer) for earlier in settled}
        self.noted[writer] = next(self.numbers)

    def commit(self, writer):
        """Let everybody see the event and its note."""
        self.outbox[self.noted.pop(writer)] = writer

    def lock(self, sequencer):
        """Take the right to give positions, or go without it; read the last that was given."""
        if self.holder is None:
            self.holder = sequencer
            self.known[sequencer] = self.last

    def see(self, sequencer):
        """Read what has been committed."""
        if self.holder == sequencer:
            self.seen[sequencer] = dict(self.outbox)

    def give(self, sequencer):
        """Commit positions for what was seen, in the order of their numbers; give up the right."""
        if sequencer not in self.seen:
            return
        for number, event in sorted(self.seen.pop(sequencer).items()):
            if self.outbox.pop(number, None) is None:
                continue  # somebody else has moved it: a DELETE finds no row
            self.known[sequencer] += 1
            self.positions[event] = self.known[sequencer]
        self.last = max(self.last, self.known[sequencer])
        self.release(sequencer)

    def release(self, sequencer):
        """Let the next one give positions."""
        if self.holder == sequencer:
            self.holder = None


def is_right(before, now):
    """Tell whether a reader that has read up to the last position has missed or repeated none."""
    late = [
        event
        for event, position in now.positions.items()
        if event not in before and position <= before["last"]
    ]
    places = list(now.positions.values())
    inverted = [
        (first, second)
        for first, second in now.came_before
        if second in now.positions
        and now.positions.get(first, now.positions[second] + 1) > now.positions[second]
    ]
    return not late and not inverted and len(places) == len(set(places))


def interleavings(programs):
    """List every order in which programs can take their steps."""
    if not any(programs.values()):
        yield ()
    for name, steps in programs.items():
        if steps:
            for rest in interleavings({**programs, name: steps[1:]}):
                yield ((name, steps[0]), *rest)


def is_sound(sequencer=SEQUENCER, database=Database):
    """Tell whether no interleaving loses, repeats or inverts an event."""
    programs = {"w1": WRITER, "w2": WRITER, "s1": sequencer, "s2": sequencer}
    for order in interleavings(programs):
        world = database()
        for name, step in order:
            before = {**world.positions, "last": world.last}
            getattr(world, step)(name)
            if not is_right(before, world):
                return False
        for step in sequencer:
            getattr(world, step)("at last")
        if set(world.positions) != {"w1", "w2"}:
            return False
    return True


def test_no_interleaving_loses_or_inverts_an_event():
    """Two writers and two who give positions can take their steps in any order there is."""
    assert is_sound()


def test_positions_given_by_two_at_once_are_found():
    """Without the right of one alone, rows locked by another are skipped and overtaken."""

    class Unlocked(Database):
        def lock(self, sequencer):
            self.holder = sequencer
            self.known[sequencer] = self.last

        def see(self, sequencer):
            taken = {number for seen in self.seen.values() for number in seen}
            self.seen[sequencer] = {
                number: event for number, event in self.outbox.items() if number not in taken
            }

    assert not is_sound(database=Unlocked)


def test_right_given_up_before_the_commit_is_found():
    """A lock of the statement in place of the transaction lets the next one in too early."""

    class EarlyRelease(Database):
        def see(self, sequencer):
            super().see(sequencer)
            self.release(sequencer)

    assert not is_sound(database=EarlyRelease)


def test_last_position_read_without_the_right_is_found():
    """Who reads the last position before having the right gives the next one twice."""

    class EarlyReading(Database):
        def see(self, sequencer):
            self.known[sequencer] = self.last

        def lock(self, sequencer):
            if self.holder is None:
                self.holder = sequencer
                self.seen[sequencer] = dict(self.outbox)

    assert not is_sound(sequencer=("see", "lock", "give"), database=EarlyReading)


def test_positions_given_before_the_commit_are_found():
    """A number drawn by the writer itself is visible only after a higher one may have been."""

    class OwnNumber(Database):
        def commit(self, writer):
            self.positions[writer] = self.noted.pop(writer)
            self.last = max(self.last, self.positions[writer])

    assert not is_sound(sequencer=(), database=OwnNumber)
