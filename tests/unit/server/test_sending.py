"""Who is admitted next, and what an answer holds while it is sent."""

import tracemalloc

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from zeroeventhub import Capacity
from zeroeventhub.server.sending import AdmissionQueue, Sender, on_behalf_of

pytestmark = pytest.mark.anyio


def queue_of(units):
    """Make a queue for so many units."""
    return AdmissionQueue(units, queue=10, patience=10, refusal="Not now.")


async def test_small_request_is_admitted_when_a_large_one_before_it_leaves():
    """A request in line is admitted as soon as one that needed too much leaves the line."""
    queue, admitted, large = queue_of(10), [], anyio.CancelScope()

    async def come(size):
        async with queue.acquire(size):
            admitted.append(size)

    async def come_and_leave():
        with large:
            await come(8)

    with anyio.fail_after(5):
        async with queue.acquire(5), anyio.create_task_group() as group:
            group.start_soon(come_and_leave)
            await anyio.wait_all_tasks_blocked()
            group.start_soon(come, 3)
            await anyio.wait_all_tasks_blocked()
            assert admitted == []
            large.cancel()
            await anyio.wait_all_tasks_blocked()
            assert admitted == [3]


async def test_readers_that_hold_nothing_take_no_memory():
    """A queue forgets a reader once it holds nothing, however many readers come."""
    queue = queue_of(1)
    tracemalloc.start()
    for number in range(2_000):
        with on_behalf_of(f"{number}" * 100):
            async with queue.acquire():
                pass
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 100_000


async def test_stream_holds_what_is_sent_now_and_may_pause():
    """A publisher that pauses ends no stream, and a stream gives back the bytes that are sent."""
    sender, sent = Sender(Capacity(sending_seconds=0.05)), []

    async def lines():
        for _ in range(3):
            yield b"line\n" * 100
            assert sender.budget.taken == 0
            await anyio.sleep(0.1)

    async def send(message):
        sent.append(message.get("body", b""))

    async def receive():
        await anyio.sleep_forever()

    request = Request({"type": "http", "asgi": {"spec_version": "2.4"}, "headers": []}, receive)
    await sender.send(StreamingResponse(lines()), request, send)
    assert b"".join(sent) == b"line\n" * 300
    assert sender.budget.taken == 0
