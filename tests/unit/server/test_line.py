"""Standing in line, in every order of coming, going and giving up."""

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.capacity import Capacity
from zeroeventhub.server.line import Line

pytestmark = pytest.mark.anyio

PATIENT = Capacity(patience=60)


async def turns(count=10):
    """Let everybody else go on, a few times."""
    for _ in range(count):
        await checkpoint()


async def test_places_are_had_in_the_order_of_asking():
    """Requests come in the order in which they asked, and what is larger than the room alone."""
    line, order = Line(10, PATIENT, "No."), []

    async def come(size):
        async with line.place(size):
            order.append((size, line.taken))
            await turns()

    async with anyio.create_task_group() as group:
        for size in (4, 4, 100, 4, 9, 3):
            group.start_soon(come, size)
            await checkpoint()
    assert order == [(4, 4), (4, 8), (100, 100), (4, 4), (9, 9), (3, 3)]


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
    for backend in ("asyncio", "trio"):
        anyio.run(_play, script, backend=backend)


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
