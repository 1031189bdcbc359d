"""Processes that consume: the real decisions, driven through the simulated world."""

from contextlib import suppress

from harness.simulation.calls import HandlerFailed, call, call_and_wait, drive, request, transact
from harness.simulation.clock import Host, Violation
from harness.simulation.store import Transaction
from harness.simulation.workers import Worker
from zeroeventhub._follow import (
    Advance,
    Await,
    Claim,
    Crew,
    Deliver,
    Discover,
    Fetch,
    Follower,
    Inherit,
    Load,
    Pause,
    Release,
    Start,
    Stop,
)
from zeroeventhub.errors import Fenced, StoreUnavailable, ZeroEventHubError


class Process(Host):
    """Be one process of the consumer.

    Attributes:
        name: who it is; a process that starts again has another name.
        token: the feed's token as this process knows it.
        transactions: those that it has begun.
        tasks: what runs in it.
        found: how many events of each key could be read before it started, if that is checked.
    """

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.token = None
        self.extensions = frozenset()
        self.transactions = []
        self.tasks = [world.clock.start(self.main(), self)]
        self.stopping = False
        self.asleep = None
        self.found = world.feed.in_sight() if world.checks_runs else {}

    def is_stopped(self):
        """Tell whether it was asked to end."""
        return self.stopping

    def stop(self):
        """Ask it to end."""
        self.stopping = True
        self.wake()

    def wake(self):
        """End a pause of its main task."""
        if self.asleep:
            self.world.clock.wake(self.asleep)

    def sleep(self, seconds):
        """Pause, until woken."""
        self.asleep = self.world.clock.current
        yield seconds
        self.asleep = None

    def kill(self):
        """Let it be gone; the store finds out about its transactions in a while."""
        for task in self.tasks:
            task.kill()
        for transaction in self.transactions:
            if not transaction.over:
                # It may have died behind its last word, the commit.
                ends = [self.world.store.roll_back]
                if transaction.row is not None and transaction.row.holder is transaction:
                    ends.append(self.world.store.commit)
                end = self.world.chaos.random.choice(ends)
                self.world.clock.later(self.world.chaos.seconds(3), end, transaction)

    def carry_out(self, step):
        """Carry out a step that every process knows."""
        match step:
            case Discover():
                info = yield from request(self.world, self, step)
                self.token = info.token
                self.extensions = info.extensions
                return info
            case Inherit():
                inherit = self.world.store.inherit
                yield from call_and_wait(self.world, inherit, step.heirs, step.remaining)
            case Pause():
                yield from self.sleep(step.seconds)
        return None

    def advance(self, step):
        """Move a cursor over nothing."""
        yield from self.transact(Transaction(step.partition, step.place, step.new))

    def deliver(self, step):
        """Apply a page; the handler may fail."""
        transaction = Transaction(
            step.partition, step.place, step.page.cursor, list(step.page.events)
        )
        yield from self.transact(transaction, self.handle)

    def handle(self, transaction):
        """Be the consumer's own code."""
        if self.world.chaos.strikes("handler"):
            raise HandlerFailed

    def transact(self, transaction, handle=None):
        """Write something in a transaction."""
        if self.world.say:
            self.world.say(
                f"{self.name} writes {transaction.partition}: {transaction.place}, "
                f"{transaction.events}, {transaction.cursor}"
            )
        yield from transact(self.world, self, transaction, handle)


class FollowerProcess(Process):
    """Read all partitions in turn, without leases: `for page in consumer`."""

    def main(self):
        """Read, until stopped."""
        world = self.world
        follower = Follower(
            None, world.forever, world.poll_interval, world.attempts, self.is_stopped
        )
        ending = None
        try:
            yield from drive(follower.steps(), self.carry_out)
        except ZeroEventHubError as error:
            ending = error
        world.process_ended(self, ending)

    def carry_out(self, step):
        """Carry out a step."""
        match step:
            case Fetch():
                return (yield from request(self.world, self, step))
            case Load():
                return (yield from call(self.world, self.world.store.load, step.partition))
            case Advance():
                yield from self.advance(step)
            case Deliver():
                try:
                    yield from self.deliver(step)
                except (Fenced, StoreUnavailable, HandlerFailed):
                    # Who iterates drops what was not committed: it comes again.
                    yield 0.1
            case _:
                return (yield from super().carry_out(step))
        return None


class CrewProcess(Process):
    """Share the partitions with other processes by leases: `Consumer.run`."""

    def main(self):
        """Read, until stopped."""
        world = self.world
        self.workers = {}
        self.outcomes = []
        self.letters = frozenset()
        self.epochs = {}
        crew = Crew(
            None, world.forever, world.poll_interval, world.attempts, world.lease, self.is_stopped
        )
        ending = None
        try:
            yield from drive(crew.steps(), self.carry_out)
        except ZeroEventHubError as error:
            ending = error
        if self.workers:
            raise Violation(f"{self.name} has ended, and still reads {list(self.workers)}.")
        with suppress(StoreUnavailable):  # The leases run out.
            yield from call(world, world.store.leave, self.name)
        world.process_ended(self, ending)

    def carry_out(self, step):
        """Carry out a step of the crew."""
        world = self.world
        if world.say:
            world.say(f"{self.name}: {step}")
        match step:
            case Await():
                if not self.outcomes:
                    yield from self.sleep(step.seconds)
                outcomes, self.outcomes = tuple(self.outcomes), []
                return outcomes
            case Claim():
                claim = world.store.claim
                claimed = yield from call(world, claim, self.name, step.wanted, world.lease)
                self.letters = claimed.letters
                self.epochs = claimed.epochs
                return claimed
            case Start():
                self.start_reading(step)
            case Stop():
                for partition in step.partitions & self.workers.keys():
                    self.workers[partition].stop()
            case Release():
                yield from call(world, world.store.release, self.name, step.partitions)
            case _:
                return (yield from super().carry_out(step))
        return None

    def start_reading(self, step):
        """Read a partition beside the others."""
        if step.partition.id in self.workers:
            raise Violation(f"{self.name} reads partition {step.partition.id} twice.")
        self.workers[step.partition.id] = Worker(self, step)

    def sign_off(self, outcome):
        """Take note of how the reading of a partition has ended."""
        del self.workers[outcome.partition]
        self.outcomes.append(outcome)
        self.wake()

    def stop(self):
        """Ask it to end."""
        super().stop()
        for worker in self.workers.values():
            worker.wake()
