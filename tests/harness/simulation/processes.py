"""Processes that consume: the real decisions, driven through a network and a store that fail."""

from contextlib import suppress
from inspect import isgenerator

from harness.simulation.clock import FOREVER, Host, Violation
from harness.simulation.store import Transaction

from zeroeventhub import Page
from zeroeventhub.consumer.coordinator import Coordinator
from zeroeventhub.consumer.follower import Follower, PartitionFollower
from zeroeventhub.consumer.steps import (
    Advance,
    Await,
    Claim,
    Claimed,
    Deliver,
    Discover,
    End,
    Fetch,
    Inherit,
    Load,
    Outcome,
    Pause,
    Release,
    Start,
    Stop,
    Stopped,
)
from zeroeventhub.errors import (
    CutPage,
    Fenced,
    Halted,
    StoreUnavailable,
    TokenChanged,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)

SWIFT = 0.05  # seconds that a way takes at most, when nothing is wrong
SLOW = 4.0  # seconds that it takes at most, when it is slow
TIMEOUT = 3.0


class HandlerFailed(Exception):
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
        self.stopping = True
        self.wake()

    def is_stopped(self):
        return self.stopping

    def sleep(self, seconds):
        self._asleep = self.world.clock.current
        yield seconds
        self._asleep = None

    def wake(self):
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
        self.tasks.append(self.world.clock.start(generator, self))

    def main(self):
        ending = None
        try:
            yield from drive(self.decisions().steps(), self.carry_out)
        except ZeroEventHubError as error:
            ending = error
        yield from self.leave()
        self.world.process_ended(self, ending)

    def leave(self):
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
        return Follower(self.world.config, self.is_stopped)

    def carry_out(self, step):
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


class CoordinatorProcess(Process):
    """Share the partitions with other processes by leases: `Consumer.run`."""

    def decisions(self):
        self.workers = {}
        self.outcomes = []
        self.claimed = Claimed(frozenset())
        self.epochs = {}
        self.halted, self.gone = {}, set()
        self.idle, self.step, self.changed = 0, None, True
        return Coordinator(self.world.config, self.is_stopped, lambda: self.world.clock.now)

    def leave(self):
        """Give the leases back; where the store is away, they run out."""
        if self.workers:
            raise Violation(f"{self.name} has ended, and still reads {list(self.workers)}.")
        with suppress(StoreUnavailable):
            yield from call(self.world, self.world.store.leave, self.name)

    def carry_out(self, step):
        world = self.world
        if world.say:
            world.say(f"{self.name}: {step}")
        self.check(step)
        self.step = step
        match step:
            case Await():
                if not self.outcomes:
                    yield from self.sleep(step.seconds)
                outcomes, self.outcomes = tuple(self.outcomes), []
                self.idle += not outcomes
                self.changed |= any(isinstance(each.error, TokenChanged) for each in outcomes)
                return outcomes
            case Claim():
                self.idle = 0
                claim = world.store.claim
                self.claimed = yield from call(
                    world, claim, self.name, step.wanted, world.config.lease
                )
                self.learn(self.claimed.epochs)
                return self.claimed
            case Discover():
                self.changed = False
                info = yield from super().carry_out(step)
                self.layout = {partition.id for partition in info.partitions}
                return info
            case Start():
                self.workers[step.partition.id] = Worker(self, step)
            case Stop():
                for partition in step.partitions & self.workers.keys():
                    self.workers[partition].stop()
            case Release():
                yield from call(world, world.store.release, self.name, step.partitions)
            case _:
                return (yield from super().carry_out(step))
        return None

    def learn(self, epochs):
        """Note the epochs of what is held; what has halted goes on where an operator moves it."""
        self.epochs.clear()
        self.epochs.update(epochs)
        self.halted = {n: at for n, at in self.halted.items() if epochs.get(n, 0) <= at}

    def check(self, step):
        """See that leases are renewed and heeded, and that what halted stays here and stands still.

        The feed is discovered where its partitions have changed, or behind a pause.
        """
        longest, layout = self.world.config.lease / 3, self.world.feed.partitions
        # A partition that waits for another may have to, and one that is gone is of no use.
        kept = {n for n in self.halted if n in layout and layout[n].starts_after is None}
        kept -= self.claimed.ended  # another process has read these to their ends
        match step:
            case Discover():
                asked_for = self.changed or isinstance(self.step, Pause)
                wrong = self.stopping or self.workers or not asked_for
            case Await():
                going_on = {n for n, worker in self.workers.items() if not worker.is_stopped()}
                mine = self.claimed.held - self.claimed.surplus
                gone = self.claimed.held - self.layout - self.workers.keys()
                useless, self.gone = self.gone & gone, gone  # released by the next round
                wrong = step.seconds > longest or self.idle > 1 or going_on - mine or useless
            case Pause():
                wrong = isinstance(self.step, Claim | Release) and step.seconds > longest
            case Start():
                wrong = step.partition.id in self.halted.keys() | self.workers.keys()
            case Release():
                wrong = step.partitions & (kept | self.workers.keys())
            case _:
                wrong = False
        if wrong:
            raise Violation(f"{self.name} must not do this now: {step}")

    def record_outcome(self, outcome):
        if isinstance(outcome.error, Halted):
            self.halted[outcome.partition] = outcome.error.epoch
        del self.workers[outcome.partition]
        self.outcomes.append(outcome)
        self.wake()

    def stop(self):
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
            start.after,
            process.extensions,
            self.world.config,
            self.is_stopped,
            (self.partition,),
            set(),
            process.epochs,
        )
        self.read = False
        self.ahead = None
        process.start_task(self.main())

    def main(self):
        error, drained = None, False
        try:
            yield from drive(self.follower.steps(), self.carry_out)
            drained = True
        except Stopped:
            pass
        except ZeroEventHubError as caught:
            error = caught
            if isinstance(error, Halted):
                self.world.partition_halted(self.process)
        outcome = Outcome(self.partition, error, drained, self.read)
        if self.world.say:
            self.world.say(f"{self.process.name}: {outcome}")
        self.process.record_outcome(outcome)

    def is_stopped(self):
        return self.stopping or self.process.stopping

    def carry_out(self, step):
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
        if self.ahead is None or self.ahead.step != step:
            self.ahead = Ahead(step)
            self.process.start_task(self.ahead.fetch(self.process))

    def fetch(self, step):
        """Fetch a page, or take the one that was fetched ahead, or its error."""
        ahead, self.ahead = self.ahead, None
        if not ahead or ahead.step != step:
            return (yield from request(self.world, self.process, step))
        if ahead.answer is None:
            ahead.waiter = self.world.clock.current
            yield FOREVER
        if isinstance(ahead.answer, ZeroEventHubError):
            raise ahead.answer
        return ahead.answer


class Ahead:
    """Hold a page that is fetched ahead, or the error that came instead."""

    def __init__(self, step):
        self.step = step
        self.answer = self.waiter = None

    def fetch(self, process):
        try:
            self.answer = yield from request(process.world, process, self.step)
        except ZeroEventHubError as error:
            self.answer = error
        if self.waiter:
            process.world.clock.wake(self.waiter)
