"""A feed in an application that runs on trio or asyncio, and its line of requests there."""

from contextlib import asynccontextmanager
from itertools import product

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from harness.readers import AsyncNumbers, numbers, page_url
from starlette.applications import Starlette

from zeroeventhub import Capacity, feed_routes

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["trio", pytest.param("asyncio", marks=pytest.mark.test_all)])
def anyio_backend(request):
    """Both event loops: all other tests have asyncio."""
    return request.param


@asynccontextmanager
async def asking(feed, connections, **options):
    """Serve a feed in this event loop; yield a function that asks for a page."""
    options["capacity"] = Capacity(connections=connections, patience=60)
    transport = httpx.ASGITransport(Starlette(routes=feed_routes("/orders", feed, **options)))
    async with httpx.AsyncClient(transport=transport, base_url="http://feed", timeout=60) as client:

        async def ask(cursor, wait=0):
            return numbers(await client.get(page_url("/orders", cursor=cursor, wait=wait)))

        with anyio.fail_after(60):
            yield ask


async def turns(count):
    """Let everybody else go on, so many times."""
    for _ in range(count):
        await checkpoint()


class Slow(AsyncNumbers):
    """A feed whose reads end when the test says."""

    async def read(self, partition, cursor, limit, *, each=False):
        with self._asked(cursor):
            await self.leaving.wait()
            return self._page(cursor, limit, self.count)


async def test_place_in_line_is_never_lost_nor_given_twice():
    """Requests are answered in the order of asking, and one that is cancelled at work or in line,
    at whatever moment, keeps nobody from the only connection and lets nobody else in.
    """
    feed = Slow(3)
    async with asking(feed, 1) as ask:
        for count, leaving in product(range(30), (0, 1)):
            feed.reads, feed.leaving, found = [], anyio.Event(), []
            scopes = [anyio.CancelScope() for _ in range(3)]

            async def come(number, scope, found=found):
                with scope:
                    found.append(await ask(number))

            async with anyio.create_task_group() as group:
                for number, scope in enumerate(scopes):
                    group.start_soon(come, number, scope)
                    await turns(100)
                assert feed.reads == ["0"]
                if leaving:
                    feed.leaving.set()
                await turns(count)
                scopes[leaving].cancel()
                feed.leaving.set()
            assert feed.reads in (["0", "1", "2"], ["0", "2"])
            assert (found[0], found[-1]) == ([0, 1, 2] if leaving else [1, 2], [2])
            assert feed.inside == 0
    assert feed.most == 1
