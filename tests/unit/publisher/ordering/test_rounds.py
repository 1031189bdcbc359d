"""A model of PostgreSQL, of writers and of readers that interleave in every way.

A writer takes the table's lock, draws numbers from the sequence, and ends; its rows become
visible, and its lock is released, in one step at that end. A reader observes in steps of its
own: the tick, the number, the writers, the judgement. Whatever the order of all these steps,
no horizon may pass a number whose row can still appear.
"""

from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering.port import Horizon
from zeroeventhub.publisher.ordering.rounds import Rounds

MOST_WRITERS = 3


class HorizonError(AssertionError):
    """Say that a horizon was given that a feed must not read up to."""


@dataclass
class Transaction:
    """Hold an open transaction: whether it has the lock, and the numbers it has drawn."""

    name: str
    locked: bool = True
    prepared: bool = False
    drawn: list[int] = field(default_factory=list)


@dataclass
class Reading:
    """Hold what a reader has observed so far."""

    began: int
    seen: dict[str, object] = field(default_factory=dict)


class Database:
    """Be a table, its sequence, its writers, and the readers of its feed."""

    def __init__(self):
        self.rounds = Rounds()
        self.sequence = 0
        self.open: list[Transaction] = []
        self.readings: dict[int, Reading] = {}
        self.horizon = 0
        self.highest_read = 0
        self.unnoticed = False
        self._names = count(1)

    def take(self, schedule):
        """Take the steps of a schedule; those that cannot be taken now are passed over."""
        for step, who in schedule:
            if step is Database.observe:
                self.observe(who)
            elif step is Database.begin:
                self.begin()
            elif step is Database.restart:
                self.restart()
            elif self.open:
                step(self, self.open[who % len(self.open)])

    def begin(self):
        """Start a transaction with a statement that takes the lock."""
        if len(self.open) < MOST_WRITERS:
            self.open.append(Transaction(f"3/{next(self._names)}"))

    def draw(self, writer):
        """Draw a number, which only a holder of the lock does."""
        if not writer.locked or writer.prepared:
            return
        # A restart shows in the number alone: it is noticed before the sequence has caught up.
        if self.unnoticed and self.sequence + 1 >= self.highest_read:
            return
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
            writer.prepared = True
            writer.name = f"-1/{next(self._names)}"

    def restart(self):
        """TRUNCATE … RESTART IDENTITY, which waits for writers, and here for readers too."""
        if self.readings or any(writer.locked for writer in self.open):
            return
        self.sequence = self.horizon = 0
        self.unnoticed = self.highest_read > 0

    def observe(self, reader):
        """Take the next step of a reader's observation; return the horizon at its end."""
        if reader not in self.readings:
            self.readings[reader] = Reading(self.rounds.begin("server"))
            return None
        reading = self.readings[reader]
        decided = None
        if "number" in reading.seen and "writers" not in reading.seen:
            decided = self.rounds.decided(reading.began, reading.seen["number"])
        if decided is None:
            for what in ("number", "writers"):
                if what not in reading.seen:
                    reading.seen[what] = self._look_at(what)
                    return None
        del self.readings[reader]
        if decided is None:
            horizon = self.rounds.judge(reading.began, **reading.seen)
        else:
            horizon = decided.settled
        known = 0 if self.unnoticed else self.highest_read
        self.highest_read = max(known, reading.seen["number"])
        self.unnoticed = False
        self._check(horizon)
        return horizon

    def observe_fully(self):
        """Take all steps of one observation; return its horizon."""
        steps = (self.observe("one more reader") for _ in range(4))
        return next((horizon for horizon in steps if horizon is not None), None)

    def _look_at(self, what):
        if what == "number":
            return self.sequence
        return frozenset(writer.name for writer in self.open if writer.locked)

    def _check(self, horizon):
        if horizon is None:
            return
        undecided = [number for writer in self.open for number in writer.drawn]
        if any(number <= horizon for number in undecided):
            raise HorizonError(f"The horizon {horizon} passes {undecided}.")
        if horizon > self.sequence:
            raise HorizonError(f"The horizon {horizon} passes numbers that are still to be drawn.")
        if horizon < self.horizon:
            raise HorizonError(f"The horizon went back from {self.horizon} to {horizon}.")
        self.horizon = horizon


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

schedules = st.lists(st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 2)), max_size=60)


