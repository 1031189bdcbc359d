"""Append to a log over HTTP: single events of many writers, and batches of one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from sqlalchemy import MetaData, func, select

from benchmarks.acting import acting
from benchmarks.cpu import Meter, of_process
from benchmarks.measuring import Run, Way, figures, rounds, spread
from benchmarks.result import Goal, Result, Row
from benchmarks.servers import nats_program, nats_server, redis_program, redis_server
from benchmarks.stage import Stage
from zeroeventhub import EventLog

WRITERS = 64
BATCH = 1_000
SINGLES = 10
"""How many times as many events come in batches as one by one."""

TABLE = "http_log"
INSERT, APPEND = f"INSERT, {WRITERS} connections", f"append, {WRITERS} writers"
APPEND_BY_TWO = f"append, {WRITERS} writers, two processes"
COPY, BATCHES = f"COPY, {BATCH:,} a commit", f"append, {BATCH:,} a batch"
NATS, NATS_BATCHES = f"NATS JetStream, {WRITERS} writers", f"NATS JetStream, {BATCH:,} at a time"
XADD, XADDS = f"Redis XADD, {WRITERS} writers", f"Redis XADD, {BATCH:,} at a time"

TEXT = f"""\
Events of about 100 bytes of JSON are appended to a log of eight partitions on PostgreSQL, over
HTTP through one process of uvicorn, or two: by {WRITERS} writers, each of which sends one event
and waits for the answer, and by one writer that sends {BATCH:,} at a time. Requests are made
ready before, and so are the rows of the bare ways, which write into the same table: {WRITERS}
connections of psycopg, each of which commits one INSERT after the other, and one connection with
a COPY of {BATCH:,} rows in each transaction. The log hashes keys, checks and compacts JSON, and
leaves out what is there already.

Redis writes each command to its disk before it answers (`appendfsync always`), and keeps
a stream without partitions and without unique ids. NATS JetStream, through nats-py over one
connection, acknowledges each event, and flushes its files every two minutes, as it does by default.
Its runs of batches have a tenth of the events."""

WHY_SINGLE = (
    "a request takes the publisher's one process 0.2 ms, of which uvicorn and Starlette take a "
    "third; connections of the bare way share both cores"
)
WHY_BATCHES = "JSON is decoded, checked and hashed, which the rows that COPY writes were before"


def append_http(stage: Stage) -> Result:
    """Append over HTTP, and by the driver alone."""
    few, many = stage.events // SINGLES, stage.events
    ways: dict[str, Way] = {
        INSERT: partial(_written, stage, few, way="driver", writers=WRITERS, size=1),
        APPEND: partial(_written, stage, few, way="http", writers=WRITERS, size=1),
        APPEND_BY_TWO: partial(
            _written, stage, few, way="http", writers=WRITERS, size=1, workers=2
        ),
        COPY: partial(_written, stage, many, way="driver", writers=1, size=BATCH),
        BATCHES: partial(_written, stage, many, way="http", writers=1, size=BATCH),
    }
    if redis_program():
        ways[XADD] = partial(_added, few, writers=WRITERS, size=1)
        ways[XADDS] = partial(_added, many, writers=1, size=BATCH)
    if nats_program():
        ways[NATS] = partial(_published, few, writers=WRITERS, size=1)
        ways[NATS_BATCHES] = partial(_published, few, writers=1, size=BATCH)
    runs = rounds(ways, stage.count, stage.tell)
    rows = []
    for name, found in runs.items():
        bare = runs[COPY] if name in {COPY, BATCHES, XADDS, NATS_BATCHES} else runs[INSERT]
        shown = figures(found, {"of the bare way": bare})
        longest, bares = ([run.more["p99"] for run in runs] for runs in (found, bare))
        shown["p99, ms"] = spread(longest)
        shown["p99, of the bare way"] = spread(
            [one / other for one, other in zip(longest, bares, strict=True)]
        )
        rows.append(Row(name, shown, ours="append" in name))
    goals = [
        Goal(
            f"append over HTTP, {WRITERS} writers of single events",
            APPEND,
            "of the bare way",
            0.8,
            why=WHY_SINGLE,
        ),
        Goal(
            f"append over HTTP, {WRITERS} writers of single events",
            APPEND,
            "p99, of the bare way",
            3,
            at_most=True,
            why=WHY_SINGLE,
        ),
        Goal(
            f"append over HTTP, batches of {BATCH:,}",
            BATCHES,
            "of the bare way",
            0.5,
            why=WHY_BATCHES,
        ),
    ]
    size = f"{many:,} events a run in batches, {few:,} one by one, {stage.count} rounds"
    return Result(
        "append_http", "Appending over HTTP", TEXT, "of the bare way", rows, goals, size=size
    )


def _written(stage: Stage, events: int, *, way: str, workers: int = 1, **task: Any) -> Run:
    """Append to an empty log."""
    metadata = MetaData()
    log = EventLog(metadata, TABLE, partitions=8, append=True)
    with stage.engine(stage.postgresql) as engine:
        metadata.drop_all(engine)
        metadata.create_all(engine)
        with (
            _place(stage, way, workers) as (place, meters),
            acting("appending", {**task, **place, "way": way, "table": TABLE}) as writing,
        ):
            run = writing.run({**meters, "database": stage.backends}, {"events": events})
        with engine.connect() as connection:
            found = connection.scalar(select(func.count()).select_from(log.table))
    assert found == events  # noqa: S101 - else it would be no measure
    return run


@contextmanager
def _place(
    stage: Stage, way: str, workers: int
) -> Iterator[tuple[dict[str, Any], dict[str, Meter]]]:
    """Yield where to append, and what measures the publisher if there is one."""
    if way == "driver":
        yield {"database": stage.plain_url}, {}
        return
    task = {"database": stage.postgresql, "table": TABLE, "port": 0}
    with ExitStack() as stack:
        publishers = []
        for _ in range(workers):
            publishers.append(stack.enter_context(acting("log", task)))
            task["port"] = publishers[0].ready["port"]
        meters = [of_process(one.number) for one in publishers]
        yield {"port": task["port"]}, {"publisher": lambda: sum(meter() for meter in meters)}


def _published(events: int, **task: Any) -> Run:
    """Publish to an empty stream of NATS JetStream."""
    with (
        nats_server() as (port, number),
        acting("appending", {**task, "way": "nats", "port": port}) as writing,
    ):
        return writing.run({"database": of_process(number)}, {"events": events})


def _added(events: int, **task: Any) -> Run:
    """Add to an empty stream of Redis."""
    with (
        redis_server("--appendonly", "yes", "--appendfsync", "always") as (port, number),
        acting("appending", {**task, "way": "redis", "port": port}) as writing,
    ):
        return writing.run({"database": of_process(number)}, {"events": events})
