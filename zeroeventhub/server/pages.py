"""The page cache: encoded pages for the next reader, and pages that are read ahead.

A full page below the horizon never changes, so the cache keeps its bytes by the request that they
answer: at most `Capacity.kept_bytes` and `MOST` pages, each for `Capacity.kept_seconds`, the most
recently used ones. A reader that requests the page after its last one will read on: the cache reads
a batch of pages for it with one statement, while the reader takes the pages of the batch before. A
request for a page that is being read waits for it. The history may still be replaced, by a failover
or a restored backup: the cache returns pages only while the feed vouches for their cursors, which
it asks the feed every `VOUCHED` seconds while pages are sent.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
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

BATCH = 16
"""How many pages one statement reads ahead, to share its fixed cost."""

AT_ONCE = 4
"""How many pages one statement reads for a request that waits for the first of them."""

PREFETCH_FRACTION = 4
"""The pages read ahead of one reader take at most a quarter of the cache, and less if more readers
read on: a page that is dropped before its reader requests it was read in vain."""

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
    """A page in the form that is sent.

    Attributes:
        lines: the lines of its events.
        checkpoint: the line that ends it.
        size: the bytes of both.
        tag: the entity tag of both; None if they may change.
        events: how many events it has.
        cursor: where the next page begins.
        full: whether there is one already.
    """

    lines: bytes
    checkpoint: bytes
    size: int
    tag: str | None
    events: int
    cursor: str
    full: bool


def encode(page: Page, wanted: PageRequest | None) -> EncodedPage:
    """Encode a page; `wanted` is the request that it answers, None if only one principal's."""
    lines, checkpoint = parts_of(page)
    size = len(lines) + len(checkpoint)
    lasts = page.full and wanted is not None and wanted.cursor not in {FIRST, LAST}
    tag = tag_of(page.cursor, size) if lasts else None
    return EncodedPage(lines, checkpoint, size, tag, len(page.events), page.cursor, page.full)


