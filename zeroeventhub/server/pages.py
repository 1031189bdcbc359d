"""Encoded pages of a feed: kept for the next reader, and read ahead for a reader that reads on.

A full page below the horizon never changes, so its bytes are kept by the question that they answer:
at most `Capacity.kept_bytes` and `MOST` pages, each for `Capacity.kept_seconds`, and the least
recently used go first. A reader that asks for the page after the one that it got before will ask
for more: a batch of pages is read for it by one statement, while it takes those of the batch
before. A request for a page that is being read waits for it. History may become another one all the
same, by a failover or a restored backup: kept pages are sent only while the feed vouches for their
cursors, which it is asked every `VOUCHED` seconds while pages are sent.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any

import anyio

from zeroeventhub.errors import Gone, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST, Page
from zeroeventhub.server.long_poll import Question
from zeroeventhub.server.source import Source
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.lines import size_of
from zeroeventhub.wire.ndjson import encode_page

__all__ = [
    "EncodedPage",
    "Pages",
    "tag_of",
]

BATCH = 16
"""How many pages are read ahead by one statement: what is done once for all of them costs less."""

SHARE = 4
"""What part of all that is kept may be read ahead for one reader; less where more readers read on:
what is dropped before its reader asks for it was read in vain."""

MOST = 256
"""How many pages are kept, however small: all of them are looked at when any is vouched for."""

OVERHEAD = 1_000
"""Bytes that a page takes beside its body, cursors and stop."""

VOUCHED = 0.05
"""Seconds for which kept pages are taken to be of the feed's history: failovers take longer."""

READERS = 1_000
"""Of how many readers it is remembered what they will ask for next."""

READING_ON = 2.0
"""Seconds after which a reader that has not asked for its next page does not read on."""


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """Hold a page as it is sent.

    Attributes:
        body: its bytes.
        tag: their entity tag; None if they may be others another time.
        events: how many events it has.
        cursor: where the next page begins.
        full: whether there is one already.
    """

    body: bytes
    tag: str | None
    events: int
    cursor: str
    full: bool

    @classmethod
    def of(cls, page: Page, question: Question | None) -> "EncodedPage":
        """Encode a page.

        Args:
            page: the page.
            question: what it answers; None if the answer is for nobody else.
        """
        body = encode_page(page)
        lasts = page.full and question is not None and question.cursor not in {FIRST, LAST}
        tag = tag_of(page.cursor, body) if lasts else None
        return cls(body, tag, len(page.events), page.cursor, page.full)


