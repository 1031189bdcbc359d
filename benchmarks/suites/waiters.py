"""What requests cost that wait at the head of a feed."""

import time

from sqlalchemy import insert

from benchmarks.acting import acting
from benchmarks.cpu import Meter, resident
from benchmarks.events import feed_table
from benchmarks.measuring import spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import Stage, events_path

WAITERS = 10_000
WHY = "a request that waits is a task of its own, with its connection and its parsed request"
SECONDS = 5.0
"""For which they are watched waiting."""

TABLE = "events_waiters"
OURS = f"{WAITERS:,} idle long-polls"

TEXT = f"""\
{WAITERS:,} requests wait at the head of one publisher, each on a connection of its own. What one
takes is the growth of the process's memory by all of them, connections and server included,
without the system's buffers. While they wait, the publisher looks at its head for all of them
together, every 40 ms where nothing has come for so long; then one event is committed, and all are
answered."""


def waiters(stage: Stage) -> Result:
    """Wait, many times over."""
    stage.table(TABLE, "jsonb", 100)
    found: dict[str, list[float]] = {}
    for number in range(1, stage.count + 1):
        for column, value in waited(stage).items():
            found.setdefault(column, []).append(value)
        stage.tell(f"{number}/{stage.count}: {found['KiB each'][-1]:.1f} KiB each")
    return Result(
        "waiters",
        "Waiting at the head",
        TEXT,
        "KiB each",
        [Row(OURS, {column: spread(values) for column, values in found.items()}, ours=True)],
        [Goal("an idle waiter of 10,000", OURS, "KiB each", 16, at_most=True, why=WHY)],
        size=f"{stage.count} rounds",
    )


def waited(stage: Stage) -> dict[str, float]:
    """Let requests wait, watch, and wake them."""
    with (
        stage.publisher(TABLE) as (publisher, meters),
        acting("wait", {"port": publisher.ready["port"], "path": events_path(TABLE)}) as crowd,
    ):
        crowd.act(100)
        before = resident(publisher.number)
        crowd.act(WAITERS - 100)
        _settle(meters["publisher"])
        memory = resident(publisher.number) - before
        taken = meters["publisher"]()
        time.sleep(SECONDS)
        idle = (meters["publisher"]() - taken) / SECONDS
        crowd.begin()
        with stage.engine(stage.postgresql) as engine, engine.begin() as connection:
            connection.execute(insert(feed_table(TABLE, "jsonb")).values(data={"id": 0}))
        committed = time.monotonic()
        answers = crowd.end()
    assert answers["well"] == WAITERS  # noqa: S101 - else it would be no measure
    return {
        "KiB each": memory * 1024 / (WAITERS - 100),
        "% of a core while they wait": 100 * idle,
        "s until all are answered": answers["at"] - committed,
    }


def _settle(meter: Meter) -> None:
    """Wait until the publisher has taken all requests in and has little to do."""
    while True:
        taken = meter()
        time.sleep(0.5)
        if meter() - taken < _BUSY:
            return


_BUSY = 0.15
"""Seconds of processors in half a second."""
