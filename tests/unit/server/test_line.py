"""Standing in line, in every order of coming, going and giving up."""

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Unavailable
from zeroeventhub.server.line import Line

pytestmark = pytest.mark.anyio

PATIENT = Capacity(patience=60)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    """Applications run on either."""
    return request.param


async def turns(count=10):
    """Let everybody else go on, a few times."""
    for _ in range(count):
        await checkpoint()


async def test_so_many_are_let_in_and_the_others_come_in_order():
    """There are never more inside than there is room for, and nobody is passed over."""
    line, inside, order = Line(3, PATIENT, "No."), 0, []

    async def come(number):
        nonlocal inside
        async with line.place():
            inside += 1
            assert inside <= 3
            order.append(number)
            await turns(number % 3)
            inside -= 1

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(come, number)
            await checkpoint()
    assert order == list(range(50))
    assert line.taken == 0


async def test_line_that_is_too_slow_or_too_long_is_left():
    """Who waited long enough is told to come again, and who finds the line full at once."""
    line = Line(1, Capacity(patience=0.05, queue=2), "Come again.")
    refused = []

    async def come():
        try:
            async with line.place():
                pytest.fail("there was no room")
        except Unavailable as error:
            refused.append((str(error), error.retry_after))

    async with line.place(), anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(come)
        await turns()
        assert len(refused) == 1
    assert refused == [("Come again.", 1)] * 3
    assert line.taken == 0


async def test_what_is_larger_than_the_room_comes_alone():
    """Who needs more than there is gets it when nobody else has any."""
    line, order = Line(10, PATIENT, "No."), []

    async def come(size):
        async with line.place(size):
            order.append((size, line.taken))
            await turns()

    async with anyio.create_task_group() as group:
        for size in (4, 4, 100, 4):
            group.start_soon(come, size)
            await checkpoint()
    assert order == [(4, 4), (4, 8), (100, 100), (4, 4)]


async def test_one_that_leaves_the_line_does_not_hold_up_those_behind():
    """When a large one in front gives up, smaller ones behind it go on."""
    line, order = Line(10, PATIENT, "No."), []

    async def come(size):
        async with line.place(size):
            order.append(size)

    with anyio.fail_after(10):
        async with line.place(5), anyio.create_task_group() as group:
            with anyio.move_on_after(0.05):
                await_large = anyio.create_task_group()
                async with await_large as inner:
                    inner.start_soon(come, 8)
                    await turns()
                    group.start_soon(come, 4)
                    await anyio.sleep(60)
            await turns()
            assert order == [4]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 12)),
        st.tuples(st.just("go"), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(steps)
def test_room_is_never_lost_nor_given_twice(script):
    """Whoever comes, goes and is cancelled at whatever moment: what is taken is what is had."""
    anyio.run(_play, script)


async def _play(script):
    line = Line(10, PATIENT, "No.")
    scopes, leaving, had = {}, {}, {}

    async def come(name, size):
        with anyio.CancelScope() as scopes[name]:
            async with line.place(size):
                had[name] = size
                try:
                    await leaving[name].wait()
                finally:
                    del had[name]

    async with anyio.create_task_group() as group:
        for step, number in script:
            match step:
                case "come":
                    name = len(leaving)
                    leaving[name] = anyio.Event()
                    group.start_soon(come, name, number)
                case "go" if number in leaving:
                    leaving[number].set()
                case "cancel" if number in scopes:
                    scopes[number].cancel()
                case "wait":
                    await turns(number)
            assert sum(had.values()) <= 10 or len(had) == 1
        await turns()
        assert line.taken == sum(had.values())
        with anyio.fail_after(10):
            for event in leaving.values():
                event.set()
                await turns(2)
    assert (line.taken, had) == (0, {})
