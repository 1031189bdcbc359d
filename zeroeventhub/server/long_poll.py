"""Requests that wait at the head of a feed: one look at the head serves all of them."""

import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
from starlette.types import Receive

from zeroeventhub.errors import Unavailable, ZeroEventHubError
from zeroeventhub.protocol import Page
from zeroeventhub.server.sending import READER, Line, is_ending, on_behalf_of

__all__ = [
    "Found",
    "Gathering",
    "News",
    "Question",
    "Waiting",
    "is_idle",
]

SLICE = 4
"""How many are woken at once: what they then do takes a millisecond or two."""

PAUSE = 0.005
"""Seconds at most between one slice and the next."""


async def in_slices(calls: Iterable[Callable[[], object]]) -> None:
    """Make calls, a few at a time, and let others go on in between.

    All are made, also if whoever makes them is cancelled: then the rest at once.
    """
    left = iter(calls)
    began = anyio.current_time()
    try:
        with anyio.CancelScope(shield=True):
            for number, call in enumerate(left, 1):
                call()
                if number % SLICE == 0:
                    await anyio.lowlevel.checkpoint()
                    # As long again as they took: half of the time is everybody else's.
                    await anyio.sleep(min(anyio.current_time() - began, PAUSE))
                    began = anyio.current_time()
    finally:
        for call in left:
            call()


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
        look: waits for it and finds it; it is given the names of those who wait.
    """

    def __init__(self, look: Callable[[Collection[str]], Awaitable[_Found]]) -> None:
        self._look = look
        self._readers: set[str] = set()
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
        self._readers.add(READER.get())
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
            outcome = _Outcome([await self._look(self._readers)])
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


LEISURE = 4
"""So many times as long as a look takes, nobody looks: at a feed, or at any of several."""

QUIET = 0.01
"""The part of the time since the last news that passes between two looks, within bounds."""

RAREST = 10
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
                # A query cut short costs its connection, and all who wait need the answer.
                with anyio.CancelScope(shield=True), on_behalf_of(""):
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


class Question(NamedTuple):
    """Say what a page is to be read of.

    Attributes:
        partition: one of the feed's.
        cursor: where to read from.
        limit: how many events to return at most.
        options: what else the feed's `read` is given, by name.
    """

    partition: int
    cursor: str
    limit: int
    options: tuple[tuple[str, Any], ...]

    @property
    def is_filtered(self) -> bool:
        """Tell whether only events of some types are wanted."""
        return any(name == "types" for name, _ in self.options)


class Found(NamedTuple):
    """Hold a page as far as there was room for it.

    Attributes:
        page: the page.
        is_part: whether it has one event at most, for too much was on its way to who read it.
    """

    page: Page
    is_part: bool


_VersionedFound: TypeAlias = tuple[int, Found] | None
"""The edition of the news before a page was read, and the page; None when the server is ending."""


_TOO_MANY = "Too many requests wait at the head of this feed."


class Waiting:
    """Let requests wait for something to read, and read once for all who ask the same.

    Args:
        news: tells when there may be something.
        read: reads a page.
        most: how many may wait at once.
        told: is told how many do, when that changes.
        at_once: how many of their questions may be read at once, so that requests which do not
            wait find a place in the queue of the feed as well.
    """

    def __init__(
        self,
        news: News,
        read: Callable[[Question], Awaitable[Found]],
        most: int,
        told: Callable[[int], None],
        at_once: int,
    ) -> None:
        self._news = news
        self._read = read
        self._most = most
        self._told = told
        self._count = 0
        self._reading = Line(at_once, queue=2 * most, patience=math.inf, refusal=_TOO_MANY)
        # They are there for as long as somebody waits in them.
        self._gatherings: WeakValueDictionary[tuple[Question, int], Gathering[_VersionedFound]]
        self._gatherings = WeakValueDictionary()

    async def page(
        self, question: Question, found: Found, edition: int, *, deadline: float, receive: Receive
    ) -> tuple[Question, Found, bool]:
        """Wait for a page that is not idle.

        Args:
            question: what was asked.
            found: the answer so far, which is idle.
            edition: that of the news before it was read.
            deadline: until when to wait, by the clock of the event loop.
            receive: tells when whoever asked has gone.

        Returns:
            The page, or else the last idle one, when time is over or the server is ending, behind
            what was asked for it; and whether it was read by whoever asks, and not by another.

        Raises:
            Unavailable: too many wait.
        """
        is_own = True
        self._count_in()
        try:
            while is_idle(found.page, question.cursor):
                if found.page.cursor != question.cursor:
                    question = question._replace(cursor=found.page.cursor)
                gathering = self._gathering(question, edition)
                versioned, is_own = await gathering.result(receive, deadline=deadline)
                if versioned is None:
                    break
                edition, found = versioned
        finally:
            self._count -= 1
            self._told(self._count)
        return question, found, is_own

    def _gathering(self, question: Question, edition: int) -> Gathering[_VersionedFound]:
        gathering = self._gatherings.get((question, edition))
        if gathering is None:
            gathering = Gathering(partial(self._look, question, edition))
            self._gatherings[question, edition] = gathering
        return gathering

    async def _look(
        self, question: Question, edition: int, readers: Collection[str]
    ) -> _VersionedFound:
        """Wait for news, and read behind them, after everybody here has asked."""
        try:
            await self._news.after(edition)
        except Exception:
            # The next who asks looks anew; the edition is the same, as nothing was read.
            self._gatherings.pop((question, edition), None)
            raise
        if is_ending():
            return None
        edition = self._news.edition
        # What is read for several readers waits behind nothing that is read for one of them.
        reader = READER.get() if len(readers) == 1 else ""
        with anyio.CancelScope(shield=True), on_behalf_of(reader):  # a connection is at stake
            async with self._reading.place():
                found = await self._read(question)
        return edition, found

    def _count_in(self) -> None:
        if self._count >= self._most:
            raise Unavailable(_TOO_MANY, retry_after=1)
        self._count += 1
        self._told(self._count)


def is_idle(page: Page, cursor: str) -> bool:
    """Tell whether a page says that there is nothing to read for now."""
    nothing = not page.events and not page.stop_reached
    return nothing and (page.caught_up or page.cursor == cursor)
