"""How long an event takes from its commit to a handler that waits for it."""

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks.acting import acting
from benchmarks.events import feed_table
from benchmarks.measuring import Figure, Run, Way, quantile, rounds, spread
from benchmarks.result import Goal, Result, Row
from benchmarks.servers import redis_program, redis_server
from benchmarks.stage import Stage, address

EVENTS = 100
TABLE = "events_latency"
NOTIFY = "bare LISTEN / NOTIFY"
WATCHED = "feed, written by another process"
WOKEN = "feed, written by its own process"
REDIS = "Redis XREAD BLOCK"

WATCHES = (
    "a fifth of it passes until the next poll, half to read the head and the page, and the rest in "
    "the consumer"
)

TEXT = f"""\
{EVENTS} events a run are written one by one, with pauses of 30 to 70 ms; a delay is from the call
of the commit, or of XADD, until the handler. A consumer waits at the head by long-polling, in a
process of its own; a feed that has had news within half a second is looked at every 2 ms, one
without for four seconds every 40 ms. The bare ways decode their message and do nothing else; a
consumer has opened its transaction and moved its cursor when its handler is called."""


def latency(stage: Stage) -> Result:
    """Follow a feed at its head."""
    ways: dict[str, Way] = {
        NOTIFY: partial(notified, stage),
        WATCHED: partial(followed, stage, own=False),
        WOKEN: partial(followed, stage, own=True),
    }
    missing = []
    with ExitStack() as stack:
        if redis_program():
            port, _ = stack.enter_context(redis_server())
            ways[REDIS] = partial(blocked, port)
        else:
            missing.append(Row(REDIS, note="not installed"))
        runs = rounds(ways, stage.count, stage.tell)
    rows = [
        Row(name, _figures(found, runs[NOTIFY]), ours=name in {WATCHED, WOKEN})
        for name, found in runs.items()
    ]
    return Result(
        "latency",
        "From commit to handler",
        TEXT,
        "p50, ms",
        rows + missing,
        [
            Goal("commit to handler, idle feed", WATCHED, "p50, ms", 4, at_most=True, why=WATCHES),
            Goal("commit to handler, idle feed", WATCHED, "p99, ms", 8, at_most=True, why=WATCHES),
            Goal("commit to handler, one process", WOKEN, "p50, ms", 3, at_most=True, why=WATCHES),
            Goal("commit to handler, one process", WOKEN, "p99, ms", 5, at_most=True, why=WATCHES),
        ],
        size=f"{EVENTS} events a run, {stage.count} rounds",
    )


def _figures(runs: Sequence[Run], bare: Sequence[Run]) -> dict[str, Figure]:
    half, most = ([quantile(run.more["delays"], share) for run in runs] for share in (0.5, 0.99))
    ratios = [
        own / quantile(other.more["delays"], 0.5) for own, other in zip(half, bare, strict=True)
    ]
    return {"p50, ms": spread(half), "p99, ms": spread(most), "of LISTEN": spread(ratios)}


def followed(stage: Stage, *, own: bool) -> Run:
    """Follow a feed that another process writes to, or the publisher's own."""
    _empty(stage)
    with stage.publisher(TABLE) as (publisher, _):
        url = address(publisher, TABLE)
        following = {"url": url, "folder": str(stage.folder), "events": EVENTS}
        into = {"into": "publisher", "url": url} if own else _into_table(stage, notify=False)
        return _delays("follow", following, into)


def notified(stage: Stage) -> Run:
    """Listen to notifications."""
    _empty(stage)
    listening = {"database": stage.plain_url, "events": EVENTS}
    return _delays("listen", listening, _into_table(stage, notify=True))


def blocked(port: int) -> Run:
    """Wait for entries of a stream that is not there yet."""
    stream = {"port": port, "stream": uuid.uuid4().hex}
    return _delays("redis_block", {**stream, "events": EVENTS}, {**stream, "into": "redis"})


def _empty(stage: Stage) -> None:
    with stage.engine(stage.postgresql) as engine:
        feed_table(TABLE, "jsonb").drop(engine, checkfirst=True)
        feed_table(TABLE, "jsonb").create(engine)


def _into_table(stage: Stage, *, notify: bool) -> dict[str, Any]:
    return {"into": "table", "database": stage.plain_url, "table": TABLE, "notify": notify}


def _delays(module: str, task: dict[str, Any], into: dict[str, Any]) -> Run:
    with acting(module, task) as seeing, acting("write", {"events": EVENTS, **into}) as writing:
        seeing.begin()
        took = writing.act()
        seen = seeing.end()["seen"]
    written = took["written"]
    delays = [1000 * (seen[number] - began) for number, began in written.items()]
    return Run(EVENTS, took["seconds"], more={"delays": delays})
