"""The page behind the one at hand, fetched while that one is applied."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

from zeroeventhub._follow import Fetch
from zeroeventhub.protocol import Page

__all__ = ["Ahead", "AsyncAhead"]


class Ahead:
    """Fetch one page ahead, in a thread of its own.

    Args:
        fetch: fetches a page.
    """

    def __init__(self, fetch: Callable[[Fetch], Page]) -> None:
        self._fetch = fetch
        self._step: Fetch | None = None
        self._page: Future[Page] | None = None
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, step: Fetch) -> None:
        """Begin to fetch, unless that has begun: a page at hand may be applied a second time."""
        if step == self._step:
            return
        self._forget()
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work,
                args=(self._orders,),
                name=f"{threading.current_thread().name}, ahead",
                daemon=True,
            )
            self._thread.start()
        self._step, self._page = step, Future()
        self._orders.put(partial(copy_context().run, _fulfil, self._page, self._fetch, step))

    def has(self, step: Fetch) -> bool:
        """Tell whether the page of a step is on its way, or here."""
        return step == self._step

    def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error: what came ahead, if it was for this."""
        page = self._page if self.has(step) else None
        self._forget()
        return self._fetch(step) if page is None else page.result()

    def drop(self) -> None:
        """Forget what came ahead, and end the thread."""
        self._forget()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _forget(self) -> None:
        """Forget what came ahead; what is on its way arrives first, so that memory is bounded."""
        if self._page is not None:
            wait([self._page])
        self._step = self._page = None


def _work(orders: SimpleQueue[Callable[[], None] | None]) -> None:
    for order in iter(orders.get, None):
        order()
        del order  # it knows the page, which nobody would forget until the next one


def _fulfil(page: Future[Page], fetch: Callable[[Fetch], Page], step: Fetch) -> None:
    try:
        page.set_result(fetch(step))
    except BaseException as error:  # noqa: BLE001 - raised where the page is asked for
        page.set_exception(error)


class AsyncAhead:
    """Fetch one page ahead, in a task of its own.

    Args:
        fetch: fetches a page.
    """

    def __init__(self, fetch: Callable[[Fetch], Awaitable[Page]]) -> None:
        self._fetch = fetch
        self._step: Fetch | None = None
        self._page: asyncio.Future[Page] | None = None

    async def start(self, step: Fetch) -> None:
        """Begin to fetch; see `Ahead.start`."""
        if step == self._step:
            return
        await self.drop()
        self._step, self._page = step, asyncio.ensure_future(self._fetch(step))

    def has(self, step: Fetch) -> bool:
        """Tell whether the page of a step is on its way, or here."""
        return step == self._step

    async def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error; see `Ahead.fetch`."""
        if not self.has(step) or self._page is None:
            await self.drop()
            await self.start(step)
        assert self._page is not None  # noqa: S101 - it has just been started
        try:
            return await self._page
        finally:
            self._step = self._page = None

    def cancel(self) -> None:
        """Wait no longer for what is on its way."""
        if self._page is not None:
            self._page.cancel()

    async def drop(self) -> None:
        """Forget what came ahead."""
        page, self._step, self._page = self._page, None, None
        if page is not None:
            page.cancel()
            # Its error is nobody's: the page was not asked for.
            await asyncio.gather(page, return_exceptions=True)
