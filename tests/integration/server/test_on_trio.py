"""A feed in an application that runs on trio."""

import anyio
import httpx
import pytest
from harness.readers import Numbers, numbers, page_url
from starlette.applications import Starlette

from zeroeventhub import Capacity, feed_routes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """Not only on asyncio."""
    return "trio"


async def test_requests_stand_in_line_wait_and_are_answered(watcher):
    """Many wait together, read in turn, and are answered when something comes."""
    feed, found = Numbers(), []
    options = {"capacity": Capacity(connections=2, patience=60), "observer": watcher}
    transport = httpx.ASGITransport(Starlette(routes=feed_routes("/orders", feed, **options)))
    async with httpx.AsyncClient(transport=transport, base_url="http://feed", timeout=60) as client:

        async def ask(wait):
            found.append(numbers(await client.get(page_url("/orders", cursor=0, wait=wait))))

        with anyio.fail_after(60):
            await ask(0)
            await ask(0.2)
            async with anyio.create_task_group() as group:
                for _ in range(30):
                    group.start_soon(ask, 30)
                while watcher.counts[-1] < 30:  # noqa: ASYNC110 - the server tells of it so
                    await anyio.sleep(0.002)
                feed.count = 2
    assert found == [[]] * 2 + [[0, 1]] * 30
