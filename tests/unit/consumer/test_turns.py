"""Taking turns: never more than may, in the order they came, and none is lost."""

import asyncio
from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zeroeventhub.consumer.running.turns import Turn, Turns


class Working(RuleBasedStateMachine):
    """Workers who ask for turns, give them back, and lose patience, beside a queue of our own."""

    def __init__(self):
        super().__init__()
        self.turns = Turns(2)
        self.working, self.queue = [], deque()

    @rule(first=st.booleans())
    def ask(self, first):
        asked = self.turns.ask(first=first)
        if len(self.working) < 2:
            self.working.append(asked)
        elif first:
            self.queue.appendleft(asked)
        else:
            self.queue.append(asked)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def give_back(self, data):
        self.working.remove(data.draw(st.sampled_from(self.working)))
        self.turns.give_back()
        if self.queue:
            self.working.append(self.queue.popleft())

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def lose_patience(self, data):
        asked = data.draw(st.sampled_from(list(self.queue)))
        self.queue.remove(asked)
        assert asked.cancel()

    @invariant()
    def turns_have_come_in_order(self):
        assert all(asked.done() for asked in self.working)
        assert not any(asked.done() for asked in self.queue)


TestWorking = Working.TestCase


def test_turn_is_taken_once_and_given_back_once():
    """Who has a turn keeps it when asking again, and gives back no more than that."""
    turns = Turns(1)
    turn = Turn(turns)
    turn.take()
    turn.take()
    waiting = turns.ask()
    turn.give_back()
    turn.give_back()
    assert waiting.done()
    assert not turns.ask().done()


def test_turn_is_long_only_where_somebody_waits():
    """Nobody lets go for nobody, however long the turn was; and nobody at once."""
    turns = Turns(1)
    turn = Turn(turns)
    assert not turn.is_long
    turn.take()
    assert not turn.is_long
    turns.ask()
    assert not turn.is_long


@pytest.mark.anyio
async def test_turn_of_a_task_that_is_cancelled_is_not_lost():
    """A task that is cancelled in the moment in which its turn comes gives it back."""
    turns = Turns(1)
    turns.ask().result()
    task = asyncio.create_task(Turn(turns).take_async())
    await asyncio.sleep(0)
    turns.give_back()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert turns.ask().done()


@pytest.mark.anyio
async def test_task_that_is_cancelled_while_it_waits_gets_no_turn():
    """A turn passes by those who wait no longer."""
    turns = Turns(1)
    turns.ask().result()
    task = asyncio.create_task(Turn(turns).take_async())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waiting = turns.ask()
    turns.give_back()
    assert waiting.done()
