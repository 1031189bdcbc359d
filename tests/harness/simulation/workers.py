"""The reading of one partition, beside others in one process."""

from harness.simulation.calls import call_and_wait, drive, request
from harness.simulation.clock import FOREVER
from harness.simulation.store import Letter, Transaction
from zeroeventhub._follow import (
    Advance,
    Deliver,
    End,
    Fetch,
    Load,
    Outcome,
    PartitionFollower,
    Pause,
    Redeliver,
)
from zeroeventhub.errors import Halted, ZeroEventHubError


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
            self.is_overtaken,
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

    def is_overtaken(self, epoch):
        """Tell whether the right to move the cursor has passed on."""
        return self.process.epochs.get(self.partition.id, 0) > epoch

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
                    yield from call_and_wait(
                        world, enter, step.partition, self.process.name, step.after
                    )
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
            held = entry.key in blocked
            if held or fails():
                blocked.add(entry.key)
                transaction.aside.append(Letter(self.partition.id, entry, failed=not held))
            else:
                transaction.events.append(entry)

    def redeliver(self, transaction):
        """Apply dead letters again; those that fail again are not tried until they are marked."""
        for letter in self.world.store.due():
            if letter.partition == self.partition.id:
                if self.world.chaos.strikes("event"):
                    letter.failed = True
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
