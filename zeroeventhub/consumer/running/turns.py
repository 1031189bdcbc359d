"""Who may work now, where more want to than may: first come, first served."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

__all__ = ["Turn", "Turns"]

LONG = 1.0
"""Seconds after which a turn goes to who waits for one."""


class Turns:
    """Let so many work at a time; threads and tasks queue alike.

    Args:
        number: how many.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._queue: deque[Future[None]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._queue)

    def ask(self, *, first: bool = False) -> Future[None]:
        """Queue for a turn; the future is done when it has come.

        Args:
            first: queue before all others.
        """
        asked: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                asked.set_result(None)
            elif first:
                self._queue.appendleft(asked)
            else:
                self._queue.append(asked)
        return asked

    def give_back(self) -> None:
        """Let the next one work."""
        with self._lock:
            while self._queue:
                asked = self._queue.popleft()
                # Who was cancelled while waiting does not work any more.
                if asked.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        asked.set_result(None)

    async def come(self, asked: Future[None]) -> None:
        """Wait in a task until a turn has come, and give it back if the task ends meanwhile."""
        try:
            await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            # It may have come in the same moment.
            if not asked.cancel():
                self.give_back()
            raise

    @contextmanager
    def one(self, *, first: bool = False) -> Iterator[None]:
        """Work for the length of a block, in a thread."""
        self.ask(first=first).result()
        try:
            yield
        finally:
            self.give_back()

    @asynccontextmanager
    async def one_async(self, *, first: bool = False) -> AsyncIterator[None]:
        """Work for the length of a block, in a task."""
        await self.come(self.ask(first=first))
        try:
            yield
        finally:
            self.give_back()


class Turn:
    """Be one of those who take turns: work for a while, then let others.

    Args:
        turns: the turns that there are.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._since: float | None = None

    @property
    def is_long(self) -> bool:
        """Whether it is time to let somebody else work who waits for it."""
        return (
            self._since is not None and self._turns.wanted and time.monotonic() - self._since > LONG
        )

    def give_back(self) -> None:
        """End the turn, if it is one's turn."""
        if self._since is not None:
            self._since = None
            self._turns.give_back()

    def take(self) -> None:
        """Wait in a thread until it is one's turn, if it is not already."""
        if self._since is None:
            self._turns.ask().result()
            self._since = time.monotonic()

    async def take_async(self) -> None:
        """Wait in a task until it is one's turn, if it is not already."""
        if self._since is None:
            await self._turns.come(self._turns.ask())
            self._since = time.monotonic()