@given(schedules)
@settings(max_examples=100)
def test_no_horizon_passes_an_open_transaction(schedule):
    """No horizon passes a number that may still appear, and none goes back."""
    Database().take(schedule)


@given(schedules)
@settings(max_examples=100)
def test_one_observation_without_writers_settles_everything(schedule):
    """With no writer open, one full observation settles every number that was drawn."""
    database = Database()
    database.take(schedule)
    database.open.clear()
    assert database.observe_fully() == database.sequence


@given(schedules)
@settings(max_examples=100)
def test_writers_that_come_later_hold_nothing_up(schedule):
    """Once the writers of an observation have ended, its number is settled, whoever writes now."""
    database = Database()
    database.take(schedule)
    database.observe_fully()
    number = database.sequence
    for writer in list(database.open):
        database.end(writer)
        database.begin()
    assert database.observe_fully() >= number


@pytest.mark.parametrize("schedules", [1_000, pytest.param(10_000, marks=pytest.mark.test_all)])
def test_random_schedules_hold(schedules):
    """No horizon passes an open number in long schedules, each of some kinds of steps."""
    random = Random(1)
    for _ in range(schedules):
        kinds = [step for step in STEPS if step is Database.observe or random.random() < 0.8]
        steps = random.choices(kinds, [STEPS[step] for step in kinds], k=60)
        Database().take((step, random.randrange(3)) for step in steps)


WRITER, PREPARED, NONE = frozenset({"3/1"}), frozenset({"-1/7"}), frozenset()


def read(rounds, number, writers):
    """Judge by a reading that nothing comes between; return the horizon."""
    return rounds.judge(rounds.begin("server"), number, writers)


def test_reading_from_before_a_transaction_was_prepared_says_nothing_of_it():
    """A reading that began before a transaction was prepared does not show that it has ended."""
    rounds = Rounds()
    assert read(rounds, 1, WRITER) is None
    late = rounds.begin("server")
    assert read(rounds, 1, PREPARED) is None
    assert rounds.judge(late, 1, WRITER) is None
    assert read(rounds, 1, NONE) == 1


def test_writers_of_one_time_are_waited_for_once():
    """Of the numbers that the same writers hold back, the highest is decided when they end."""
    rounds = Rounds()
    for number in (1, 2, 3):
        assert read(rounds, number, WRITER) is None
    assert read(rounds, 9, frozenset({"3/2"})) == 3


def test_number_that_was_read_is_not_decided():
    """A number that was read beside a writer says nothing when it is read again."""
    rounds = Rounds()
    assert read(rounds, 5, WRITER) is None
    assert rounds.decided(rounds.begin("server"), 5) is None


def test_horizon_is_unknown_until_a_round_is_decided():
    """A feed that knows no decided round says that it has just started."""
    rounds = Rounds()
    with pytest.raises(Unavailable, match="waits for open transactions"):
        rounds.horizon(rounds.begin("server"), 5, WRITER)
    found = rounds.horizon(rounds.begin("server"), 7, frozenset({"3/2"}))
    assert found == Horizon(settled=5, highest=7)


def test_what_one_server_has_drawn_says_nothing_of_another():
    """After a failover nothing is settled that was so before, and late readings are refused."""
    rounds = Rounds()
    assert rounds.judge(rounds.begin("primary"), 100, frozenset()) == 100
    late = rounds.begin("primary")
    began = rounds.begin("standby")
    assert rounds.judge(began, 200, frozenset({"writer"})) is None
    with pytest.raises(Unavailable):
        rounds.judge(late, 100, frozenset())
    assert rounds.judge(rounds.begin("standby"), 200, frozenset()) == 200


def test_number_that_came_back_is_not_decided():
    """The last number that was decided is not so once higher ones were drawn and set back."""
    rounds = Rounds()
    assert rounds.judge(rounds.begin("server"), 5, frozenset()) == 5
    assert rounds.decided(rounds.begin("server"), 5) == Horizon(settled=5, highest=5)
    assert rounds.decided(rounds.begin("server"), 6) is None
    assert rounds.judge(rounds.begin("server"), 8, frozenset({"writer"})) == 5
    assert rounds.decided(rounds.begin("server"), 5) is None
    late = rounds.begin("server")
    rounds.begin("standby")
    assert rounds.judge(rounds.begin("standby"), 5, frozenset()) == 5
    assert rounds.decided(late, 5) is None
