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
from zeroeventhub.publisher.ordering.rounds import Rounds, _Round

MOST_WRITERS = 3
NUMBER_FIRST = ("number", "writers")


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

    def __init__(self, rounds=Rounds, order=NUMBER_FIRST):
        self.rounds = rounds()
        self.order = order
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
            for what in self.order:
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


def explore(rounds=Rounds, order=NUMBER_FIRST):
    """Run thousands of random schedules, each of some kinds of steps, the same every time."""
    random = Random(1)
    for _ in range(10_000):
        kinds = [step for step in STEPS if step is Database.observe or random.random() < 0.8]
        steps = random.choices(kinds, [STEPS[step] for step in kinds], k=60)
        Database(rounds, order).take((step, random.randrange(3)) for step in steps)


@given(schedules)
@settings(max_examples=300)
def test_no_horizon_passes_an_open_transaction(schedule):
    """No horizon passes a number that may still appear, and none goes back."""
    Database().take(schedule)


@given(schedules)
@settings(max_examples=300)
def test_one_observation_without_writers_settles_everything(schedule):
    """With no writer open, one full observation settles every number that was drawn."""
    database = Database()
    database.take(schedule)
    database.open.clear()
    assert database.observe_fully() == database.sequence


@given(schedules)
@settings(max_examples=300)
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


def test_thousands_of_random_schedules_hold():
    """The search that finds every mistake below finds none in the class itself."""
    explore()


def test_search_finds_writers_read_before_the_number():
    """A reader that looks at the writers first misses one that comes and draws in between."""
    with pytest.raises(HorizonError):
        explore(order=("writers", "number"))


class Mutant(Rounds):
    """Judge as Rounds does, but for the mistakes of its subclasses."""

    keeps_prepared = True
    dates_again = True
    judges_by_old_readings = False

    def _judge(self, began, number, writers):
        read_by = next(self._ticks)
        earlier = [*self._open.values(), *filter(None, [self._settled])]
        if any(began > known.read_by and number < known.number for known in earlier):
            self._settled = None
            self._open.clear()
        prepared = {writer for writer in writers if writer.startswith("-1/")}
        judged = {}
        for holders, known in [*self._open.items(), (writers, _Round(number, read_by))]:
            judges = began > known.read_by or self.judges_by_old_readings
            left = holders & writers if judges else holders
            gone = [holder for holder in holders - left if not holder.startswith("-1/")]
            if gone and self.keeps_prepared:
                left |= prepared
                if self.dates_again:
                    known = _Round(known.number, read_by)  # noqa: PLW2901 - the same, later
            if left not in judged or judged[left].number < known.number:
                judged[left] = known
        decided = judged.pop(frozenset(), None)
        if decided and (self._settled is None or decided.number > self._settled.number):
            self._settled = decided
        self._open = judged
        return None if self._settled is None else self._settled.number


class ForgetsPrepared(Mutant):
    """Take a writer for gone when its lock only changed its name."""

    keeps_prepared = False


class DoesNotDateAgain(Mutant):
    """Take a prepared transaction for gone by a reading from before it was prepared."""

    dates_again = False


class JudgesByOldReadings(Mutant):
    """Judge a round by a reading that began before the round was read."""

    judges_by_old_readings = True


class TakesReadForDecided(Rounds):
    """Take a number for decided as soon as it has been read before."""

    def decided(self, began, number):
        read = [round_.number for round_ in (*self._open.values(), self._settled) if round_]
        return Horizon(settled=number, highest=number) if number in read else None


def test_search_finds_numbers_that_were_read_and_not_decided():
    """A number that was read while somebody wrote says nothing when it is read again."""
    with pytest.raises(HorizonError):
        explore(TakesReadForDecided)


def test_search_finds_prepared_transactions_taken_for_gone():
    """A judgement that forgets prepared transactions passes one that is still open."""
    with pytest.raises(HorizonError):
        explore(ForgetsPrepared)


def test_search_finds_prepared_transactions_judged_by_old_readings():
    """A reading from before a transaction was prepared does not show that it has gone."""
    with pytest.raises(HorizonError):
        explore(DoesNotDateAgain)


def test_search_finds_rounds_judged_by_old_readings():
    """A reading from before a writer came does not show that the writer has gone."""
    with pytest.raises(HorizonError):
        explore(JudgesByOldReadings)


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
