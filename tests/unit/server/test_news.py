"""Waiting for news, in every order of reading, looking, changing and leaving."""

import time

import anyio
import pytest
import trio.testing
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import Unavailable
from zeroeventhub.server import news as news_module
from zeroeventhub.server.news import News

pytestmark = pytest.mark.anyio

ENOUGH = 100
"""More turns of the event loop than anything here takes, if it goes on at all."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Look again at the next turn of the event loop."""
    monkeypatch.setattr(news_module, "LEISURE", 0)


class World:
    """Hold a feed that only counts, and those who wait for it to count on.

    Args:
        delays: how many turns of the event loop pass before and after each look at the number.
        interval: seconds between two looks.
    """

    def __init__(self, delays=((0, 0),), interval=0):
        self.number = 0
        self.is_down = False
        self.news = News(self._head, interval)
        self.looks = 0
        self.looking = 0
        self.most_looking = 0
        self.seen = {}
        self.scopes = {}
        self._delays = list(delays)

    async def _look(self):
        self.looks += 1
        before, after = self._delays[self.looks % len(self._delays)]
        await turns(before)
        number, is_down = self.number, self.is_down
        await turns(after)
        if is_down:
            raise Unavailable("The feed is away.")
        return number

    async def _head(self):
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            return await self._look()
        finally:
            self.looking -= 1

    async def wait(self, name):
        """Wait for another number, as an endpoint does, and keep what came of it."""
        began = self.number
        with anyio.CancelScope() as self.scopes[name]:
            while True:
                edition = self.news.edition
                try:
                    number = await self._look()
                except Unavailable:
                    self.seen[name] = "away"
                    return
                if number != began:
                    self.seen[name] = number
                    return
                await self.news.after(edition)
        self.seen[name] = "left"


async def turns(count):
    """Let everybody else go on, a few times."""
    for _ in range(count):
        await checkpoint()


async def test_change_wakes_everybody():
    """Everybody who waits hears of a change."""
    world = World()
    async with anyio.create_task_group() as group:
        for name in range(20):
            group.start_soon(world.wait, name)
        await turns(ENOUGH)
        assert world.seen == {}
        world.number = 1
        with anyio.fail_after(5):
            while len(world.seen) < 20:
                await checkpoint()
    assert set(world.seen.values()) == {1}


async def test_one_looks_for_all():
    """However many wait, one looks at a time; nobody looks while nobody waits."""
    world = World()
    async with anyio.create_task_group() as group:
        for name in range(50):
            group.start_soon(world.wait, name)
        await turns(ENOUGH)
        assert world.most_looking == 1
        world.number = 1
    looks = world.looks
    await turns(ENOUGH)
    assert world.looks == looks


async def test_first_that_leaves_hands_over():
    """When the one who looks leaves, the next goes on looking for the others."""
    world = World()
    async with anyio.create_task_group() as group:
        for name in range(5):
            group.start_soon(world.wait, name)
            await turns(ENOUGH)
        for name in range(4):
            world.scopes[name].cancel()
            await turns(ENOUGH)
            assert world.seen == dict.fromkeys(range(name + 1), "left")
        world.number = 1
    assert world.seen[4] == 1


async def test_failure_of_a_look_wakes_everybody():
    """If the feed cannot answer, everybody reads and finds out; those who come later wait anew."""
    world = World()
    async with anyio.create_task_group() as group:
        for name in range(5):
            group.start_soon(world.wait, name)
        await turns(ENOUGH)
        world.is_down = True
    assert set(world.seen.values()) == {"away"}
    world.is_down = False
    async with anyio.create_task_group() as group:
        group.start_soon(world.wait, "later")
        await turns(ENOUGH)
        world.number = 1
    assert world.seen["later"] == 1


async def test_other_failures_are_told_to_one_after_the_other():
    """A feed with a mistake in it fails each of those who wait; none of them waits for ever."""

    async def head():
        raise ValueError("a mistake")

    news, failed = News(head, 0), []

    async def wait():
        try:
            await news.after(0)
        except ValueError:
            failed.append(1)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(wait)
    assert len(failed) == 5


async def test_look_is_not_cut_short():
    """Who leaves during a look lets it end: a query cut short would cost its connection."""
    began, proceed, ended = anyio.Event(), anyio.Event(), []

    async def head():
        began.set()
        await proceed.wait()
        ended.append(1)
        return 1

    async with anyio.create_task_group() as group:
        group.start_soon(News(head, 0).after, 0)
        await began.wait()
        group.cancel_scope.cancel()
        proceed.set()
    assert ended


async def test_past_edition_is_not_waited_for():
    """What has changed since a page was read is not waited for."""
    world = World()
    async with anyio.create_task_group() as group:
        group.start_soon(world.news.after, 0)
        world.number = 1
    looks = world.looks
    await world.news.after(0)
    assert world.looks == looks


counts = st.integers(0, 4)
waits = st.just(("wait", None))
commits = st.just(("commit", None))
leaves = st.tuples(st.just("leave"), st.integers(0, 5))
goes = st.tuples(st.just("go"), counts)
failures = st.just(("fail", None))
recoveries = st.just(("recover", None))
steps = st.lists(st.one_of(waits, commits, leaves, goes, failures, recoveries), max_size=25)


