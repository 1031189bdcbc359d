"""Processes that consume: the real decisions, driven through a network and a store that fail."""

from contextlib import suppress
from inspect import isgenerator

from harness.simulation.clock import FOREVER, Host, Violation
from harness.simulation.store import Transaction
from zeroeventhub import Page
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
    Release,
    Start,
    Stop,
)
from zeroeventhub.errors import (
    CutPage,
    Fenced,
    Halted,
    StoreUnavailable,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)

SWIFT = 0.05
"""Seconds that a way takes at most, when nothing is wrong."""

SLOW = 4.0
"""Seconds that it takes at most, when it is slow."""

TIMEOUT = 3.0


class HandlerFailed(Exception):  # noqa: N818 - named for what happened
    """Say that the consumer's own code has raised."""


def request(world, client, step):
    """Send a request to the feed; return a FeedInfo or a Page."""
    chaos, fault = world.chaos, "request lost"
    yield chaos.seconds(SWIFT)
    if world.clock.now >= world.feed_away_until:
        fault = chaos.fault("request lost", "answer lost", "answer cut", "delay", "busy")
    if fault == "delay":
        yield chaos.seconds(SLOW)
    elif fault == "request lost":
        yield chaos.seconds(TIMEOUT)
        raise Unreachable("No answer.")
    elif fault == "busy":
        raise Unavailable("Busy.", retry_after=chaos.random.choice((None, 0.0, 2.0)))
    answer = yield from _answer(world, client, step)
    yield chaos.seconds(SWIFT)
    if fault == "answer lost":
        raise Unreachable("The connection was reset.")
    if fault == "answer cut" and isinstance(answer, Page):
        kept = answer.events[: chaos.random.randrange(len(answer.events) + 1)]
        if not kept:
            raise CutPage("The page ended before its checkpoint.")
        return Page(kept, str(kept[-1].position))
    return answer


def _answer(world, client, step):
    feed = world.feed
    if isinstance(step, Discover):
        return feed.info()
    feed.check(client.token)
    if step.wait and not feed.behind(step.partition, step.cursor):
        feed.watchers.append(world.clock.current)
        yield step.wait
    return feed.answer(client.token, step.partition, step.cursor)


def call(world, action, *arguments):
    """Have the store do something, which may wait for a lock; return what comes of it."""
    chaos, fault = world.chaos, "store away"
    yield chaos.seconds(SWIFT)
    if world.clock.now >= world.store_away_until:
        fault = chaos.fault("store away", "reply lost", "delay")
    if fault == "store away":
        yield chaos.seconds(TIMEOUT)
        raise StoreUnavailable("The store did not answer.")
    if fault == "delay":
        yield chaos.seconds(SLOW)
    result = action(*arguments)
    if isgenerator(result):
        result = yield from result
    yield chaos.seconds(SWIFT)
    if fault == "reply lost":
        raise StoreUnavailable("The store's reply was lost.")
    return result


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


class Sleeper:
    """Be something that pauses, and that may be asked to end."""

    def __init__(self, world):
        self.world = world
        self.stopping = False
        self._asleep = None

    def stop(self):
        """Ask it to end."""
        self.stopping = True
        self.wake()

    def is_stopped(self):
        """Tell whether it was asked to end."""
        return self.stopping

    def sleep(self, seconds):
        """Pause, until woken."""
        self._asleep = self.world.clock.current
        yield seconds
        self._asleep = None

    def wake(self):
        """End a pause."""
        if self._asleep:
            self.world.clock.wake(self._asleep)


class Process(Sleeper, Host):
    """Be one process of the consumer; one that starts again has another name."""

    def __init__(self, world, name):
        super().__init__(world)
        self.name = name
        self.token = None
        self.extensions = frozenset()
        self.transactions = []
        self.found = dict(world.feed.published) if world.checks_runs else {}
        self.tasks = []
        self.start_task(self.main())

    def start_task(self, generator):
        """Run something beside."""
        self.tasks.append(self.world.clock.start(generator, self))

    def main(self):
        """Read, until stopped."""
        ending = None
        try:
            yield from drive(self.decisions().steps(), self.carry_out)
        except ZeroEventHubError as error:
            ending = error
        yield from self.leave()
        self.world.process_ended(self, ending)

    def leave(self):
        """Give back what it holds."""
        yield 0.0

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
                yield from call(self.world, self.world.store.inherit, step.heirs, step.remaining)
            case Pause():
                yield from self.sleep(step.seconds)
        return None

    def transact(self, step):
        """Move a cursor, and apply the page if there is one, in one transaction."""
        chaos, store, clock = self.world.chaos, self.world.store, self.world.clock
        if isinstance(step, Advance):
            transaction = Transaction(step.partition, step.place, step.new, [])
        else:
            events = list(step.page.events)
            transaction = Transaction(step.partition, step.place, step.page.cursor, events)
        self.transactions.append(transaction)
        yield chaos.seconds(SWIFT)
        if clock.now < self.world.store_away_until:
            raise StoreUnavailable("The store did not answer.")
        fault = chaos.fault(
            *("connection lost", "commit in flight", "commit reply lost", "serialization", "delay")
        )
        yield from store.move(transaction)
        if isinstance(step, Deliver) and chaos.fault("handler"):
            store.roll_back(transaction)
            raise HandlerFailed
        yield chaos.seconds(SLOW if fault == "delay" else SWIFT)
        if transaction.over:
            raise StoreUnavailable("The connection was closed.")
        if fault == "serialization":
            store.roll_back(transaction)
            raise StoreUnavailable("Try the transaction again.")
        if fault in {"connection lost", "commit in flight"}:
            end = store.commit if fault == "commit in flight" else store.roll_back
            clock.later(chaos.seconds(SLOW), end, transaction)
            raise StoreUnavailable("The connection was lost.")
        store.commit(transaction)
        self.transactions.remove(transaction)
        yield chaos.seconds(SWIFT)
        if fault == "commit reply lost":
            raise StoreUnavailable("The reply was lost.")


