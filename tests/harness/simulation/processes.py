"""Processes that consume: the real decisions, driven through the simulated world."""

from contextlib import suppress

from harness.simulation.calls import HandlerFailed, call, call_and_wait, request, transact
from harness.simulation.clock import FOREVER, Host, Violation
from harness.simulation.store import Letter, Transaction
from zeroeventhub._follow import (
    Advance,
    Await,
    Claim,
    Crew,
    Deliver,
    Discover,
    End,
    Fetch,
    Follower,
    Inherit,
    Load,
    Outcome,
    PartitionFollower,
    Pause,
    Redeliver,
    Release,
    Start,
    Stop,
)
from zeroeventhub.errors import Fenced, Halted, StoreUnavailable, ZeroEventHubError


def drive(steps, carry_out):
    """Take the steps of decisions until they end; return what they return."""
    go_on, value = steps.send, None
    while True:
        try:
            step = go_on(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield from carry_out(step)
        except (ZeroEventHubError, HandlerFailed) as error:
            go_on, value = steps.throw, error
        else:
            go_on = steps.send


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


class Worker:
    """Read one partition."""

    def __init__(self, process, start):
        self.process = process
        self.world = process.world
        self.partition = start.partition
        self.follower = PartitionFollower(
            start.partition,
            start.among,
            process.extensions,
            self.world.forever,
            self.world.poll_interval,
            self.world.attempts,
            self.world.failures,
            self.is_stopped,
            self.is_roomy,
            self.has_letters,
        )
        self.stopping = False
        self.read = False
        self.ahead = None
        self.asleep = None
        self.start(self.main())

    def start(self, generator):
        """Run something beside."""
        self.process.tasks.append(self.world.clock.start(generator, self.process))

    def main(self):
        """Read, until drained or stopped."""
        error, drained = None, False
        try:
            drained = yield from drive(self.follower.steps(), self.carry_out)
        except ZeroEventHubError as caught:
            error = caught
            if isinstance(error, Halted):
                self.world.partition_halted(self.process)
        outcome = Outcome(self.partition.id, error, drained, self.read)
        if self.world.say:
            self.world.say(f"{self.process.name}: {outcome}")
        self.process.sign_off(outcome)

    def is_stopped(self):
        """Tell whether to end."""
        return self.stopping or self.process.stopping

    def is_roomy(self):
        """Tell whether to fetch ahead, and to let the feed wait."""
        return self.world.roomy

    def has_letters(self):
        """Tell whether dead letters are to be applied again."""
        return self.partition.id in self.process.letters

    def stop(self):
        """Ask it to end."""
        self.stopping = True
        self.wake()

    def wake(self):
        """End a pause."""
        if self.asleep:
            self.world.clock.wake(self.asleep)

    def carry_out(self, step):
        """Carry out a step of the partition's follower."""
        world = self.world
        match step:
            case Fetch():
                page = yield from self.fetch(step)
                self.read = True
                return page
            case Deliver():
                if step.ahead and (self.ahead is None or self.ahead.step != step.ahead):
                    self.ahead = Ahead(step.ahead)
                    self.start(self.ahead.fetch(world, self.process))
                yield from self.deliver(step)
            case Advance():
                yield from self.process.advance(step)
            case Load():
                enter = world.store.enter
                return (
                    yield from call_and_wait(world, enter, self.partition.id, self.process.name)
                )
            case Pause():
                self.asleep = world.clock.current
                yield step.seconds
                self.asleep = None
            case End():
                yield from call_and_wait(world, world.store.end, self.partition.id, step.place)
            case Redeliver():
                letters = Transaction(self.partition.id, step.place, step.place.cursor)
                yield from self.process.transact(letters, self.redeliver)
                self.process.letters -= {self.partition.id}
        return None

    def deliver(self, step):
        """Apply a page, but for events of keys that are held back."""
        if self.world.failures.then == "halt":
            yield from self.process.deliver(step)
            return
        events = list(step.page.events)
        transaction = Transaction(self.partition.id, step.place, step.page.cursor, events)
        handle = self.set_aside if step.set_aside else self.hold_back
        yield from self.process.transact(transaction, handle)

    def hold_back(self, transaction):
        """Apply what may be applied, unless the handler fails."""
        self.process.handle(transaction)
        self.set_aside(transaction, fails=lambda: False)

    def set_aside(self, transaction, fails=None):
        """Apply each event for itself, and set those aside that fail or are held back."""
        fails = fails or (lambda: self.world.chaos.strikes("event", likelier=5))
        blocked = self.world.store.blocked()
        events, transaction.events = transaction.events, []
        for entry in events:
            if entry.key in blocked or fails():
                blocked.add(entry.key)
                transaction.aside.append(Letter(self.partition.id, entry))
            else:
                transaction.events.append(entry)

    def redeliver(self, transaction):
        """Apply dead letters again; those that fail again are not tried until they are marked."""
        failed = set()
        for letter in list(self.world.store.due()):
            if letter.partition != self.partition.id or letter.entry.key in failed:
                continue
            if self.world.chaos.strikes("event"):
                failed.add(letter.entry.key)
                letter.marked = False
            else:
                transaction.settled.append(letter)

    def fetch(self, step):
        """Fetch a page, or take the one that was fetched ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead and ahead.step == step:
            return (yield from ahead.result(self.world))
        return (yield from request(self.world, self.process, step))


class Ahead:
    """Fetch a page while the one before it is applied."""

    def __init__(self, step):
        self.step = step
        self.page = None
        self.error = None
        self.waiter = None

    def fetch(self, world, client):
        """Fetch it."""
        try:
            self.page = yield from request(world, client, self.step)
        except ZeroEventHubError as error:
            self.error = error
        if self.waiter:
            world.clock.wake(self.waiter)

    def result(self, world):
        """Wait for the page, and return it."""
        if self.page is None and self.error is None:
            self.waiter = world.clock.current
            yield FOREVER
        if self.error:
            raise self.error
        return self.page
