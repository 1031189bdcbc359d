"""Requests that wait at the head of a feed: how many there are, and what they wait for together."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import anyio
from starlette.types import Receive

from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.server.gathering import Gathering
from zeroeventhub.server.news import News
from zeroeventhub.server.shutdown import is_ending

__all__ = ["Question", "Waiting", "is_idle"]


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


_Found: TypeAlias = tuple[int, Page] | None
"""The edition of the news before a page was read, and the page; None when the server is ending."""


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
        read: Callable[[Question], Awaitable[Page]],
        most: int,
        told: Callable[[int], None],
        at_once: int,
    ) -> None:
        self._news = news
        self._read = read
        self._most = most
        self._told = told
        self._count = 0
        self._reading = anyio.Semaphore(at_once)
        # They are there for as long as somebody waits in them.
        self._gatherings: WeakValueDictionary[tuple[Question, int], Gathering[_Found]]
        self._gatherings = WeakValueDictionary()

    async def page(
        self, question: Question, page: Page, edition: int, *, deadline: float, receive: Receive
    ) -> tuple[Page, bool]:
        """Wait for a page that is not idle.

        Args:
            question: what was asked.
            page: the answer so far, which is idle.
            edition: that of the news before it was read.
            deadline: until when to wait, by the clock of the event loop.
            receive: tells when whoever asked has gone.

        Returns:
            The page, or else the last idle one, when time is over or the server is ending; and
            whether it was read by whoever asks, and not by another.

        Raises:
            Unavailable: too many wait.
        """
        is_own = True
        self._count_in()
        try:
            while is_idle(page, question.cursor):
                if page.cursor != question.cursor:
                    question = question._replace(cursor=page.cursor)
                gathering = self._gathering(question, edition)
                found, is_own = await gathering.result(receive, deadline=deadline)
                if found is None:
                    break
                edition, page = found
        finally:
            self._count -= 1
            self._told(self._count)
        return page, is_own

    def _gathering(self, question: Question, edition: int) -> Gathering[_Found]:
        gathering = self._gatherings.get((question, edition))
        if gathering is None:
            gathering = Gathering(partial(self._look, question, edition))
            self._gatherings[question, edition] = gathering
        return gathering

    async def _look(self, question: Question, edition: int) -> _Found:
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
        with anyio.CancelScope(shield=True):  # others wait for it, and a connection is at stake
            async with self._reading:
                page = await self._read(question)
        return edition, page

    def _count_in(self) -> None:
        if self._count >= self._most:
            raise Unavailable("Too many requests wait at the head of this feed.", retry_after=1)
        self._count += 1
        self._told(self._count)


def is_idle(page: Page, cursor: str) -> bool:
    """Tell whether a page says that there is nothing to read for now."""
    nothing = not page.events and not page.stop_reached
    return nothing and (page.caught_up or page.cursor == cursor)
