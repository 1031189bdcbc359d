"""The page cache: encoded pages for the next reader, and pages that are read ahead.

A full page below the horizon never changes, so the cache keeps its bytes by the request that they
answer: at most `Capacity.kept_bytes` and `MOST` pages, each for `Capacity.kept_seconds`, the most
recently used ones. A reader that requests the page after its last one will read on: the cache reads
a batch of pages for it with one statement, takes each page as soon as it is there, and reads the
next batch when the reader has requested half of this one. A request for a page that is being read
waits for it. The history may still be replaced, by a failover or a restored backup: the cache
returns pages only while the feed vouches for their cursors, which it asks the feed every `VOUCHED`
seconds while pages are sent.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple

import anyio

from zeroeventhub.errors import Gone, Unavailable, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST, Page
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.request import PageRequest
from zeroeventhub.server.sending import Sender
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.ndjson import parts_of, size_of

BATCH = 32
"""The most pages that one statement reads ahead, to share its fixed cost."""

AT_ONCE = 4
"""How many pages one statement reads for a request that waits for the first of them."""

MOST = 256
"""How many pages are kept, however small: each check of the history goes through all of them."""

OVERHEAD = 1_000
"""Bytes of memory of a page besides its body, cursors and stop."""

VOUCHED = 0.05
"""Seconds for which a check of the feed's history is valid: a failover takes longer."""

READERS = 1_000
"""For how many readers the cache remembers the next expected request."""

READING_ON = 2.0
"""Seconds after which a reader that has not requested its next page counts as stopped."""


def tag_of(cursor: str, size: int) -> str:
    """Return the entity tag of a page: its last cursor vouches for all events before it."""
    identity = f"{cursor} {size}".encode()
    return f'"{blake2b(identity, digest_size=16).hexdigest()}"'


class EncodedPage(NamedTuple):
    """A page in the form that is sent."""

    lines: bytes  # of its events
    checkpoint: bytes  # the line that ends it
    size: int  # the bytes of both
    tag: str | None  # the entity tag of both; None if they may change
    events: int  # how many it has
    cursor: str  # where the next page begins
    full: bool  # whether there is one already


def encode(page: Page, wanted: PageRequest | None) -> EncodedPage:
    """Encode a page; `wanted` is the request that it answers, None if only one principal's."""
    lines, checkpoint = parts_of(page)
    size = len(lines) + len(checkpoint)
    is_final = page.full and wanted is not None and wanted.cursor not in {FIRST, LAST}
    tag = tag_of(page.cursor, size) if is_final else None
    return EncodedPage(lines, checkpoint, size, tag, len(page.events), page.cursor, page.full)


class _Kept(NamedTuple):
    """A page in the cache."""

    until: float  # when it expires
    page: EncodedPage
    weight: int  # bytes of memory of the page and its request
    is_sent: bool


@dataclass
class _Batch:
    """Pages that are being read, each of which is kept as soon as it is there."""

    history: int  # that of the pages in the cache when the reading began
    following: PageRequest  # that the next page to be kept answers
    # Set when that page is kept, or is not read any more.
    done: anyio.Event = field(default_factory=anyio.Event)
    # Those that were read, each with the request that it answers.
    pages: list[tuple[PageRequest, EncodedPage]] = field(default_factory=list)
    given: int = 0  # how many of them were kept, if they may be


