"""The ways to the feed and to the store, and what can happen on them."""

from harness.simulation.chaos import NETWORK, STORE, TRANSACTION
from zeroeventhub._follow import Discover
from zeroeventhub.errors import (
    StoreUnavailable,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)

SWIFT = 0.05
"""Seconds that a way takes at most, when nothing is wrong."""

SLOW = 4.0
"""Seconds that it takes at most, when it is slow."""

TIMEOUT = 3.0


class HandlerFailed(Exception):  # noqa: N818 - named for what happened
    """Say that the consumer's own code has raised."""


def request(world, client, step):
    """Send a request to the feed; return a FeedInfo or a Page."""
    chaos = world.chaos
    yield chaos.seconds(SWIFT)
    fault = chaos.fault(NETWORK) if world.clock.now >= world.feed_away_until else "request lost"
    if fault == "delay":
        yield chaos.seconds(SLOW)
    elif fault == "request lost":
        yield chaos.seconds(TIMEOUT)
        raise Unreachable("No answer.")
    elif fault == "busy":
        raise Unavailable("Busy.", retry_after=chaos.random.choice((None, 0.0, 2.0)))
    answer = yield from _answer(world, client, step)
    if fault == "request doubled":
        # Somebody on the way asks twice, and the second answer is the one that arrives.
        yield chaos.seconds(SLOW)
        answer = yield from _answer(world, client, step)
    yield chaos.seconds(SWIFT)
    if fault == "answer lost":
        raise Unreachable("The connection was reset.")
    if isinstance(step, Discover):
        return answer
    if fault == "answer cut":
        return answer.cut(chaos.random.randrange(len(answer.page.events) + 1))
    return answer.page


def _answer(world, client, step):
    feed = world.feed
    if isinstance(step, Discover):
        return feed.info()
    feed.check(client.token)
    if step.wait and not feed.behind(step.partition, step.cursor):
        feed.watchers.append(world.clock.current)
        yield step.wait
    return feed.answer(client.token, step.partition, step.cursor)


def call(world, action, *arguments):
    """Have the store do something at one moment; return what comes of it."""
    fault = yield from _reach(world)
    result = action(*arguments)
    yield from _return(world, fault)
    return result


def call_and_wait(world, action, *arguments):
    """Have the store do something that may wait for a lock; return what comes of it."""
    fault = yield from _reach(world)
    result = yield from action(*arguments)
    yield from _return(world, fault)
    return result


def _reach(world):
    chaos = world.chaos
    yield chaos.seconds(SWIFT)
    fault = chaos.fault(STORE) if world.clock.now >= world.store_away_until else "store away"
    if fault == "store away":
        yield chaos.seconds(TIMEOUT)
        raise StoreUnavailable("The store did not answer.")
    if fault == "delay":
        yield chaos.seconds(SLOW)
    return fault


def _return(world, fault):
    yield world.chaos.seconds(SWIFT)
    if fault == "reply lost":
        raise StoreUnavailable("The store's reply was lost.")


def transact(world, process, transaction, handle=None):
    """Move a cursor and write effects in one transaction."""
    chaos, store = world.chaos, world.store
    process.transactions.append(transaction)
    yield chaos.seconds(SWIFT)
    if world.clock.now < world.store_away_until:
        raise StoreUnavailable("The store did not answer.")
    fault = chaos.fault(TRANSACTION)
    yield from store.move(transaction)
    if handle:
        try:
            handle(transaction)
        except HandlerFailed:
            store.roll_back(transaction)
            raise
    yield chaos.seconds(SLOW if fault == "delay" else SWIFT)
    if transaction.over:
        raise StoreUnavailable("The connection was closed.")
    if fault == "serialization":
        store.roll_back(transaction)
        raise StoreUnavailable("Try the transaction again.")
    if fault == "connection lost":
        world.clock.later(chaos.seconds(SLOW), store.roll_back, transaction)
        raise StoreUnavailable("The connection was lost.")
    if fault == "commit in flight":
        world.clock.later(chaos.seconds(SLOW), store.commit, transaction)
        raise StoreUnavailable("The connection was lost.")
    store.commit(transaction)
    process.transactions.remove(transaction)
    yield chaos.seconds(SWIFT)
    if fault == "commit reply lost":
        raise StoreUnavailable("The reply was lost.")


def drive(steps, carry_out):
    """Take the steps of decisions until they end; return what they return."""
    go_on, value = steps.send, None
    while True:
        try:
            step = go_on(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield from carry_out(step)
        except (ZeroEventHubError, HandlerFailed) as error:
            go_on, value = steps.throw, error
        else:
            go_on = steps.send
