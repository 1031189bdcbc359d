"""A small world in which everything goes wrong, and in which nothing may be lost."""

import random
from contextlib import suppress

from harness.simulation.calls import call_and_wait
from harness.simulation.chaos import Chaos
from harness.simulation.clock import Clock, Violation
from harness.simulation.feed import Feed, position_of
from harness.simulation.ledger import Ledger
from harness.simulation.processes import CrewProcess, FollowerProcess
from harness.simulation.store import Store
from zeroeventhub import FIRST
from zeroeventhub._follow import Failures
from zeroeventhub.errors import Halted, StoreUnavailable, TokenChanged, TransientError
from zeroeventhub.protocol import CAUGHT_UP, WAIT

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
        """Let it happen."""
        clock = self.clock
        for slot in range(len(self.kinds)):
            clock.later(self.random.random(), self.start_process, slot)
        writers = clock.start(self.publish())
        troubles = clock.start(self.trouble())
        clock.start(self.see_it_through(writers, troubles))
        clock.run(self.duration + PATIENCE)

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
            *(self.reset, self.set_back, self.set_back),
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
        expected = error is None or isinstance(error, Halted)
        if self.attempts is not None:
            expected = expected or isinstance(error, TransientError | TokenChanged)
        if not expected:
            raise Violation(f"{process.name} has ended.") from error
        if error is None and not process.stopping and self.forever:
            raise Violation(f"{process.name} has ended, though it was to follow for ever.")
        if error is None and not process.stopping:
            self.ledger.check_all_of(process.found)
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

    def reset(self):
        """All cursors are reset."""
        self.report("reset")
        self.clock.start(self._operate(self._reset))

    def set_back(self):
        """The cursor of one partition, from which no other goes on, is put back."""
        self.report("set back")
        partition, share = self.random.choice(list(self.feed.partitions)), self.random.random()
        self.clock.start(self._operate(self._set_back, partition, share))

    def _operate(self, action, *arguments):
        """Do it until it is done, for all that can be told."""
        while True:
            with suppress(StoreUnavailable):
                yield from call_and_wait(self, action, *arguments)
                return

    def _reset(self):
        yield from self.store.reset()
        self.expect_nothing_by_now()

    def _set_back(self, number, share):
        """Choose a cursor in the moment in which it is set."""
        store, feed = self.store, self.feed
        yield from store.until_all_free(store.rows)
        partition, row = feed.partitions.get(number), store.rows.get(number)
        parents = {n for one in feed.partitions.values() for n in one.cursor_from}
        # Who still reads partitions that are gone would be fenced by no cursor of their heirs.
        changing = any(store.rows[parent].cursor for parent in parents & store.rows.keys())
        if changing or partition is None or partition.closed or row is None or not row.cursor:
            return
        again = feed.keys_in([number])
        if any(letter.entry.key in again for letter in store.letters):
            # What comes again must not come from the dead letters as well.
            yield from self._reset()
            return
        before = share * position_of(row.cursor)
        found = [one for one in feed.behind(number, FIRST) if one.position <= before]
        yield from store.set({number: str(found[-1].position) if found else FIRST})
        self.expect_nothing_by_now()

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
