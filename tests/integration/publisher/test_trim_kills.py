"""Whoever trims is killed, wherever it is: every reader gets all that follows, or is told."""

import pytest
from harness.log import LOG, Log
from harness.ordering_table import ALL
from harness.trimmed import Witness, source, trim_until_killed

EVENTS = 6
EVERY = {"observed": 5, "single-writer": 3}
"""How many points lie between two at which whoever trims is killed."""


@pytest.fixture
def log(request, case):
    """A log in an empty database."""
    return Log(request.getfixturevalue(case.database), case)


@pytest.mark.parametrize("case", ALL, ids=[f"{case.ordering}-{case.database}" for case in ALL])
def test_killed_at_every_point_of_trimming(log, case):
    """Before and behind every statement and every commit: the mark and the table are of one
    moment, no reader passes over anything, and the next one goes on.
    """
    LOG.metadata.create_all(log.engine)
    with log.engine.begin() as connection:
        source(case.ordering).install(connection)
    log.feed = source(case.ordering).bind(log.engine)
    witness = Witness(log)
    url = log.engine.url.render_as_string(hide_password=False)
    at, written, kills, marks = 1, 0, 0, set()
    killed = True
    while killed:
        witness.write(*range(written, written + EVENTS))
        written += EVENTS
        below = max(witness.history) - 1
        killed = trim_until_killed(url, case.ordering, below, at)
        kills += killed
        marks.add(witness.judge(log.feed))
        witness.judge(source(case.ordering).bind(log.engine))
        log.feed.trim(log.feed.plan_trim(below=below))
        assert witness.judge(log.feed) == below - 1
        witness.forget(below - 4)
        at += EVERY.get(case.ordering, 9)
    assert kills * EVERY.get(case.ordering, 9) > 30
    assert len(marks) > 3
