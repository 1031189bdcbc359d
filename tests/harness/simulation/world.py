"""Small worlds in which everything goes wrong, and in which nothing may be lost."""

import random
import traceback
from collections import Counter
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

from harness.simulation.clock import Chaos, Clock, Violation
from harness.simulation.feed import Feed, Ledger
from harness.simulation.processes import CoordinatorProcess, FollowerProcess, call
from harness.simulation.store import Store

from zeroeventhub import FIRST
from zeroeventhub.consumer.config import Failures
from zeroeventhub.errors import Halted, StoreUnavailable, TokenChanged, TransientError
from zeroeventhub.extensions import CAUGHT_UP, WAIT

PATIENCE = 400.0
"""Seconds of virtual time within which everything is applied, once the chaos is over."""

AFTERMATH = 4.0
"""Seconds for what may still be under way to come to light, once everything is applied."""


class World:
    """Be everything that a seed says."""

    def __init__(self, seed, say=None):
        chance = self.random = random.Random(seed)
        random.seed(seed)  # the decisions' own jitter
        self.clock = Clock()
        self.say = say and (lambda text: say(f"{self.clock.now:8.3f}  {text}"))
        self.chaos = Chaos(chance, chance.choice((0.0, 0.03, 0.08, 0.2)))
        self.duration = chance.uniform(1, 12)
        self.config = SimpleNamespace(
            partitions=None,
            start=FIRST,
            lease=chance.choice((3.0, 6.0, 12.0)),
            poll_interval=chance.choice((1.0, 3.0)),
            follow=chance.random() < 0.8,
            attempts=chance.choice((None, None, None, 4)),
            failures=Failures(tries=chance.choice((1, 3))),
            concurrency=1 if chance.random() < 0.5 else 0.5,
        )
        self.feed_away_until = self.store_away_until = 0.0
        self.feed = Feed(
            self.clock,
            partitions=chance.randint(1, 3),
            keys="abcdef"[: chance.randint(2, 6)],
            extensions=frozenset(chance.sample((CAUGHT_UP, WAIT), chance.randint(0, 2))),
            page_size=chance.choice((1, 3, 6, 10)),
        )
        self.ledger = Ledger(self.feed)
        self.store = Store(self.clock, self.ledger)
        self.kinds = [
            FollowerProcess if chance.random() < 0.25 else CoordinatorProcess
            for _ in range(chance.randint(1, 3))
        ]
        # Where no other process may hold a lease, a run to the head has to get there.
        self.checks_runs = not self.config.follow and len(self.kinds) == 1
        self.processes = {}
        self.incarnations = self.runs = 0

    def run(self):
        clock = self.clock
        for slot in range(len(self.kinds)):
            clock.later(self.random.random(), self.start_process, slot)
        writers = clock.start(self.publish())
        troubles = clock.start(self.trouble())
        clock.start(self.see_it_through(writers, troubles))
        clock.run(self.duration + PATIENCE)

    def publish(self):
        chance = self.random
        number = chance.randint(3, 20)
        spread = self.duration * chance.choice((0.0, 1.0))
        for _ in range(number):
            yield chance.random() * spread / number
            key = chance.choice(list(self.feed.published))
            self.feed.publish(key, filtered=chance.random() < 0.05)

    def trouble(self):
        """Let processes and partitions come and go, and then let the chaos end."""
        chance = self.random
        number = chance.randint(0, 7)
        kinds = [
            *(self.pause, self.kill, self.stop, self.rotate),
            *[partial(self.change, "split", self.feed.close_and_split)] * 2,
            partial(self.change, "replacement", self.feed.replace),
            *(partial(self.lose, what) for what in ("store", "feed")),
            # What is shown no more cannot be read again.
            self.reset if chance.random() < 0.5 else self.drop,
        ]
        for _ in range(number):
            yield chance.random() * self.duration / number
            chance.choice(kinds)()
        yield max(0.0, self.duration - self.clock.now)
        self.chaos.rate = 0.0

    def see_it_through(self, writers, troubles):
        """End when everything was applied, and nothing more comes of it."""
        while not (writers.over and troubles.over and self.ledger.complete):
            yield 1.0
        while self.checks_runs and not self.runs:
            yield 1.0
        yield AFTERMATH
        self.clock.stopped = True

    # Processes.

    def start_process(self, slot):
        self.incarnations += 1
        self.processes[slot] = self.kinds[slot](self, f"{slot}.{self.incarnations}")

    def process_ended(self, process, error):
        if self.say:
            self.say(f"{process.name} has ended: {error!r}")
        passing = () if self.config.attempts is None else (TransientError, TokenChanged)
        if not (error is None or isinstance(error, (Halted, *passing))):
            raise Violation(f"{process.name} has ended.") from error
        if error is None and not process.stopping:
            if self.config.follow:
                raise Violation(f"{process.name} has ended, though it was to follow for ever.")
            self.ledger.check_all_of(process.found)
            self.runs += 1
        for slot, other in list(self.processes.items()):
            if other is process:
                del self.processes[slot]
                self.clock.later(1 + self.random.random(), self.start_process, slot)

    def partition_halted(self, process):
        """An operator sees to what has failed, and then lets the process start again."""
        self.clock.later(10 + self.random.random(), process.stop)

    def some_process(self):
        """Choose a process, with its slot; none where there is none."""
        return self.random.sample(list(self.processes.items()), min(1, len(self.processes)))

    def pause(self):
        for slot, process in self.some_process():
            self.report("pause", slot)
            process.frozen_until = self.clock.now + self.chaos.seconds(3 * self.config.lease)

    def kill(self):
        for slot, process in self.some_process():
            self.report("kill", slot)
            process.kill()
            del self.processes[slot]
            self.clock.later(self.chaos.seconds(5), self.start_process, slot)

    def stop(self):
        for slot, process in self.some_process():
            self.report("stop", slot)
            process.stop()

    # The operator, the feed and the store.

    def reset(self):
        self.report("reset")
        self.clock.start(self._reset())

    def _reset(self):
        done = False
        while not done:
            # A reset just before a run ends leaves its events to the next run.
            self._excuse_runs()
            with suppress(StoreUnavailable):
                yield from call(self, self.store.reset)
                done = True
        self._excuse_runs()

    def _excuse_runs(self):
        for process in self.processes.values():
            process.found = {}

    def rotate(self):
        self.report("rotation")
        self.feed.token += 1

    def drop(self):
        """A closed partition that was read to its end is shown no more."""
        for one in self.feed.partitions.values():
            row = self.store.rows.get(one.id)
            if one.closed and row and not self.feed.behind(one.id, row.cursor):
                self.report("drop", one.id)
                self.feed.drop(one.id)
                return

    def change(self, kind, change):
        going_on = [one.id for one in self.feed.partitions.values() if not one.closed]
        partition = self.random.choice(going_on)
        self.report(kind, partition)
        change(partition)

    def lose(self, what):
        self.report(f"{what} outage")
        setattr(self, f"{what}_away_until", self.clock.now + self.chaos.seconds(6))

    def report(self, kind, subject=""):
        self.chaos.injected[kind] += 1
        if self.say:
            self.say(f"*** {kind} {subject}")


def simulate(seeds):
    """Let the worlds of some seeds happen; return how many events and faults, and what failed."""
    events, faults, failures = 0, Counter(), {}
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed finds it again
            failures[seed] = f"{type(error).__name__}: {error}"
        events += world.ledger.total
        faults += world.chaos.injected
    return events, faults, failures


def retrace(seed):
    """Tell what happened in the world of a seed, line by line."""
    lines = []
    try:
        World(seed, lines.append).run()
    except Exception:  # noqa: BLE001 - it is what there is to tell
        lines.append(traceback.format_exc())
    return lines
