"""Pages that are read once for many: nobody gets one that is older than its own question."""

from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.protocol import Event, Page
from zeroeventhub.server import news as news_module
from zeroeventhub.server.news import News
from zeroeventhub.server.waiting import Question, Waiting, is_idle

pytestmark = pytest.mark.anyio

SOON = 100
"""Turns of the event loop in which what has come is heard of."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Look again at the next turn of the event loop."""
    monkeypatch.setattr(news_module, "LEISURE", 0)


class World:
    """Hold a feed that counts, whose reads take a while, and those who wait for it.

    Args:
        delays: how many turns of the event loop pass before and after each read.
    """

    def __init__(self, delays=((0, 0),)):
        self.count = 0
        self.reads = 0
        self._delays = list(delays)
        self.news = News(self._head, 0)
        self.waiting = Waiting(self.news, self._read, 100, lambda _: None)
        self.answers = {}
        self.asked = {}
        self.scopes = {}

    async def _head(self):
        await checkpoint()
        return self.count

    async def _read(self, question):
        before, after = self._delays[self.reads % len(self._delays)]
        self.reads += 1
        await turns(before)
        count = self.count
        await turns(after)
        events = [Event(b"%d" % number) for number in range(int(question.cursor), count)]
        return Page(events[: question.limit], str(count), caught_up=True)

    async def ask(self, name, cursor, limit):
        """Ask as an endpoint does: read, and wait for what comes."""
        self.asked[name] = self.count
        question = Question(0, cursor, limit, ())
        with anyio.CancelScope() as self.scopes[name]:
            edition = self.news.edition
            page = await self._read(question)
            if is_idle(page, cursor):
                page, _ = await self.waiting.page(
                    question,
                    page,
                    edition,
                    deadline=anyio.current_time() + 60,
                    receive=partial(anyio.sleep, 60),
                )
            self.answers[name] = page


async def turns(count):
    """Let everybody else go on, a few times."""
    for _ in range(count):
        await checkpoint()


async def test_many_share_one_read():
    """What comes is read once for all who wait with the same question, and for each other one."""
    world = World()
    async with anyio.create_task_group() as group:
        for name in range(40):
            group.start_soon(world.ask, name, "0", 1 + name % 2)
        await turns(10 * SOON)  # all of them are to wait by then, however busy the machine is
        before = world.reads
        world.count = 2
        with anyio.fail_after(10):
            while len(world.answers) < 40:
                await checkpoint()
    assert world.reads - before == 2
    assert [len(page.events) for _, page in sorted(world.answers.items())] == [1, 2] * 20


counts = st.integers(0, 4)
steps = st.lists(
    st.one_of(
        st.just(("ask", 0)),
        st.just(("count", 0)),
        st.tuples(st.just("turn"), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
    ),
    max_size=25,
)


@given(steps, st.lists(st.tuples(counts, counts), min_size=1, max_size=5))
def test_nobody_gets_a_page_that_is_older_than_its_question(script, delays):
    """Who is answered with events is answered with all that there were when it asked."""
    anyio.run(_play, script, delays)


async def _play(script, delays):
    world = World(delays)
    async with anyio.create_task_group() as group:
        for step, number in script:
            match step:
                case "ask":
                    group.start_soon(world.ask, len(world.asked), str(world.count), 1000)
                    await checkpoint()
                case "count":
                    world.count += 1
                case "turn":
                    await turns(number)
                case "leave" if number in world.scopes:
                    world.scopes[number].cancel()
        await turns(SOON)
        world.count += 1  # so that everybody hears of something
        with anyio.fail_after(10):
            while any(
                name not in world.answers and not scope.cancel_called
                for name, scope in world.scopes.items()
            ):
                await checkpoint()
    for name, page in world.answers.items():
        assert int(page.cursor) >= world.asked[name]
        assert len(page.events) == int(page.cursor) - world.asked[name]
