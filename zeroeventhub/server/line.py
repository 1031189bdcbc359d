"""Let in as many at once as there is room for; the others stand in line."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Unavailable

__all__ = ["Line"]


class Line:
    """Share out what there is only so much of, in the order of asking.

    Who takes more than there is gets it when nobody else has any.

    Args:
        room: how much there is.
        capacity: how many may stand in line, and for how long.
        refusal: what is said to those for whom the line is too long, or too slow.
    """

    def __init__(self, room: int, capacity: Capacity, refusal: str) -> None:
        self._room = room
        self._longest = capacity.queue
        self._patience = capacity.patience
        self._refusal = refusal
        self._queue: dict[anyio.Event, int] = {}
        self.taken = 0
        """How much is taken now."""

    @asynccontextmanager
    async def place(self, size: int = 1) -> AsyncIterator[None]:
        """Have some of the room for a while.

        Raises:
            Unavailable: the line is too long or too slow.
        """
        if self.fits(size):
            self.taken += size
        else:
            await self._stand(size)
        try:
            yield
        finally:
            self.take(-size)

    def fits(self, size: int) -> bool:
        """Tell whether there is room at once."""
        return not self._queue and self._has(size)

    def take(self, size: int) -> None:
        """Take some at once, whatever there is; give it back as what is less than nothing."""
        self.taken += size
        self._call()

    async def _stand(self, size: int) -> None:
        if len(self._queue) >= self._longest:
            raise Unavailable(self._refusal, retry_after=1)
        called = anyio.Event()
        self._queue[called] = size
        try:
            with anyio.move_on_after(self._patience):
                await called.wait()
        except BaseException:
            if called.is_set():  # it was its turn, and it is gone at the same moment
                self.take(-size)
            raise
        finally:
            self._queue.pop(called, None)
            self._call()  # the next may be content with less
        if not called.is_set():
            raise Unavailable(self._refusal, retry_after=1)

    def _call(self) -> None:
        while self._queue:
            called, size = next(iter(self._queue.items()))
            if not self._has(size):
                return
            del self._queue[called]
            self.taken += size
            called.set()

    def _has(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._room
