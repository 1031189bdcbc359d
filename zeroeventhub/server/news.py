"""Wait for something new in a feed: one look at its head serves everybody who waits."""

import math
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.server.shutdown import is_ending
from zeroeventhub.server.slices import in_slices

__all__ = ["News"]

LEISURE = 4
"""So many times as long as a look takes, nobody looks: at a feed, or at any of several."""

QUIET = 0.01
"""The part of the time since the last news that passes between two looks, within bounds."""

RAREST = 4
"""So many times as long as at first it is between two looks where nothing has come for long."""

LONGEST = 0.005
"""Seconds that a look is taken for at most: one that had to wait says nothing of the next."""

PAUSES = (0.001, 0.002, 0.004, 0.008)
"""Seconds between looks once something is being committed, which takes a moment."""

DEAF = 0.1
"""Seconds for which commits are not heard of after one that brought no news."""


class News:
    """Wake those who wait when the head of a feed has changed; one instance a feed and process.

    Whoever waits first looks for all; when it leaves, the next one goes on. Nobody looks while
    nobody waits, and those who wait hold nothing of the feed's.

    Args:
        head: asks the feed for something that changes with its head.
        interval: seconds between two looks at it while somebody waits; more where nothing comes,
            where looks take long, and where many feeds of this process are waited for.
    """

    _watched: ClassVar[set["News"]] = set()
    """Those whose feeds are looked at; several event loops may add to it."""

    def __init__(self, head: Callable[[], Awaitable[Hashable]], interval: float) -> None:
        self._head = head
        self._interval = interval
        self._took = 0.0
        self._came_at = -math.inf
        self._last: Hashable = None
        self._looking = False
        self._waiting: dict[anyio.Event, None] = {}
        self._hurry: Callable[[], object] | None = None
        self._is_late = False
        self._deaf_until = -math.inf
        self.edition = 0
        """Counts the changes. Remember it before you read, and wait for another."""

    async def after(self, edition: int) -> None:
        """Wait until there is another edition than this one, or the server is ending."""
        while self.edition == edition and not is_ending():
            if self._looking:
                await self._told()
            else:
                await self._look(edition)

    def hurry(self) -> None:
        """Look soon, for something is being committed; any thread may say so."""
        hurry, self._hurry = self._hurry, None
        if hurry is None:
            self._is_late = True  # for the next pause
            return
        with suppress(RuntimeError):  # the event loop has ended
            hurry()

    async def _told(self) -> None:
        event = anyio.Event()
        self._waiting[event] = None
        try:
            await event.wait()
        except BaseException:
            if event.is_set():  # chosen to look, and gone at the same moment
                self._hand_on()
            raise
        finally:
            self._waiting.pop(event, None)

    async def _look(self, edition: int) -> None:
        self._looking = True
        self._watched.add(self)
        try:
            pauses: Iterator[float] = iter(())
            while self.edition == edition:
                if (pause := next(pauses, None)) is not None:
                    await anyio.sleep(pause)
                elif await self._pause():
                    pauses = iter(PAUSES)
                    continue
                if is_ending():
                    await self._publish(self._last)  # all who wait are to get up
                    return
                began = anyio.current_time()
                with anyio.CancelScope(shield=True):  # a query cut short costs its connection
                    head = await self._head()
                self._took = min(anyio.current_time() - began, LONGEST)
                if head != self._last:
                    await self._publish(head)
        except ZeroEventHubError:
            # Everybody who waits meets it by reading.
            await self._publish(None)
        finally:
            self._looking = False
            self._watched.discard(self)
            self._hand_on()

    async def _pause(self) -> bool:
        """Wait until it is time to look, or to hurry; tell which."""
        hurried = anyio.Event()
        if anyio.current_time() > self._deaf_until:
            is_late, self._is_late = self._is_late, False
            if is_late:
                hurried.set()
            self._hurry = partial(_soon(), hurried.set)
        try:
            with anyio.move_on_after(self._leisure()):
                await hurried.wait()
        finally:
            self._hurry = None
        if hurried.is_set():
            self._deaf_until = anyio.current_time() + DEAF
        return hurried.is_set()

    def _leisure(self) -> float:
        """Return for how many seconds nobody looks, unless somebody hurries."""
        silence = anyio.current_time() - self._came_at
        shared = LEISURE * self._took * len(self._watched)
        return max(min(QUIET * silence, RAREST * self._interval), self._interval, shared)

    async def _publish(self, head: Hashable) -> None:
        self._last = head
        self._came_at = anyio.current_time()
        self._deaf_until = -math.inf
        self.edition += 1
        waiting, self._waiting = self._waiting, {}
        await in_slices(event.set for event in waiting)

    def _hand_on(self) -> None:
        """Wake one of those who wait, to look for the others."""
        if (event := next(iter(self._waiting), None)) is not None:
            del self._waiting[event]
            event.set()


def _soon() -> Callable[[Callable[[], object]], object]:
    """Return what lets the event loop call something, from any thread and without waiting."""
    token: Any = anyio.lowlevel.current_token()
    loop = getattr(token, "native_token", token)  # before anyio 4.11 they are the same
    soon: Callable[[Callable[[], object]], object]
    soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return soon
