"""A feed in an application that runs on trio."""

import json

import anyio
import httpx
import pytest
from starlette.applications import Starlette

from zeroeventhub import FIRST, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.protocol import WAIT, Event, FeedInfo, Page, Partition

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """Not only on asyncio."""
    return "trio"


class Own:
    """A feed of one's own, which counts."""

    def __init__(self):
        self.count = 0

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=frozenset({WAIT}))

    def read(self, partition, cursor, limit):
        after = 0 if cursor == FIRST else int(cursor)
        events = [Event(b'{"n":%d}' % number) for number in range(after, self.count)]
        return Page(events, str(self.count), caught_up=True)

    def head(self):
        return self.count


async def test_requests_stand_in_line_wait_and_are_answered():
    """Many wait together, read in turn, and are answered when something comes."""
    feed, answers = Own(), []
    application = Starlette(
        routes=feed_routes("/orders", feed, capacity=Capacity(connections=2, patience=60))
    )
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://feed", timeout=60) as client:

        async def ask(wait):
            asked = {"token": "1", "partition": 0, "cursor": "0", "wait": wait}
            answers.append((await client.get("/orders/events", params=asked)).text.splitlines())

        with anyio.fail_after(60):
            await ask(0)
            await ask(0.2)
            assert [json.loads(lines[0])["cursor"] for lines in answers] == ["0", "0"]
            async with anyio.create_task_group() as group:
                for _ in range(30):
                    group.start_soon(ask, 30)
                await anyio.sleep(0.2)
                assert len(answers) == 2
                feed.count = 2
    assert [len(lines) for lines in answers[2:]] == [3] * 30
