"""What a publisher and a consumer hold while events pass through them."""

import math

import httpx

from benchmarks.acting import Actor, acting
from benchmarks.cpu import resident
from benchmarks.measuring import spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage, address
from zeroeventhub.settings import Capacity

TEXT = """\
A consumer runs through the long table of `depth`, touching the data of each event. The memory of
both processes is looked at ten times a second. What the publisher keeps of full pages grows up to
its bound, and only what comes after as many events as fill it is counted: of that time, the
largest values of the second tenth and of the last tenth are compared."""

PAUSE = 0.1


def memory(stage: Stage) -> Result:
    """Consume a long table once, and watch."""
    table = stage.table("events_long", "jsonb", stage.rows, members="'id', n")
    with stage.publisher(table) as (publisher, _):
        filling = filling_events(address(publisher, table))
        assert 2 * filling < stage.rows  # noqa: S101 - else little of the time would be counted
        task = {"url": address(publisher, table), "how": "objects", "limit": PAGE}
        with acting("consume", {**task, "folder": str(stage.folder)}) as consumer:
            held = watched(publisher, consumer)
            took = consumer.end()
    assert took["events"] == stage.rows  # noqa: S101 - else it would be no measure
    rows, goals = [], []
    for name, all_sizes in held.items():
        sizes = all_sizes[round(len(all_sizes) * filling / stage.rows) :]
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
        size=f"{stage.rows:,} events, once, counted after {filling:,}",
    )


def filling_events(url: str) -> int:
    """Return how many events of a feed fill what its publisher keeps of full pages."""
    with httpx.Client() as http:
        answer = http.get(f"{url}/events?token=1&partition=0&cursor=_first&pagesizehint={PAGE}")
    return math.ceil(Capacity().kept_bytes / len(answer.content) * PAGE)


def watched(publisher: Actor, consumer: Actor) -> dict[str, list[float]]:
    """Let a consumer begin; look at the memory of both until it is done."""
    held: dict[str, list[float]] = {"publisher": [], "consumer": []}
    consumer.begin()
    while not consumer.is_done(PAUSE):
        held["publisher"].append(resident(publisher.number))
        held["consumer"].append(resident(consumer.number))
    return held
