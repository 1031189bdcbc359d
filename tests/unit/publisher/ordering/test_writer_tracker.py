"""A model of PostgreSQL, of writers and of readers that interleave in every way.

A writer takes the table's lock, draws numbers from the sequence, and ends; its rows become
visible, and its lock is released, in one step at that end. A reader observes in steps of its
own: the tick, the number, the writers, the judgement. Whatever the order of all these steps,
no horizon may pass a number whose row can still appear.
"""

from itertools import count
from random import Random
from types import SimpleNamespace

import pytest

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering.port import Horizon
from zeroeventhub.publisher.ordering.writer_tracker import WriterTracker

MOST_WRITERS = 3


def observed(tracker, *reading):
    """Return the horizon that a reading shows; None while it is not known."""
    try:
        return tracker.horizon(*reading).settled
    except Unavailable:
        return None


class Database:
    """A table, its sequence, its writers, and the readers of its feed."""

    def __init__(self):
        self.tracker = WriterTracker()
        self.sequence = self.horizon = self.origin = 0
        self.open = []
        self.readings = {}
        self._names = count(1)

    def begin(self):
        """Start a transaction with a statement that takes the lock."""
        if len(self.open) < MOST_WRITERS:
            name = f"3/{next(self._names)}"
            self.open.append(SimpleNamespace(name=name, locked=True, prepared=False, drawn=[]))

    def draw(self, writer):
        """Draw a number, which only a holder of the lock does."""
        if writer.locked and not writer.prepared:
            self.sequence += 1
            writer.drawn.append(self.sequence)

    def end(self, writer):
        """Commit or abort: in both cases the numbers are decided, and the lock is released."""
        self.open.remove(writer)

    def roll_back_to_savepoint(self, writer):
        """Give up the numbers drawn, and with them the lock."""
        if not writer.prepared:
            writer.locked = False
            writer.drawn.clear()

    def write_again(self, writer):
        """Take the lock once more, under the same name."""
        writer.locked = writer.locked or not writer.prepared

    def prepare(self, writer):
        """PREPARE TRANSACTION: the lock is from now on held under another name."""
        if not writer.prepared:
            writer.prepared, writer.name = True, f"-1/{next(self._names)}"

    def restart(self):
        """TRUNCATE … RESTART IDENTITY, which waits for writers, and here for readers too."""
        if not self.readings and not any(writer.locked for writer in self.open):
            self.sequence = self.horizon = 0
            self.origin += 1

    def observe(self, reader):
        """Take the next step of a reader's observation; return the horizon at its end."""
        if reader not in self.readings:
            self.readings[reader] = [self.tracker.begin()]
            return None
        reading = self.readings[reader]
        decided = self.tracker.decided(*reading[1:]) if len(reading) == 3 else None
        if decided is None and len(reading) < 4:
            writers = frozenset(writer.name for writer in self.open if writer.locked)
            reading += [writers] if len(reading) == 3 else [str(self.origin), self.sequence]
            return None
        del self.readings[reader]
        horizon = decided.settled if decided else observed(self.tracker, *reading)
        if horizon is not None:
            undecided = [number for writer in self.open for number in writer.drawn]
            assert all(number > horizon for number in undecided)
            assert self.horizon <= horizon <= self.sequence
            self.horizon = horizon
        return horizon

    def observe_fully(self):
        """Take all steps of one observation; return its horizon."""
        steps = (self.observe("one more reader") for _ in range(4))
        return next((horizon for horizon in steps if horizon is not None), None)


STEPS = {
    Database.begin: 2,
    Database.draw: 2,
    Database.end: 1,
    Database.prepare: 1,
    Database.roll_back_to_savepoint: 1,
    Database.write_again: 1,
    Database.restart: 1,
    Database.observe: 7,
}
"""The steps there are, each with how often it is taken."""


def test_no_horizon_passes_an_open_transaction():
    """A number is settled once all writers that were open when it was read have ended."""
    random = Random(1)
    for _ in range(1_500):
        database = Database()
        kinds = [step for step in STEPS if step is Database.observe or random.random() < 0.8]
        for step in random.choices(kinds, [STEPS[step] for step in kinds], k=60):
            if step in {Database.begin, Database.restart}:
                step(database)
            elif step is Database.observe:
                step(database, random.randrange(3))
            elif database.open:
                step(database, random.choice(database.open))
        database.observe_fully()
        number = database.sequence
        for writer in list(database.open):
            database.end(writer)
            database.begin()
        assert database.observe_fully() >= number
        database.open.clear()
        assert database.observe_fully() == database.sequence


def test_what_one_server_has_drawn_says_nothing_of_another():
    """After a failover nothing is settled that was so before, and late readings are refused."""
    tracker = WriterTracker()
    assert observed(tracker, tracker.begin(), "primary", 100, frozenset()) == 100
    late = tracker.begin()
    assert observed(tracker, tracker.begin(), "standby", 100, frozenset({"writer"})) is None
    with pytest.raises(Unavailable, match="another server"):
        tracker.horizon(late, "primary", 100, frozenset())
    assert observed(tracker, tracker.begin(), "standby", 100, frozenset()) == 100
    assert tracker.decided("primary", 100) is None


def test_number_that_came_back_is_not_decided():
    """The last number that was decided is not so once higher ones were drawn and set back."""
    tracker = WriterTracker()
    assert observed(tracker, tracker.begin(), "", 5, frozenset()) == 5
    assert tracker.decided("", 5) == Horizon(settled=5, highest=5)
    assert observed(tracker, tracker.begin(), "", 8, frozenset({"writer"})) == 5
    assert tracker.decided("", 5) is None


def test_reading_from_before_a_transaction_was_prepared_says_nothing_of_it():
    """A reading that began before a transaction was prepared does not show that it has ended."""
    tracker, writer = WriterTracker(), frozenset({"3/1"})
    assert observed(tracker, tracker.begin(), "", 1, writer) is None
    late = tracker.begin()
    assert observed(tracker, tracker.begin(), "", 1, frozenset({"-1/7"})) is None
    assert observed(tracker, late, "", 1, writer) is None
    assert observed(tracker, tracker.begin(), "", 1, frozenset()) == 1
