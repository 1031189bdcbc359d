"""The page that a reader will ask for next, read while it takes the one before."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio

from zeroeventhub.ndjson import encode_page
from zeroeventhub.protocol import Page
from zeroeventhub.server.caching import tag_of
from zeroeventhub.server.kept_pages import EncodedPage, KeptPages
from zeroeventhub.server.source import Source
from zeroeventhub.server.waiting import Question

__all__ = ["ReadAhead"]

READERS = 1_000
"""Of how many readers it is remembered what they will ask for next."""


class ReadAhead:
    """Keep pages that can never be others, and read one more for those who read on.

    Args:
        source: the feed.
        pages: keeps them.
    """

    def __init__(self, source: Source, pages: KeptPages) -> None:
        self._source = source
        self._pages = pages
        self._expected: OrderedDict[Question, None] = OrderedDict()
        self._under_way: dict[Question, anyio.Event] = {}

    async def page(self, question: Question) -> EncodedPage | None:
        """Return the page that answers a question, if it is kept or being read ahead."""
        if (done := self._under_way.get(question)) is not None:
            await done.wait()
        return self._pages.get(question)

    async def encoded(self, question: Question | None, page: Page) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never be another.

        Args:
            question: what it answers; None if the answer is for nobody else.
            page: the page.
        """
        body = await self._source.work(page, encode_page, page)
        tag = None if question is None else tag_of(page, question.cursor, len(body))
        encoded = EncodedPage(body, tag, len(page.events), page.cursor, page.full)
        if question is not None and tag is not None:
            self._pages.keep(question, encoded)
        return encoded

    def behind(self, question: Question, cursor: str) -> Callable[[], Awaitable[None]] | None:
        """Return what reads the page behind one that is full, if its reader seems to read on.

        Args:
            question: what was asked for that one.
            cursor: where it ends.
        """
        following = replace(question, cursor=cursor)
        reads_on = question in self._expected
        self._expected.pop(question, None)
        self._expected[following] = None
        if len(self._expected) > READERS:
            self._expected.popitem(last=False)
        if not reads_on or following in self._under_way or self._pages.get(following) is not None:
            return None
        return partial(self._read, following) if self._source.has_spare_room else None

    def forget(self) -> None:
        """Keep nothing: history may be another one."""
        self._pages.clear()

    async def _read(self, question: Question) -> None:
        done = self._under_way[question] = anyio.Event()
        try:
            with anyio.CancelScope(shield=True):  # others wait for it
                page = await self._source.read_now(question)
                await self.encoded(question, page)
        except Exception:  # noqa: BLE001, S110 - who asks for the page meets it, and is told
            pass
        finally:
            del self._under_way[question]
            done.set()