@given(steps, st.lists(st.tuples(counts, counts), min_size=1, max_size=5))
def test_nobody_is_ever_forgotten(script, delays):
    """Whoever waits for something that has come hears of it, whoever left and whatever failed."""
    anyio.run(_play, script, delays)


async def _play(script, delays):
    world = World(delays)
    began = []
    async with anyio.create_task_group() as group:
        for step, number in script:
            match step:
                case "wait":
                    group.start_soon(world.wait, len(began))
                    began.append(None)
                    await checkpoint()  # so that it knows what it waits for
                    began[-1] = world.number
                case "commit":
                    world.number += 1
                case "leave":
                    if number in world.scopes:
                        world.scopes[number].cancel()
                case "go":
                    await turns(number)
                case "fail":
                    world.is_down = True
                case "recover":
                    world.is_down = False
        world.is_down = False
        await _settle(world, [name for name, seen in enumerate(began) if seen != world.number])
        # Those who are left wait for something that has not come yet.
        world.number += 1
        await _settle(world, range(len(began)))
    assert world.most_looking <= 1
    looks = world.looks
    await turns(20)
    assert world.looks == looks


async def _settle(world, names):
    """Let the world go on until those who must hear of something have."""
    await turns(20)
    for _ in range(20 * ENOUGH):
        if all(name in world.seen for name in names):
            return
        await checkpoint()
    pytest.fail(f"{set(names) - set(world.seen)} wait for ever")


@pytest.mark.parametrize("turn", range(1, 13))
@pytest.mark.parametrize("leaving", [[0], [1], [0, 1], [1, 0]])
async def test_leaving_at_any_moment_leaves_nobody_behind(turn, leaving):
    """At whatever moment the first ones leave, the last one is told of what comes."""
    world = World([(1, 1), (0, 2), (2, 0)])
    async with anyio.create_task_group() as group:
        for name in range(3):
            group.start_soon(world.wait, name)
        await turns(turn)
        for name in leaving:
            world.scopes[name].cancel()
        await turns(turn % 4)
        world.number = 1
        await _settle(world, [2])


async def known_world():
    """A world whose number has been looked at, and is again after a long time if nobody hurries."""
    world = World(interval=60)
    world.news.hurry()
    await world.news.after(0)
    world.looks = 0
    return world


@pytest.mark.parametrize("early", [True, False])
async def test_commit_is_looked_for_soon(early):
    """What a thread commits is found long before the next look, also where it said so before."""
    world = await known_world()

    def commit():
        world.news.hurry()  # said while the commit is still under way
        time.sleep(0.005)
        world.number += 1

    if early:
        world.news.hurry()
        world.number += 1
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(world.news.after, world.news.edition)
            if not early:
                await turns(20)
                await anyio.to_thread.run_sync(commit)
    assert 1 <= world.looks <= len(news_module.PAUSES)


async def test_commits_without_news_are_heard_of_seldom(monkeypatch):
    """However much is committed elsewhere, the head is not looked at all the time."""
    monkeypatch.setattr(news_module, "DEAF", 60)
    world = await known_world()
    with anyio.move_on_after(0.5):
        async with anyio.create_task_group() as group:
            group.start_soon(world.news.after, world.news.edition)
            while True:
                await anyio.sleep(0.001)
                world.news.hurry()
    assert world.looks == len(news_module.PAUSES)


async def test_hurry_when_nobody_waits_changes_nothing():
    """A commit that nobody waits for is no news, and no failure after the loop has ended either."""
    world = World()
    world.news.hurry()
    assert (world.looks, world.news.edition) == (0, 0)


INTERVAL = 0.005
"""Seconds between two looks of those who have leisure."""


def looks(feeds, seconds, monkeypatch, during=1.0):
    """Return how many looks there are at feeds that are waited for, each of so many seconds."""
    monkeypatch.undo()
    count = 0

    async def head():
        nonlocal count
        count += 1
        await anyio.sleep(seconds)
        return 0

    async def watch():
        news = News(head, INTERVAL)
        await news.after(0)
        await news.after(1)

    async def wait():
        with anyio.move_on_after(during):
            async with anyio.create_task_group() as group:
                for _ in range(feeds):
                    group.start_soon(watch)

    options = {"clock": trio.testing.MockClock(autojump_threshold=0)}
    anyio.run(wait, backend="trio", backend_options=options)
    return count


def test_looks_are_rarer_where_nothing_comes(monkeypatch):
    """A feed is looked at as often as its capacity says, and four times less after long silence."""
    assert looks(1, 0, monkeypatch, 0.5) == pytest.approx(0.5 / INTERVAL, rel=0.05)
    silent = looks(1, 0, monkeypatch, 40) - looks(1, 0, monkeypatch, 20)
    assert silent == pytest.approx(20 / INTERVAL / news_module.RAREST, rel=0.05)


@pytest.mark.parametrize("feeds", [1, 20, 200])
def test_looks_take_a_part_of_the_time(monkeypatch, feeds):
    """However slow they are, and however many feeds are waited for, all looks have a share."""
    share = looks(feeds, 0.005, monkeypatch, 80) * 0.005 / 80
    assert share == pytest.approx(1 / (news_module.LEISURE + 1 / feeds), rel=0.1)


def test_look_that_had_to_wait_does_not_put_off_the_next(monkeypatch):
    """After a look of a minute, as of a database that was busy, the next one comes soon."""
    assert looks(1, 60, monkeypatch, 181) == 4