class PageCache:
    """Keep the pages of a feed that can never change, and read the next ones ahead.

    It keeps no page of a feed without the method `vouch`.

    Args:
        runner: calls the feed.
        sender: limits the bytes of responses in memory.
        capacity: how much is kept, and for how long.
    """

    def __init__(self, runner: FeedRunner, sender: Sender, capacity: Capacity) -> None:
        self._runner = runner
        self._sender = sender
        self._keeps = runner.has("vouch")
        self._reads_several = runner.has("read_pages")
        self._most_bytes = capacity.kept_bytes
        self._seconds = capacity.kept_seconds
        # By request: until when it is kept, the page, the bytes of both, and whether it was sent.
        self._kept: OrderedDict[PageRequest, tuple[float, EncodedPage, int, bool]] = OrderedDict()
        self._bytes = 0
        # The next expected request of each reader, since when it is expected, where to read on
        # once it comes, by default after the page that answers it, and the memory of a page.
        self._expected: OrderedDict[PageRequest, tuple[float, PageRequest | None, int]]
        self._expected = OrderedDict()
        self._share = 0
        """Bytes of pages to be read at once for one reader."""
        self._under_way: dict[PageRequest, anyio.Event] = {}
        self._vouching = anyio.Lock()
        self._vouched_until = -math.inf

    async def get(self, wanted: PageRequest) -> EncodedPage | None:
        """Return the page that answers a request, if it is kept or being read ahead."""
        if (done := self._under_way.get(wanted)) is not None:
            await done.wait()
        elif (
            wanted not in self._kept
            and self._reads_several
            and wanted in self._expected
            and self._may_be_read(wanted)
        ):
            # Its reader reads on: several pages take little longer to read than this one.
            read = await self._read(wanted, self._expected[wanted][2], ahead=False)
            if read is not None and read.events:
                return read
        until, page, weight, is_sent = self._kept.get(wanted, (0.0, None, 0, False))
        if page is None:
            return None
        now = monotonic()
        if until < now:
            self._drop(wanted)
            return None
        if self._vouched_until < now and not await self._vouch():
            return None
        if wanted in self._kept:
            self._kept[wanted] = until, page, weight, True
            if is_sent:  # else pages that wait for their readers would be dropped before it
                self._kept.move_to_end(wanted)
        return page

    async def _vouch(self) -> bool:
        """Ask the feed whether kept pages still are of its history; drop them if they are not."""
        async with self._vouching:
            cursors = {wanted.cursor for wanted in self._kept}
            cursors |= {page.cursor for _, page, *_ in self._kept.values()}
            if not cursors or monotonic() <= self._vouched_until:
                return True
            try:
                await self._runner.call("vouch", cursors)
            except Gone:
                self.clear()
                return False
            self._vouched_until = monotonic() + VOUCHED
        return True

    async def encoded(self, page: Page, wanted: PageRequest | None) -> EncodedPage:
        """Return a page as it is sent, and keep it if it can never change.

        Args:
            page: the page.
            wanted: the request that it answers; None if the answer is for one principal only.
        """
        if self._keeps:  # a TableFeed's pages are encoded already
            encoded = encode(page, wanted)
        else:
            encoded = await self._runner.work(size_of(page.events), encode, page, wanted)
        if wanted is not None:
            await self._keep([(wanted, encoded)], is_sent=True)
        return encoded

    async def _keep(
        self, found: Sequence[tuple[PageRequest, EncodedPage]], *, is_sent: bool
    ) -> None:
        """Keep those of some pages that can never change, if the feed vouches for all pages."""
        # Not filtered pages: few readers share them, and they would evict pages that many share.
        lasting = [(key, page) for key, page in found if page.tag is not None and key.types is None]
        if not lasting or not self._keeps:
            return
        with suppress(ZeroEventHubError):  # the next request for a kept page reports the error
            if monotonic() <= self._vouched_until or await self._vouch():
                now = monotonic()
                while self._kept and next(iter(self._kept.values()))[0] < now:
                    self._drop(next(iter(self._kept)))
                for key, page in lasting:
                    if key in self._kept:
                        self._drop(key)
                    cursors = len(key.cursor) + len(page.cursor) + len(key.stop or "")
                    weight = page.size + cursors + OVERHEAD
                    self._kept[key] = now + self._seconds, page, weight, is_sent
                    self._bytes += weight
                while self._bytes > self._most_bytes or len(self._kept) > MOST:
                    self._drop(next(iter(self._kept)))

    def _drop(self, wanted: PageRequest) -> None:
        _, _, weight, _ = self._kept.pop(wanted)
        self._bytes -= weight

    def clear(self) -> None:
        """Drop all pages: the history may be another one."""
        self._kept.clear()
        self._bytes = 0

    def read_ahead(
        self, wanted: PageRequest, page: EncodedPage
    ) -> Callable[[], Coroutine[Any, Any, object]] | None:
        """Return a function that reads the pages after a full one, if its reader reads on."""
        following, now = wanted._replace(cursor=page.cursor), monotonic()
        size = page.size + OVERHEAD
        reads_on, nothing = wanted in self._expected, (now, None, 0)
        start = self._expected.pop(wanted, nothing)[1] or following
        # A reader has two entries: its next page, and the next one to be read ahead.
        # What is read for both takes two thirds of the cache: what is dropped unsent was in vain.
        self._share = self._most_bytes // max(PREFETCH_FRACTION, len(self._expected) * 3 // 2)
        self._expected[following] = now, self._expected.pop(following, nothing)[1], size
        while len(self._expected) > READERS or next(iter(self._expected.values()))[0] < (
            now - READING_ON
        ):
            self._expected.popitem(last=False)
        has_share = reads_on and size <= self._share
        if not (has_share and self._may_be_read(start) and self._runner.has_spare_room):
            return None
        return partial(self._read, start, size)

    def _may_be_read(self, wanted: PageRequest) -> bool:
        """Return whether a page may be read with those after it: there is room, and it is new."""
        return (
            self._keeps
            and wanted.types is None
            and wanted not in self._under_way
            and wanted not in self._kept
            and self._sender.budget.fits(self._sender.page_bytes)
        )

    async def _read(
        self, wanted: PageRequest, size: int, *, ahead: bool = True
    ) -> EncodedPage | None:
        """Read pages, and, if `ahead`, go on with the next ones while a request waits for them.

        Args:
            wanted: the first of them.
            size: the bytes of memory of a page, roughly.
            ahead: whether no request waits for them yet.

        Returns:
            The first page of the last ones; None if none was read.
        """
        found: list[tuple[PageRequest, EncodedPage]] = []
        with anyio.CancelScope(shield=True):  # other requests wait for it
            while size <= self._share and self._may_be_read(wanted):
                count = min(BATCH if ahead else AT_ONCE, self._share // size)
                done = self._under_way[wanted] = anyio.Event()
                start, found = wanted, []
                try:
                    if self._reads_several:
                        pages = await self._runner.call(
                            "read_pages", *wanted[:3], count, **wanted.options()
                        )
                    else:
                        pages = [await self._runner.read(wanted)]
                    for page in pages:
                        found.append((start, encode(page, start)))
                        start = start._replace(cursor=page.cursor)
                    await self._keep(found, is_sent=False)
                except Exception as error:  # a request for the page reports it
                    if isinstance(error, Unavailable) and not ahead:
                        raise  # it has waited for a connection already
                finally:
                    is_late = ahead and done.statistics().tasks_waiting > 0
                    del self._under_way[wanted]
                    done.set()
                if not found or not found[-1][1].full:
                    break
                if not (is_late and self._runner.has_spare_room):
                    self._expected[wanted] = monotonic(), start, size
                    break
                wanted = start
        return found[0][1] if found else None
