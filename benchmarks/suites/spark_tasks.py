"""What more tasks of Spark gain where each connection is slow."""

from functools import partial

from benchmarks.acting import Actor, acting
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import NetworkStage, Stage, address
from benchmarks.suites.spark import from_feed, learning, loaded, spark_session

RATE = 4 * 1024 * 1024
ONE, TWO, FOUR = "1 task", "2 tasks", "4 tasks"
TASKS = {ONE: 1, TWO: 2, FOUR: 4}

TEXT = f"""\
The load of `spark` by Arrow, with the default columns, of one partition in one, two or four splits,
by a Spark that works on four tasks at once. A proxy before the publisher sends
{RATE // 1024**2} MiB a second on each connection: this is what takes the time, not the machine."""


def spark_tasks(stage: Stage) -> Result:
    """Load a feed by more and more tasks at once."""
    stage = NetworkStage.of(stage)
    table = stage.table("events_jsonb", "jsonb", stage.events)
    with spark_session(stage, max(TASKS.values())) as (loader, _):
        ways: dict[str, Way] = {
            name: partial(loaded_slowly, stage, table, loader, tasks)
            for name, tasks in TASKS.items()
        }
        learning({FOUR: ways[FOUR]}, stage.tell)
        runs = rounds(ways, stage.count, stage.tell)
    of = {"of one task": runs[ONE]}
    return Result(
        "spark_tasks",
        "Spark: tasks side by side",
        TEXT,
        "of one task",
        [Row(name, figures(found, of), ours=True) for name, found in runs.items()],
        [Goal("Spark, 4 splits over slow connections", FOUR, "of one task", 3.0)],
    )


def loaded_slowly(stage: Stage, table: str, loader: Actor, tasks: int) -> Run:
    """Load a feed over connections that are slow."""
    with stage.publisher(table, arrow=True) as (publisher, _):
        task = {"port": publisher.ready["port"], "rate": RATE}
        with acting("throttle", task) as proxy:
            return loaded(loader, {}, from_feed(address(proxy, table), tasks), stage.events)