class FollowerProcess(Process):
    """Read all partitions in turn, without leases: `for page in consumer`."""

    def decisions(self):
        """Return what decides."""
        world = self.world
        return Follower(None, world.forever, world.poll_interval, world.attempts, self.is_stopped)

    def carry_out(self, step):
        """Carry out a step."""
        match step:
            case Fetch():
                return (yield from request(self.world, self, step))
            case Load():
                return (yield from call(self.world, self.world.store.load, step.partition))
            case Advance():
                yield from self.transact(step)
            case Deliver():
                try:
                    yield from self.transact(step)
                except (Fenced, StoreUnavailable, HandlerFailed):
                    # What an iteration did not commit comes again.
                    yield 0.1
            case _:
                return (yield from super().carry_out(step))
        return None


class CrewProcess(Process):
    """Share the partitions with other processes by leases: `Consumer.run`."""

    def decisions(self):
        """Return what decides."""
        world = self.world
        self.workers = {}
        self.outcomes = []
        self.epochs = {}
        return Crew(
            None, world.forever, world.poll_interval, world.attempts, world.lease, self.is_stopped
        )

    def leave(self):
        """Give the leases back; where the store is away, they run out."""
        if self.workers:
            raise Violation(f"{self.name} has ended, and still reads {list(self.workers)}.")
        with suppress(StoreUnavailable):
            yield from call(self.world, self.world.store.leave, self.name)

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
                self.epochs = claimed.epochs
                return claimed
            case Start():
                if step.partition.id in self.workers:
                    raise Violation(f"{self.name} reads partition {step.partition.id} twice.")
                self.workers[step.partition.id] = Worker(self, step)
            case Stop():
                for partition in step.partitions & self.workers.keys():
                    self.workers[partition].stop()
            case Release():
                yield from call(world, world.store.release, self.name, step.partitions)
            case _:
                return (yield from super().carry_out(step))
        return None

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


class Worker(Sleeper):
    """Read one partition, beside others in one process."""

    def __init__(self, process, start):
        super().__init__(process.world)
        self.process = process
        self.partition = start.partition.id
        self.follower = PartitionFollower(
            start.partition,
            start.among,
            process.extensions,
            self.world.forever,
            self.world.poll_interval,
            self.world.attempts,
            self.world.failures,
            self.is_stopped,
            lambda: self.world.roomy,
            lambda: False,
            self.is_overtaken,
        )
        self.read = False
        self.ahead = None
        process.start_task(self.main())

    def main(self):
        """Read, until drained or stopped."""
        error, drained = None, False
        try:
            drained = yield from drive(self.follower.steps(), self.carry_out)
        except ZeroEventHubError as caught:
            error = caught
            if isinstance(error, Halted):
                self.world.partition_halted(self.process)
        outcome = Outcome(self.partition, error, drained, self.read)
        if self.world.say:
            self.world.say(f"{self.process.name}: {outcome}")
        self.process.sign_off(outcome)

    def is_stopped(self):
        """Tell whether to end."""
        return self.stopping or self.process.stopping

    def is_overtaken(self, epoch):
        """Tell whether the right to move the cursor has passed on."""
        return self.process.epochs.get(self.partition, 0) > epoch

    def carry_out(self, step):
        """Carry out a step of the partition's follower."""
        world, store = self.world, self.world.store
        match step:
            case Fetch():
                page = yield from self.fetch(step)
                self.read = True
                return page
            case Deliver() | Advance():
                if isinstance(step, Deliver) and step.ahead:
                    self.fetch_ahead(step.ahead)
                yield from self.process.transact(step)
            case Load():
                arguments = step.partition, self.process.name, step.after
                return (yield from call(world, store.enter, *arguments))
            case Pause():
                yield from self.sleep(step.seconds)
            case End():
                yield from call(world, store.end, self.partition, step.place)
        return None

    def fetch_ahead(self, step):
        """Fetch a page while the one before it is applied."""
        if self.ahead is None or self.ahead.step != step:
            self.ahead = Ahead(step)
            self.process.start_task(self.ahead.fetch(self.process))

    def fetch(self, step):
        """Fetch a page, or take the one that was fetched ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead and ahead.step == step:
            return (yield from ahead.result(self.world))
        return (yield from request(self.world, self.process, step))


class Ahead:
    """Hold a page that is fetched ahead, or the error that came instead."""

    def __init__(self, step):
        self.step = step
        self.page = self.error = self.waiter = None

    def fetch(self, process):
        """Fetch it."""
        try:
            self.page = yield from request(process.world, process, self.step)
        except ZeroEventHubError as error:
            self.error = error
        if self.waiter:
            process.world.clock.wake(self.waiter)

    def result(self, world):
        """Wait for the page, and return it."""
        if self.page is None and self.error is None:
            self.waiter = world.clock.current
            yield FOREVER
        if self.error:
            raise self.error
        return self.page
