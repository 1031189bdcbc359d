"""What a publisher and a consumer hold while events pass through them."""

from benchmarks.acting import Actor, acting
from benchmarks.cpu import resident
from benchmarks.measuring import spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage, address

TEXT = """\
A consumer runs through the long table of `depth`, touching the data of each event. The memory of
both processes is looked at ten times a second; what is compared are the largest values of the
second tenth and of the last tenth of the time. What the publisher keeps of full pages grows up to
its bound: with fewer events than the ten million of the target, that may be meanwhile."""

PAUSE = 0.1


def memory(stage: Stage) -> Result:
    """Consume a long table once, and watch."""
    table = stage.table("events_long", "jsonb", stage.rows, small=True)
    with stage.publisher(table) as (publisher, _):
        task = {"url": address(publisher, table), "how": "objects", "limit": PAGE}
        with acting("consume", {**task, "folder": str(stage.folder)}) as consumer:
            held = watched(publisher, consumer)
            took = consumer.end()
    assert took["events"] == stage.rows  # noqa: S101 - else it would be no measure
    rows, goals = [], []
    for name, sizes in held.items():
        tenth = max(1, len(sizes) // 10)
        first, last = max(sizes[tenth : 2 * tenth]), max(sizes[-tenth:])
        figures = {
            "MiB, second tenth": first,
            "MiB, last tenth": last,
            "last / second": last / first,
        }
        columns = {column: spread([value]) for column, value in figures.items()}
        rows.append(Row(name, columns, ours=True))
        goals.append(Goal(f"memory of the {name}", name, "last / second", 1.05, at_most=True))
    return Result(
        "memory",
        "Memory",
        TEXT,
        "MiB, last tenth",
        rows,
        goals,
        size=f"{stage.rows:,} events, once",
    )


def watched(publisher: Actor, consumer: Actor) -> dict[str, list[float]]:
    """Let a consumer begin; look at the memory of both until it is done."""
    held: dict[str, list[float]] = {"publisher": [], "consumer": []}
    consumer.begin()
    while not consumer.is_done(PAUSE):
        held["publisher"].append(resident(publisher.number))
        held["consumer"].append(resident(consumer.number))
    return held
