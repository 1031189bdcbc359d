"""The page that a reader will ask for next, read while it takes the one before."""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic

import anyio

from zeroeventhub.errors import Gone, ZeroEventHubError
from zeroeventhub.lines import size_of
from zeroeventhub.ndjson import encode_page
from zeroeventhub.protocol import Page
from zeroeventhub.server.caching import tag_of
from zeroeventhub.server.kept_pages import EncodedPage, KeptPages
from zeroeventhub.server.source import Source
from zeroeventhub.server.waiting import Question

__all__ = ["ReadAhead"]

PAGES = 8
"""How many pages are read ahead at once: what is done once for all of them costs less."""

VOUCHED = 0.05
"""Seconds for which kept pages are taken to be of the feed's history: failovers take longer."""

READERS = 1_000
"""Of how many readers it is remembered what they will ask for next."""


class ReadAhead:
    """Keep pages that can never be others, and read some more for those who read on.

    Only of a feed that can vouch for them: history may be another one all the same.

    Args:
        source: the feed.
        pages: keeps them.
    """

    def __init__(self, source: Source, pages: KeptPages) -> None:
        self._source = source
        self._pages = pages
        self._keeps = source.has("vouch")
        # What readers will ask for next, and what is to be read once they do: by default the page
        # behind it.
        self._expected: OrderedDict[Question, Question | None] = OrderedDict()
        self._under_way: dict[Question, anyio.Event] = {}
        self._vouching = anyio.Lock()
        self._vouched_until = -math.inf

    async def page(self, question: Question) -> EncodedPage | None:
        """Return the page that answers a question, if it is kept or being read ahead.

        Raises:
            ZeroEventHubError: the feed cannot say whether kept pages still hold.
        """
        if (done := self._under_way.get(question)) is not None:
            await done.wait()
        if self._pages.get(question) is not None:
            await self._vouch()
        return self._pages.get(question)

    async def _vouch(self) -> bool:
        """Look whether the pages still are of the feed's history; forget them, and say no, if not.

        The last of their cursors vouches for all, as long as all are of one history.
        """
        if monotonic() <= self._vouched_until:
            return True
        async with self._vouching:
            cursors = self._pages.cursors()
            if not cursors or monotonic() <= self._vouched_until:
                return True
            try:
                await self._source.call("vouch")(cursors)
            except Gone:
                self._pages.clear()
                return False
            self._vouched_until = monotonic() + VOUCHED
        return True

    async def encoded(self, question: Question | None, page: Page) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never be another.

        Args:
            question: what it answers; None if the answer is for nobody else.
            page: the page.
        """
        encoded = await self._source.work(size_of(page.events), _encoded, question, page)
        if question is not None:
            await self._keep([(question, encoded)])
        return encoded

    async def _keep(self, found: Sequence[tuple[Question, EncodedPage]]) -> None:
        """Keep those of some pages that can never be others, if they are of the history of all."""
        # Readers make up filters of their own: their pages would throw out those of all.
        lasting = [
            (question, page)
            for question, page in found
            if page.tag is not None and "types" not in dict(question.options)
        ]
        if not lasting or not self._keeps:
            return
        with suppress(ZeroEventHubError):  # who asks for a page that is kept is told
            if await self._vouch():
                for question, page in lasting:
                    self._pages.keep(question, page)

    def behind(self, question: Question, page: EncodedPage) -> Callable[[], Awaitable[None]] | None:
        """Return what reads the pages behind one that is full, if its reader seems to read on.

        Args:
            question: what was asked for that one.
            page: that one.
        """
        following = replace(question, cursor=page.cursor)
        reads_on = question in self._expected
        wanted = self._expected.pop(question, None) or following
        self._expected.setdefault(following, None)
        if len(self._expected) > READERS:
            self._expected.popitem(last=False)
        most = min(PAGES, self._pages.most(len(page.body)))
        if not (reads_on and most and self._may_be_read(wanted)):
            return None
        return partial(self._read, wanted, most)

    def _may_be_read(self, question: Question) -> bool:
        """Tell whether pages may be read that nobody has asked for, and are not there."""
        return (
            self._keeps
            and "types" not in dict(question.options)
            and question not in self._under_way
            and self._pages.get(question) is None
            and self._source.has_spare_room
        )

    def forget(self) -> None:
        """Keep nothing: history may be another one."""
        self._pages.clear()

    async def _read(self, question: Question, count: int) -> None:
        """Read pages; and those behind them, for as long as their reader is waiting for them.

        What was read is made ready while the database already works on the next.
        """
        with anyio.CancelScope(shield=True):  # others wait for it
            async with anyio.create_task_group() as group:
                while self._may_be_read(question):
                    done = self._under_way[question] = anyio.Event()
                    pages = await self._pages_of(question, count)
                    is_late = done.statistics().tasks_waiting > 0
                    group.start_soon(self._make, question, pages, done)
                    if not (pages and pages[-1].full):
                        return
                    following = replace(question, cursor=pages[-1].cursor)
                    if not is_late:
                        self._expected[question] = following
                        return
                    question = following

    async def _pages_of(self, question: Question, count: int) -> list[Page]:
        try:
            return await self._source.read_pages(question, count)
        except Exception:  # noqa: BLE001 - who asks for the page meets it, and is told
            return []

    async def _make(self, question: Question, pages: list[Page], done: anyio.Event) -> None:
        """Make pages ready, keep them, and tell those who wait for them."""
        try:
            size = sum(size_of(page.events) for page in pages)
            await self._keep(await self._source.work(size, _encoded_all, question, pages))
        except Exception:  # noqa: BLE001, S110 - who asks for the page meets it, and is told
            pass
        finally:
            del self._under_way[question]
            done.set()


def _encoded(question: Question | None, page: Page) -> EncodedPage:
    body = encode_page(page)
    tag = None if question is None else tag_of(page, question.cursor, body)
    return EncodedPage(body, tag, len(page.events), page.cursor, page.full)


def _encoded_all(question: Question, pages: Sequence[Page]) -> list[tuple[Question, EncodedPage]]:
    """Return pages as they are sent, each with what it answers."""
    found = []
    for page in pages:
        found.append((question, _encoded(question, page)))
        question = replace(question, cursor=page.cursor)
    return found
