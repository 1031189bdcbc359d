"""Those who wait with the same question: one of them waits and reads for all."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, TypeVar

import anyio
from starlette.types import Receive

from zeroeventhub.server.slices import in_slices

__all__ = ["Gathering"]

_Found = TypeVar("_Found")


@dataclass(eq=False, slots=True)
class _Seat:
    """Be the place of one who waits.

    Attributes:
        scope: what it waits in.
        called: whether it is to get up: for what was found, or to look for it.
    """

    scope: anyio.CancelScope
    called: bool = False

    def call(self) -> None:
        self.called = True
        self.scope.cancel()


@dataclass
class _Outcome(Generic[_Found]):
    """Hold what was found, or why not."""

    found: list[_Found] = field(default_factory=list)
    error: Exception | None = None
    traceback: TracebackType | None = None


class Gathering(Generic[_Found]):
    """Wait together for one thing.

    Whoever comes first looks for it; when it leaves, the next goes on. Those who only wait do so
    in the task of their request, without another.

    Args:
        look: waits for it and finds it.
    """

    def __init__(self, look: Callable[[], Awaitable[_Found]]) -> None:
        self._look = look
        self._is_led = False
        self._seats: dict[_Seat, None] = {}
        self._outcome: _Outcome[_Found] | None = None

    async def result(
        self, receive: Receive | None = None, *, deadline: float = math.inf
    ) -> tuple[_Found | None, bool]:
        """Wait, and return what was found; None if time is over or the reader is gone.

        Args:
            receive: tells when whoever asked has gone; None for what does not take long.
            deadline: by the clock of the event loop.

        Returns:
            It, and whether it was found by whoever asks, and not by another.
        """
        is_own = False
        while self._outcome is None:
            is_own = not self._is_led
            if is_own:
                await self._lead(receive, deadline)
            elif await self._sit(receive, deadline):
                continue
            if self._outcome is None:
                return None, is_own
        if self._outcome.error is not None:
            # Each raise adds to the traceback of the one error that all who wait are told of.
            raise self._outcome.error.with_traceback(self._outcome.traceback)
        return self._outcome.found[0], is_own

    async def _sit(self, receive: Receive | None, deadline: float) -> bool:
        """Wait to be called; tell whether that was so."""
        seat = _Seat(anyio.CancelScope(deadline=deadline))
        self._seats[seat] = None
        has_got_up = False
        try:
            with seat.scope:
                await (anyio.sleep_forever() if receive is None else _until_gone(receive))
            has_got_up = seat.called
        finally:
            self._seats.pop(seat, None)
            if seat.called and not has_got_up:  # gone at the same moment
                self._hand_on()
        return has_got_up

    async def _lead(self, receive: Receive | None, deadline: float) -> None:
        self._is_led = True
        try:
            if receive is None:
                await self._find()
            else:
                await self._find_while_there(receive, deadline)
        finally:
            self._is_led = False
            if self._outcome is None:
                self._hand_on()
            else:
                seats, self._seats = self._seats, {}
                await in_slices(seat.call for seat in seats)

    async def _find_while_there(self, receive: Receive, deadline: float) -> None:
        with anyio.CancelScope(deadline=deadline) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, receive, scope)
                await self._find()
                group.cancel_scope.cancel()

    async def _find(self) -> None:
        try:
            outcome = _Outcome([await self._look()])
        except Exception as error:  # noqa: BLE001 - all who wait are told of it
            outcome = _Outcome(error=error, traceback=error.__traceback__)
        self._outcome = outcome

    def _hand_on(self) -> None:
        """Call one of those who wait, to look for the others."""
        if self._outcome is None and not self._is_led:
            seat = next(iter(self._seats), None)
            if seat is not None:
                del self._seats[seat]
                seat.call()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await _until_gone(receive)
    scope.cancel()