class Pages:
    """Keep the pages of a feed that can never be others, and read them ahead.

    Only of a feed that can vouch for them.

    Args:
        source: the feed.
        capacity: how much is kept, and for how long.
    """

    def __init__(self, source: Source, capacity: Capacity) -> None:
        self._source = source
        self._keeps = source.has("vouch")
        self._room = capacity.kept_bytes
        self._seconds = capacity.kept_seconds
        self._kept: OrderedDict[Question, tuple[float, EncodedPage]] = OrderedDict()
        self._taken = 0
        # What readers will ask for next, since when, and where to read on once they do: by default
        # behind the page that answers them.
        self._expected: OrderedDict[Question, tuple[float, Question | None]] = OrderedDict()
        self._under_way: dict[Question, anyio.Event] = {}
        self._vouching = anyio.Lock()
        self._vouched_until = -math.inf

    async def get(self, question: Question) -> EncodedPage | None:
        """Return the page that answers a question, if it is kept or being read ahead.

        Raises:
            ZeroEventHubError: the feed cannot say whether kept pages still hold.
        """
        if (done := self._under_way.get(question)) is not None:
            await done.wait()
        until, page = self._kept.get(question, (0.0, None))
        if page is None:
            return None
        now = monotonic()
        if until < now:
            self._drop(question)
            return None
        if self._vouched_until < now and not await self._vouch():
            return None
        if question in self._kept:
            self._kept.move_to_end(question)
        return page

    async def _vouch(self) -> bool:
        """Ask the feed whether kept pages still are of its history; drop them if they are not.

        The last of their cursors vouches for all, as long as all are of one history.
        """
        async with self._vouching:
            cursors = {question.cursor for question in self._kept}
            cursors |= {page.cursor for _, page in self._kept.values()}
            if not cursors or monotonic() <= self._vouched_until:
                return True
            try:
                await self._source.call("vouch")(cursors)
            except Gone:
                self.clear()
                return False
            self._vouched_until = monotonic() + VOUCHED
        return True

    async def encoded(self, page: Page, question: Question | None) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never be another.

        Args:
            page: the page.
            question: what it answers; None if the answer is for nobody else.
        """
        size = 0 if self._keeps else size_of(page.events)  # a TableFeed's lines are there already
        encoded = await self._source.work(size, EncodedPage.of, page, question)
        if question is not None:
            await self._keep([(question, encoded)])
        return encoded

    async def _keep(self, found: Sequence[tuple[Question, EncodedPage]]) -> None:
        """Keep those of some pages that can never be others, if they are of the history of all."""
        # Readers make up filters of their own: their pages would throw out those of all.
        lasting = [
            (question, page)
            for question, page in found
            if page.tag is not None and not question.is_filtered
        ]
        if not lasting or not self._keeps:
            return
        with suppress(ZeroEventHubError):  # who asks for a page that is kept is told
            if monotonic() <= self._vouched_until or await self._vouch():
                now = monotonic()
                while self._kept and next(iter(self._kept.values()))[0] < now:
                    self._drop(next(iter(self._kept)))
                for question, page in lasting:
                    self._drop(question)
                    self._kept[question] = now + self._seconds, page
                    self._taken += _weight(question, page)
                while self._taken > self._room or len(self._kept) > MOST:
                    self._drop(next(iter(self._kept)))

    def _drop(self, question: Question) -> None:
        _, page = self._kept.pop(question, (0.0, None))
        if page is not None:
            self._taken -= _weight(question, page)

    def clear(self) -> None:
        """Keep nothing any longer: history may be another one."""
        self._kept.clear()
        self._taken = 0

    def ahead(
        self, question: Question, page: EncodedPage
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what reads the pages behind one that is full, if its reader seems to read on.

        Args:
            question: what was asked for that one.
            page: that one.
        """
        following, now = question._replace(cursor=page.cursor), monotonic()
        reads_on = question in self._expected
        wanted = self._expected.pop(question, (now, None))[1] or following
        self._expected[following] = now, self._expected.pop(following, (now, None))[1]
        while len(self._expected) > READERS or next(iter(self._expected.values()))[0] < (
            now - READING_ON
        ):
            self._expected.popitem(last=False)
        # A reader has two entries: of its next page, and of the next one that is to be read ahead.
        share = self._room // max(SHARE, len(self._expected) // 2)
        most = min(BATCH, share // max(len(page.body), 1))
        if not (reads_on and most and self._may_be_read(wanted)):
            return None
        return partial(self._read, wanted, most)

    def _may_be_read(self, question: Question) -> bool:
        """Tell whether pages may be read that nobody has asked for, and are not there."""
        return (
            self._keeps
            and not question.is_filtered
            and question not in self._under_way
            and question not in self._kept
            and self._source.has_spare_room
        )

    async def _read(self, question: Question, count: int) -> None:
        """Read pages; and those behind them, for as long as their reader is waiting for them."""
        with anyio.CancelScope(shield=True):  # others wait for it
            while self._may_be_read(question):
                done = self._under_way[question] = anyio.Event()
                following: Question | None = None
                try:
                    found: list[tuple[Question, EncodedPage]] = []
                    start = question
                    for page in await self._source.read_pages(question, count):
                        found.append((start, EncodedPage.of(page, start)))
                        start = start._replace(cursor=page.cursor)
                    await self._keep(found)
                    following = start if found and found[-1][1].full else None
                except Exception:  # noqa: BLE001, S110 - who asks for the page meets it, and is told
                    pass
                finally:
                    is_late = done.statistics().tasks_waiting > 0
                    del self._under_way[question]
                    done.set()
                if following is None:
                    return
                if not is_late:
                    self._expected[question] = monotonic(), following
                    return
                question = following


def tag_of(cursor: str, body: bytes) -> str:
    """Return the entity tag of a page's bytes, which can never be others.

    The last cursor of a page vouches for the history before it, and so for the page.

    Args:
        cursor: the last one.
        body: the bytes.
    """
    identity = f"{cursor} {len(body)}".encode()
    return f'"{blake2b(identity, digest_size=16).hexdigest()}"'


def _weight(question: Question, page: EncodedPage) -> int:
    """Return how many bytes a page takes, with the question that it answers."""
    words = (question.cursor, page.cursor, *(str(value) for _, value in question.options))
    return len(page.body) + sum(map(len, words)) + OVERHEAD
