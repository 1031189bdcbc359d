"""Steps are carried out by sync and async engines alike, and errors come back where they began."""

import threading
from functools import partial

import pytest
from sqlalchemy import create_engine, text

from zeroeventhub.driving import drive, drive_async
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.steps import Pause, Query, Work, carry_out, carry_out_async


def late(connection):
    """Say that the database does not answer."""
    raise Unavailable("Not now.")


def steps(statement):
    """Take a step of each kind, of which one fails."""
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
    """Queries have a connection, work is done in a thread where there is an event loop."""
    sync = drive(steps("SELECT 7"), partial(carry_out, any_engine))
    found = await drive_async(steps("SELECT 7"), partial(carry_out_async, any_async_engine))
    assert sync == [7, "late", threading.get_ident()]
    assert found[:2] == sync[:2]
    assert found[2] != sync[2]


def test_database_that_is_away_is_unavailable_to_steps(tmp_path):
    """A connection that cannot be made is an error of the feed's at the step."""
    away = create_engine(f"sqlite:///{tmp_path / 'missing' / 'test.db'}")
    with pytest.raises(Unavailable, match="cannot answer just now"):
        drive(steps("SELECT 7"), partial(carry_out, away))
