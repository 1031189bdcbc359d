"""A publisher over SQLite."""

from functools import partial

from benchmarks.acting import acting
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage, events_path

CEILING = "sqlite3 cursor, fetchmany"
OURS = "publisher, bytes drained"

TEXT = """\
The same drain over an SQLite file. The ceiling is `SELECT id, data … ORDER BY id` by a cursor of
the standard library's sqlite3, 1,000 rows at a time, in one process and to nobody."""


def sqlite(stage: Stage) -> Result:
    """Drain a publisher over SQLite."""
    table = stage.table("events_local", "json", stage.events, url=stage.sqlite)
    ways: dict[str, Way] = {
        CEILING: partial(fetched, stage, table),
        OURS: partial(drained, stage, table),
    }
    runs = rounds(ways, stage.count, stage.tell)
    of = {"of the cursor": runs[CEILING]}
    rows = [Row(name, figures(found, of), ours=name == OURS) for name, found in runs.items()]
    return Result(
        "sqlite",
        "The publisher over SQLite",
        TEXT,
        "of the cursor",
        rows,
        [Goal("SQLite publisher, bytes drained", OURS, "of the cursor", 0.60)],
    )


def fetched(stage: Stage, table: str) -> Run:
    """Fetch all rows."""
    database = stage.sqlite.removeprefix("sqlite:///")
    with acting("fetch", {"database": database, "table": table, "limit": PAGE}) as fetching:
        return fetching.run({})


def drained(stage: Stage, table: str) -> Run:
    """Drain the feed."""
    with (
        stage.publisher(table, form="json", url=stage.sqlite) as (publisher, meters),
        acting("drain", {"port": publisher.ready["port"], "path": events_path(table)}) as reader,
    ):
        reader.act({"cursor": "_last", "events": 1})
        run = reader.run(meters, {"cursor": "_first", "events": stage.events})
    assert run.events == stage.events  # noqa: S101 - else it would be no measure
    return run
