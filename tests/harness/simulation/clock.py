"""Virtual time and chance: tasks that wake in the order of a clock, and what goes wrong."""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from heapq import heappop, heappush

FOREVER = float("inf")


class Violation(AssertionError):
    """Say that something happened that must never happen."""


class Host:
    """Be what tasks run on; while it is frozen, none of its tasks goes on."""

    frozen_until = 0.0


@dataclass(slots=True, eq=False)
class Task:
    """Run a generator that yields how many seconds it sleeps; FOREVER until it is woken."""

    generator: Generator
    host: Host
    ticket: int = 0
    over: bool = False

    def kill(self):
        self.over = True
        self.ticket = 0


class Clock:
    """Run tasks, one at a time, in virtual time."""

    def __init__(self):
        self.now = 0.0
        self.current = None
        self.stopped = False
        self._heap = []
        self._tickets = 0
        self._world = Host()

    def start(self, generator, host=None):
        """Start a task; one without a host is part of the world and is never frozen."""
        task = Task(generator, host or self._world)
        self._schedule(task, self.now)
        return task

    def later(self, seconds, action, *arguments):
        """Call an action after some seconds, whatever becomes of the task that asked for it."""

        def wait_and_act():
            yield seconds
            action(*arguments)

        self.start(wait_and_act())

    def wake(self, task):
        if not task.over:
            self._schedule(task, self.now)

    def run(self, longest):
        while not self.stopped:
            time, ticket, task = heappop(self._heap)
            if ticket != task.ticket:
                continue
            if time < task.host.frozen_until:
                self._schedule(task, task.host.frozen_until)
                continue
            if time > longest:
                raise Violation(f"It has not come to an end after {longest} seconds.")
            self.now = time
            self.current = task
            try:
                seconds = task.generator.send(None)
            except StopIteration:
                task.over = True
            else:
                self._schedule(task, time + seconds)

    def _schedule(self, task, time):
        # A task that is scheduled again is not woken by what was planned before.
        self._tickets = task.ticket = self._tickets + 1
        if time < FOREVER:
            heappush(self._heap, (time, task.ticket, task))


class Chaos:
    """Decide what goes wrong."""

    def __init__(self, random, rate):
        self.random = random
        self.rate = rate
        self.injected = Counter()

    def fault(self, *kinds):
        """Choose what goes wrong now; None if nothing does."""
        if self.random.random() >= self.rate:
            return None
        kind = self.random.choice(kinds)
        self.injected[kind] += 1
        return kind

    def seconds(self, longest):
        return self.random.random() * longest
