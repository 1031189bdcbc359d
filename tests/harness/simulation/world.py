"""A small world in which everything goes wrong, and in which nothing may be lost."""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from harness.simulation.chaos import Chaos
from harness.simulation.clock import Clock, Violation
from harness.simulation.feed import Feed
from harness.simulation.ledger import Ledger
from harness.simulation.operators import Operator
from harness.simulation.processes import CrewProcess, FollowerProcess
from harness.simulation.store import HANDED_OVER, Store
from zeroeventhub import FIRST
from zeroeventhub._follow import Failures
from zeroeventhub.errors import Gone, Halted, TokenChanged, TransientError
from zeroeventhub.protocol import CAUGHT_UP, WAIT

PATIENCE = 400.0
"""Seconds of virtual time within which everything is applied, once the chaos is over."""

AFTERMATH = 4.0
"""Seconds for what may still be under way to come to light, once everything is applied."""


@dataclass(frozen=True)
class Result:
    """Hold what happened in one world.

    Attributes:
        events: how many events were applied.
        faults: how many of each kind were injected.
        seconds: how long it took, in virtual time.
    """

    events: int
    faults: Counter
    seconds: float


class World:
    """Be everything that a seed says.

    Args:
        seed: what chance comes from.
        say: is told what happens; None for nobody.
    """

    def __init__(self, seed, say=None):
        chance = self.random = random.Random(seed)
        random.seed(seed)  # the decisions' own jitter
        self.clock = Clock()
        self.say = say and (lambda text: say(f"{self.clock.now:8.3f}  {text}"))
        self.chaos = Chaos(chance, chance.choice((0.0, 0.03, 0.08, 0.2)))
        self.duration = chance.uniform(1, 12)
        self.lease = chance.choice((3.0, 6.0, 12.0))
        self.poll_interval = chance.choice((1.0, 3.0))
        self.forever = chance.random() < 0.8
        self.attempts = chance.choice((None, None, None, 4))
        self.failures = chance.choice(
            (
                Failures(tries=1),
                Failures(tries=3),
                Failures(tries=1, then="set-aside", hold_back=True),
            )
        )
        self.roomy = chance.random() < 0.5
        self.feed_away_until = self.store_away_until = 0.0
        self.feed = Feed(
            self.clock,
            chance,
            partitions=chance.randint(1, 3),
            keys="abcdef"[: chance.randint(2, 6)],
            extensions=frozenset(chance.sample((CAUGHT_UP, WAIT), chance.randint(0, 2))),
            page_size=chance.choice((1, 3, 6, 10)),
            checkpoint_every=chance.choice((0, 1, 2, 2)),
        )
        self.ledger = Ledger(self.feed)
        self.store = Store(self.clock, self.ledger)
        self.operator = Operator(self)
        # Who reads in turn knows nothing of dead letters.
        in_turn = 0.2 if self.failures.then == "halt" else 0.0
        self.kinds = [
            FollowerProcess if chance.random() < in_turn else CrewProcess
            for _ in range(chance.randint(1, 3))
        ]
        # Where nobody else may hold a lease, a run to the head has to get there.
        self.checks_runs = not self.forever and len(self.kinds) == 1
        self.processes = {}
        self.incarnations = 0

    def run(self):
        """Let it happen.

        Returns:
            what happened.

        Raises:
            Violation: something that must never happen.
        """
        clock = self.clock
        for slot in range(len(self.kinds)):
            clock.later(self.random.random(), self.start_process, slot)
        writers = clock.start(self.publish())
        troubles = clock.start(self.trouble())
        clock.start(self.see_it_through(writers, troubles))
        clock.run(self.duration + PATIENCE)
        return Result(self.ledger.total, self.chaos.injected, clock.now)

    def publish(self):
        """Publish events; some writers take their time, and some give up."""
        chance, feed = self.random, self.feed
        number = chance.randint(3, 20)
        spread = self.duration * chance.choice((0.0, 1.0))
        keys = list(feed.published)
        for _ in range(number):
            yield chance.random() * spread / number
            key = chance.choice(keys)
            luck = chance.random()
            if luck < 0.05:
                feed.skip(feed.owners[key])
            elif key not in feed.writing:
                entry = feed.write(key)
                if luck < 0.7:
                    feed.commit(entry)
                else:
                    end = feed.roll_back if luck < 0.8 else feed.commit
                    self.clock.later(chance.random() * 2, end, entry)

    def trouble(self):
        """Let processes and partitions come and go, and then let the chaos end."""
        chance = self.random
        number = chance.randint(0, 7)
        kinds = [
            *(self.pause, self.kill, self.stop, self.rotate, self.split, self.split),
            *(self.replace, self.lose_store, self.lose_feed),
            *(self.reset, self.seek, self.set_back, self.trim, self.lose_events),
        ]
        for _ in range(number):
            yield chance.random() * self.duration / number
            chance.choice(kinds)()
        yield max(0.0, self.duration - self.clock.now)
        self.chaos.rate = 0.0

    def see_it_through(self, writers, troubles):
        """End when everything was applied, and nothing more comes of it."""
        while not (
            writers.over and troubles.over and not self.feed.writing and self.ledger.complete
        ):
            self.store.retry()
            yield 1.0
        yield AFTERMATH
        self.clock.stopped = True

    # Processes.

    def start_process(self, slot):
        """Start a process, under a name of its own."""
        self.incarnations += 1
        kind = self.kinds[slot]
        self.processes[slot] = kind(self, f"{slot}.{self.incarnations}")

    def process_ended(self, process, error):
        """Start a process again that has ended."""
        if self.say:
            self.say(f"{process.name} has ended: {error!r}")
        expected = error is None or isinstance(error, Halted | Gone)
        if self.attempts is not None:
            expected = expected or isinstance(error, TransientError | TokenChanged)
        if not expected:
            raise Violation(f"{process.name} has ended.") from error
        if error is None and not process.stopping and self.forever:
            raise Violation(f"{process.name} has ended, though it was to follow for ever.")
        if error is None and not process.stopping:
            self.ledger.check_all_of(process.found)
        if isinstance(error, Gone):
            self.report(type(error).__name__)
            self.clock.later(5 * self.random.random(), self.operate, self.operator.mend)
        for slot, other in list(self.processes.items()):
            if other is process:
                del self.processes[slot]
                self.clock.later(1 + self.random.random(), self.start_process, slot)

    def partition_halted(self, process):
        """An operator sees to what has failed, and then lets the process start again."""
        self.clock.later(10 + self.random.random(), process.stop)

    def anybody(self):
        """Choose a process."""
        return self.random.choice(list(self.processes.items()) or [(0, None)])

    def pause(self):
        """A process stands still, perhaps past its leases."""
        slot, process = self.anybody()
        if process:
            self.report("pause", slot)
            process.frozen_until = self.clock.now + self.chaos.seconds(3 * self.lease)

    def kill(self):
        """A process dies."""
        slot, process = self.anybody()
        if process:
            self.report("kill", slot)
            process.kill()
            del self.processes[slot]
            self.clock.later(self.chaos.seconds(5), self.start_process, slot)

    def stop(self):
        """A process is asked to end."""
        slot, process = self.anybody()
        if process:
            self.report("stop", slot)
            process.stop()

    # The operator.

    def operate(self, action):
        """Let the operator do something."""
        self.clock.start(action())

    def reset(self):
        """All cursors are reset."""
        self.report("reset")
        self.operate(self.operator.reset)

    def seek(self):
        """All cursors are put at a moment."""
        self.report("seek")
        self.operate(self.operator.seek)

    def set_back(self):
        """A cursor is put back."""
        self.report("set back")
        self.operate(self.operator.set_back)

    def expect_nothing_by_now(self):
        """What a run was to have applied by its end may have to be applied again behind it."""
        for process in self.processes.values():
            process.found = {}

    # The feed and the store.

    def rotate(self):
        """The feed has a new token."""
        self.report("rotation")
        self.feed.rotate()

    def split(self):
        """A partition is closed and split."""
        with suppress(IndexError):
            partition = self.random.choice(self.feed.idle_partitions())
            self.report("split", partition)
            self.feed.close_and_split(partition)

    def replace(self):
        """A partition is replaced."""
        with suppress(IndexError):
            partition = self.random.choice(self.feed.idle_partitions())
            self.report("replacement", partition)
            self.feed.replace(partition)

    def trim(self):
        """A partition's oldest events are gone, which somebody may have to read yet."""
        partition = self.random.choice(list(self.feed.partitions))
        row = self.store.rows.get(partition)
        if row and row.cursor not in {HANDED_OVER, FIRST}:
            self.report("trimming", partition)
            self.feed.trim(partition, self.random.randint(1, 10))

    def lose_events(self):
        """A partition's newest events are gone, which somebody may have read already."""
        with suppress(IndexError):
            partition = self.random.choice(self.feed.idle_partitions())
            self.report("loss of events", partition)
            self.feed.lose(partition, self.random.randint(1, 3))
            self.expect_nothing_by_now()

    def lose_store(self):
        """The store is away for a while."""
        self.report("store outage")
        self.store_away_until = self.clock.now + self.chaos.seconds(6)

    def lose_feed(self):
        """The feed is away for a while."""
        self.report("feed outage")
        self.feed_away_until = self.clock.now + self.chaos.seconds(6)

    def report(self, kind, subject=""):
        """Count what goes wrong."""
        self.chaos.injected[kind] += 1
        if self.say:
            self.say(f"*** {kind} {subject}")
