"""What Spark holds while a history passes through it."""

import psutil

from benchmarks.acting import Actor
from benchmarks.cpu import resident
from benchmarks.measuring import spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import NetworkStage, Stage, address
from benchmarks.suites.spark import CORES, TASKS, from_feed, spark_session

TIMES = 10
PAUSE = 0.1
NOWHERE = "noop"
FRUGAL = "-XX:+UseSerialGC -Xms64m"

TEXT = f"""\
A load by Arrow, with the default columns, of a history and of one that is {TIMES} times as long, by
the same Spark, which writes it nowhere: what its writer of Parquet holds grows with a file,
whatever is read. The memory of Java and of its Python workers together is looked at ten times a
second, and the largest values are compared. Before that the shorter one is loaded once, uncounted.
Java would take all the heap that it may have before it collects anything, so it is set to take no
more than it needs, by `{FRUGAL}`."""


def spark_memory(stage: Stage) -> Result:
    """Load a history and a long one, and watch."""
    stage = NetworkStage.of(stage)
    counts = [stage.rows // TIMES, stage.rows]
    held: list[dict[str, float]] = []
    with spark_session(stage, CORES, FRUGAL) as (loader, _):
        for count in (counts[0], *counts):  # what comes first is not counted
            table = stage.table(f"events_{count}", "jsonb", count)
            with stage.publisher(table, arrow=True) as (publisher, _):
                order = from_feed(address(publisher, table), TASKS, sink=NOWHERE)
                held.append(watched(loader, order))
            stage.tell(f"{count:,} events: {held[-1]}")
    short, long = (f"MiB, {count:,} events" for count in counts)
    rows, goals = [], []
    for name in held[0]:
        first, last = (one[name] for one in held[1:])
        columns = {short: first, long: last, "long / short": last / first}
        rows.append(
            Row(name, {column: spread([value]) for column, value in columns.items()}, ours=True)
        )
        goals.append(Goal(f"memory of Spark: {name}", name, "long / short", 1.1, at_most=True))
    return Result(
        "spark_memory",
        "Spark: memory",
        TEXT,
        long,
        rows,
        goals,
        size=f"{counts[0]:,} and {counts[1]:,} events, once",
    )


def watched(loader: Actor, order: object) -> dict[str, float]:
    """Let Spark load; return the most that its processes held."""
    java = psutil.Process(loader.ready["jvm"])
    most = {"Java": 0.0, "Python workers": 0.0}
    loader.begin(order)
    while not loader.is_done(PAUSE):
        workers = sum(resident(one.pid) for one in java.children(recursive=True))
        now = {"Java": resident(java.pid), "Python workers": workers}
        most = {name: max(most[name], now[name]) for name in most}
    loader.end()
    return most
