"""The page that a reader will ask for next, read while it takes the one before."""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

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
        self._expected: OrderedDict[Question, None] = OrderedDict()
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
        async with self._vouching:
            cursors = self._pages.cursors()
            if not cursors or anyio.current_time() <= self._vouched_until:
                return True
            try:
                await self._source.call("vouch")(cursors)
            except Gone:
                self._pages.clear()
                return False
            self._vouched_until = anyio.current_time() + VOUCHED
        return True

    async def encoded(self, question: Question | None, page: Page) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never be another.

        Args:
            question: what it answers; None if the answer is for nobody else.
            page: the page.
        """
        body = await self._source.work(size_of(page.events), encode_page, page)
        encoded = _encoded(question, page, body)
        if question is not None:
            await self._keep([(question, encoded)])
        return encoded

    async def _keep(self, found: Sequence[tuple[Question, EncodedPage]]) -> None:
        """Keep those of some pages that can never be others, if they are of the history of all."""
        lasting = [(question, page) for question, page in found if page.tag is not None]
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
        self._expected.pop(question, None)
        self._expected[following] = None
        if len(self._expected) > READERS:
            self._expected.popitem(last=False)
        most = min(PAGES, self._pages.most(len(page.body)))
        if not (reads_on and self._keeps and most and self._source.has_spare_room):
            return None
        return self._continued(following, most)

    def _continued(self, question: Question, most: int) -> Callable[[], Awaitable[None]] | None:
        """Return what reads on behind the kept pages, if fewer than may be are kept."""
        for _ in range(most):
            if question in self._under_way:
                return None
            page = self._pages.get(question)
            if page is None:
                return partial(self._read, question, most)
            question = replace(question, cursor=page.cursor)
        return None

    def forget(self) -> None:
        """Keep nothing: history may be another one."""
        self._pages.clear()

    async def _read(self, question: Question, count: int) -> None:
        done = self._under_way[question] = anyio.Event()
        found, following = [], question
        try:
            with anyio.CancelScope(shield=True):  # others wait for it
                for page, body in await self._source.read_pages(question, count, encode_page):
                    found.append((following, _encoded(following, page, body)))
                    following = replace(following, cursor=page.cursor)
                await self._keep(found)
        except Exception:  # noqa: BLE001, S110 - who asks for the page meets it, and is told
            pass
        finally:
            del self._under_way[question]
            done.set()


def _encoded(question: Question | None, page: Page, body: bytes) -> EncodedPage:
    tag = None if question is None else tag_of(page, question.cursor, body)
    return EncodedPage(body, tag, len(page.events), page.cursor, page.full)
