"""Steps of a bound feed, carried out by either engine."""

import threading

import pytest
from harness.shop import orders
from sqlalchemy import text

from zeroeventhub import TableFeed
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.bound_feed_steps import Pause, Query, Work


def late(connection):
    """Say that the database does not answer."""
    raise Unavailable("Not now.")


def steps(_feed, statement):
    """Take a step of each kind, and one that fails."""
    yield Pause(0.01)
    found = [(yield Query(lambda connection: connection.scalar(text(statement))))]
    try:
        yield Query(late)
    except Unavailable:
        found.append("late")
    found.append((yield Work(threading.get_ident)))
    return found


@pytest.mark.anyio
async def test_steps_are_the_same_with_every_engine(any_engine, any_async_engine):
    """Queries have a connection, an error comes back to its step, and work does not block."""
    source = TableFeed(orders, data="data")
    sync = source.bind(any_engine).run(steps, "SELECT 7")
    found = await source.bind(any_async_engine).run(steps, "SELECT 7")
    assert sync == [7, "late", threading.get_ident()]
    assert found[:2] == sync[:2]
    assert found[2] != sync[2]