class PageCache:
    """Keep the pages of a feed that can never change, and read the next ones ahead.

    It keeps no page of a feed without the method `vouch`.
    """

    def __init__(self, runner: FeedRunner, sender: Sender, capacity: Capacity) -> None:
        self._runner = runner
        self._sender = sender
        self._keeps = runner.has("vouch")
        self._most_bytes = capacity.kept_bytes
        self._seconds = capacity.kept_seconds
        self._kept: OrderedDict[PageRequest, _Kept] = OrderedDict()
        self._bytes = 0
        # By the next request of a reader: since when it is expected, where to read ahead once it
        # comes (None: after the page that answers it), and the memory of a page.
        self._expected = OrderedDict[PageRequest, tuple[float, PageRequest | None, int]]()
        self._share = 0
        """Bytes of pages to be read at once for one reader."""
        # The next page of each batch that is being read.
        self._under_way: dict[PageRequest, anyio.Event] = {}
        self._history = 0
        """How often all pages were dropped: what was read before that may be of another history."""
        self._vouching: anyio.Event | None = None
        """Set when the feed has answered; None while it is not asked."""
        self._vouched_until = -math.inf

    async def get(self, wanted: PageRequest) -> EncodedPage | None:
        """Return the page that answers a request, if it is kept or being read ahead."""
        while (done := self._under_way.get(wanted)) is not None:
            await self._wait(done)
        if (
            wanted not in self._kept
            and self._runner.reads_several
            and wanted in self._expected
            and self._may_be_read(wanted)
        ):
            # Its reader reads on: several pages take little longer to read than this one.
            read = await self._read(wanted, self._expected[wanted][2], ahead=False)
            if read is not None and read.events:
                return read
        kept = self._kept.get(wanted)
        if kept is not None and kept.until < monotonic():
            self._drop(wanted)
            return None
        if kept is None or not await self._vouch():
            return None
        now = self._kept.get(wanted)
        if now is None or now.page is not kept.page:  # dropped meanwhile, and not vouched for
            return None
        self._kept[wanted] = now._replace(is_sent=True)
        if now.is_sent:  # else pages that wait for their readers would be dropped before it
            self._kept.move_to_end(wanted)
        return now.page

    async def _wait(self, done: anyio.Event) -> None:
        """Wait for a page that is being read; meanwhile have the feed vouch for those before it."""
        # The first request that waits does so for the others: they may be many.
        seconds = math.inf if done.statistics().tasks_waiting else VOUCHED / 2
        while not done.is_set():
            with anyio.move_on_after(seconds):
                await done.wait()
                break
            with suppress(ZeroEventHubError):  # the page's own reading reports the error
                await self._vouch()

    async def _vouch(self) -> bool:
        """Ask the feed whether kept pages still are of its history; drop them if they are not.

        It asks early, so that pages that are being read may be kept as soon as they are there.
        """
        history = self._history
        while self._kept and monotonic() + VOUCHED / 2 > self._vouched_until:
            if self._vouching is not None:  # one asks for all
                await self._vouching.wait()
            else:
                await self._ask_for_vouching()
            if history != self._history:
                return False
        return True

    async def _ask_for_vouching(self) -> None:
        cursors = {wanted.cursor for wanted in self._kept}
        cursors |= {kept.page.cursor for kept in self._kept.values()}
        self._vouching = anyio.Event()
        try:
            await self._runner.call("vouch", cursors)
            self._vouched_until = monotonic() + VOUCHED
        except Gone:
            self.clear()
        finally:
            self._vouching.set()
            self._vouching = None

    async def encoded(self, page: Page, wanted: PageRequest | None) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never change; see `encode`."""
        if self._keeps:  # a TableFeed's pages are encoded already
            encoded = encode(page, wanted)
        else:
            encoded = await self._runner.work(size_of(page.events), encode, page, wanted)
        if wanted is not None:
            with suppress(ZeroEventHubError):  # the next request for a kept page reports the error
                if await self._vouch():
                    self._keep(wanted, encoded, is_sent=True)
        return encoded

    def _keep(self, wanted: PageRequest, page: EncodedPage, *, is_sent: bool) -> None:
        """Keep a page if it can never change; the feed has vouched for those that are kept."""
        # Not filtered pages: few readers share them, and they would evict pages that many share.
        if page.tag is None or wanted.types is not None or not self._keeps:
            return
        if wanted in self._kept:
            self._drop(wanted)
        now = monotonic()
        cursors = len(wanted.cursor) + len(page.cursor) + len(wanted.stop or "")
        weight = page.size + cursors + OVERHEAD
        self._kept[wanted] = _Kept(now + self._seconds, page, weight, is_sent)
        self._bytes += weight
        while self._kept:
            first, oldest = next(iter(self._kept.items()))
            if now <= oldest.until and self._bytes <= self._most_bytes and len(self._kept) <= MOST:
                break
            self._drop(first)

    def _drop(self, wanted: PageRequest) -> None:
        self._bytes -= self._kept.pop(wanted).weight

    def clear(self) -> None:
        """Drop all pages: the history may be another one."""
        self._kept.clear()
        self._bytes = 0
        self._history += 1

    def read_ahead(
        self, wanted: PageRequest, page: EncodedPage
    ) -> Callable[[], Coroutine[Any, Any, object]] | None:
        """Return a function that reads the pages after a full one, if its reader reads on."""
        following, now = wanted._replace(cursor=page.cursor), monotonic()
        size = page.size + OVERHEAD
        reads_on, nothing = wanted in self._expected, (now, None, 0)
        start = self._expected.pop(wanted, nothing)[1] or following
        # A reader has up to two entries, its next page and the one at which a batch is read, and
        # up to one and a half batches that it has not requested: three quarters of the cache.
        self._share = self._most_bytes // max(2, len(self._expected))
        self._expected[following] = now, self._expected.pop(following, nothing)[1], size
        while len(self._expected) > READERS or next(iter(self._expected.values()))[0] < (
            now - READING_ON
        ):
            self._expected.popitem(last=False)
        has_share = reads_on and size <= self._share and start not in self._under_way
        if not (has_share and self._may_be_read(start) and self._runner.has_spare_room):
            return None
        return partial(self._read, start, size)

    def _may_be_read(self, wanted: PageRequest) -> bool:
        """Return whether a page may be read with those after it: there is room, and it is new."""
        return (
            self._keeps
            and wanted.types is None
            and wanted not in self._kept
            and self._sender.budget.fits(self._sender.page_bytes)
        )

    async def _read(
        self, wanted: PageRequest, size: int, *, ahead: bool = True
    ) -> EncodedPage | None:
        """Read a batch of pages, and, if `ahead`, the next ones while their reader keeps up.

        Pages take some `size` in memory each. Return the first one of the last batch; None if none
        was read.
        """
        batch = _Batch(self._history, wanted)
        with anyio.CancelScope(shield=True):  # other requests wait for it
            try:
                while (
                    size <= self._share
                    and self._may_be_read(batch.following)
                    and self._under_way.setdefault(batch.following, batch.done) is batch.done
                ):
                    batch.history, batch.pages, batch.given = self._history, [], 0
                    count = min(BATCH if ahead else AT_ONCE, self._share // size)
                    take = partial(self._take, batch)
                    await self._runner.read_pages(batch.following, count, encode, take)
                    if batch.given < len(batch.pages) and await self._vouch():
                        self._give(batch)
                    is_given = batch.given == len(batch.pages)
                    if not (is_given and self._goes_on(batch, size, ahead=ahead)):
                        break
            except Exception as error:  # a request for the page reports it
                if isinstance(error, Unavailable) and not ahead:
                    raise  # it has waited for a connection already
            finally:
                self._end(batch)
        return batch.pages[0][1] if batch.pages else None

    def _take(self, batch: _Batch, made: deque[tuple[PageRequest, EncodedPage]]) -> None:
        """Take pages that were read; keep them if the feed has just vouched for those before."""
        while made:  # one by one, as the thread that reads may add to them meanwhile
            batch.pages.append(made.popleft())
        if not self._kept or monotonic() <= self._vouched_until:
            self._give(batch)

    def _give(self, batch: _Batch) -> None:
        """Keep the pages that were read, and wake the requests that wait for them."""
        if batch.history != self._history or batch.done.is_set():  # an error has ended the batch
            return
        for start, page in batch.pages[batch.given :]:
            self._keep(start, page, is_sent=False)
            self._end(batch)
            batch.following, batch.done = start._replace(cursor=page.cursor), anyio.Event()
            self._under_way.setdefault(batch.following, batch.done)
        batch.given = len(batch.pages)

    def _end(self, batch: _Batch) -> None:
        """Wake the requests that wait for the next page of a batch."""
        if self._under_way.get(batch.following) is batch.done:
            del self._under_way[batch.following]
        batch.done.set()

    def _goes_on(self, batch: _Batch, size: int, *, ahead: bool) -> bool:
        """Return whether to read the next batch at once; if not, note at which request to do it."""
        pages, middle = batch.pages, len(batch.pages) // 2
        if not pages[-1][1].full:
            return False
        kept = [self._kept.get(start) for start, _ in pages]
        sent = len([one for one in kept if one is not None and one.is_sent])
        if ahead and sent >= len(pages) - middle and self._runner.has_spare_room:
            return True
        self._expected[pages[middle][0]] = monotonic(), batch.following, size
        return False
