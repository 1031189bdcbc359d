"""Waiting together for one thing, in every order of coming, leaving and finding."""

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import Unavailable
from zeroeventhub.server.gathering import Gathering
from zeroeventhub.server.slices import SLICE, in_slices

pytestmark = pytest.mark.anyio

LATE = 60
"""Seconds that nothing here takes."""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    """Applications run on either."""
    return request.param


class World:
    """Hold a gathering, what it waits for, and those who wait."""

    def __init__(self):
        self.found = anyio.Event()
        self.outcome = "found"
        self.looks = self.looking = self.most_looking = 0
        self.gathering = Gathering(self._look)
        self.seen = {}
        self.scopes = {}
        self.gone = {}

    async def _look(self):
        self.looks += 1
        self.looking += 1
        self.most_looking = max(self.looking, self.most_looking)
        try:
            await self.found.wait()
            await checkpoint()
        finally:
            self.looking -= 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def wait(self, name, seconds=LATE):
        """Wait as a request does, and keep what came of it."""
        self.gone[name] = anyio.Event()

        async def receive():
            await self.gone[name].wait()
            return {"type": "http.disconnect"}

        deadline = anyio.current_time() + seconds
        with anyio.CancelScope() as self.scopes[name]:
            try:
                self.seen[name], _ = await self.gathering.result(receive, deadline=deadline)
            except Unavailable as error:
                self.seen[name] = str(error)


async def turns(count=20):
    """Let everybody else go on, a few times."""
    for _ in range(count):
        await checkpoint()


async def test_one_looks_and_all_are_told():
    """However many wait, one looks, and what it finds is everybody's."""
    world = World()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name in range(50):
                group.start_soon(world.wait, name)
            await turns()
            assert (world.looks, world.seen) == (1, {})
            world.found.set()
    assert world.seen == dict.fromkeys(range(50), "found")
    assert world.looks == 1


async def test_who_comes_too_late_is_told_as_well():
    """What has been found is there for those who ask for it afterwards."""
    world = World()
    world.found.set()
    await world.wait("early")
    await world.wait("late")
    assert (world.seen, world.looks) == ({"early": "found", "late": "found"}, 1)


async def test_failure_is_everybodys():
    """When looking fails, all who wait are told why."""
    world = World()
    world.outcome = Unavailable("It is away.")
    async with anyio.create_task_group() as group:
        for name in range(10):
            group.start_soon(world.wait, name)
        await turns()
        world.found.set()
    assert set(world.seen.values()) == {"It is away."}


async def test_time_ends_the_wait():
    """Whose time is over is answered with nothing, whether it looked or only waited."""
    world = World()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name in range(5):
                group.start_soon(world.wait, name, 0.05 if name < 4 else LATE)
                await turns(2)
            while len(world.seen) < 4:  # noqa: ASYNC110 - time has to pass
                await anyio.sleep(0.01)
            world.found.set()
    assert world.seen == {**dict.fromkeys(range(4)), 4: "found"}
    assert world.most_looking == 1


async def test_reader_that_goes_ends_its_wait():
    """For a reader that has gone nobody waits; the next one looks for the others."""
    world = World()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for name in range(4):
                group.start_soon(world.wait, name)
                await turns(2)
            for name in (2, 0, 1):
                world.gone[name].set()
                await turns()
                assert world.seen[name] is None
            world.found.set()
    assert world.seen[3] == "found"


async def test_many_are_woken_a_few_at_a_time():
    """Others have their turn while many are woken."""
    called, order = [], []

    async def other():
        for _ in range(10):
            order.append(len(called))
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await in_slices(lambda number=number: called.append(number) for number in range(SLICE * 5))
    assert called == list(range(SLICE * 5))
    assert any(0 < number < SLICE * 5 for number in order)


async def test_all_are_woken_even_if_the_one_who_wakes_is_cancelled():
    """Nobody is left asleep, whatever becomes of the one who wakes the others."""
    called = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_slices(lambda number=number: called.append(number) for number in range(50))
    assert called == list(range(50))


steps = st.lists(
    st.one_of(
        st.just(("wait", 0)),
        st.tuples(st.sampled_from(["go", "cancel", "turn"]), st.integers(0, 5)),
        st.just(("find", 0)),
    ),
    max_size=25,
)


@given(steps)
def test_nobody_is_left_waiting(script):
    """Whoever stays is told, in whatever order the others leave or are cancelled."""
    anyio.run(_play, script)


async def _play(script):
    world, left = World(), set()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for step, number in script:
                match step:
                    case "wait":
                        name = len(world.scopes)
                        group.start_soon(world.wait, name)
                        await checkpoint()
                    case "go" if number in world.gone:
                        world.gone[number].set()
                        left.add(number)
                    case "cancel" if number in world.scopes:
                        world.scopes[number].cancel()
                        left.add(number)
                    case "turn":
                        await turns(number)
                    case "find":
                        world.found.set()
            world.found.set()
    assert world.most_looking <= 1
    stayed = set(world.scopes) - left
    assert {name for name in stayed if world.seen.get(name) == "found"} == stayed
