"""A publisher over SQLite, and one over MariaDB."""

from functools import partial

from benchmarks.acting import acting
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage

CEILING = "bare cursor, fetchmany"
OURS = "publisher, bytes drained"

TEXT = """\
The same drain over {}. The ceiling is `SELECT id, data … ORDER BY id` by a cursor of {},
1,000 rows at a time, in one process, and drops them."""
WHY = "each page is a request, whose JSON is joined and checked; the bare cursor drops its rows"


def sqlite(stage: Stage) -> Result:
    """Drain a publisher over SQLite."""
    text = TEXT.format("an SQLite file", "the standard library's sqlite3")
    return _compared(stage, stage.sqlite, "SQLite", text)


def mariadb(stage: Stage) -> Result:
    """Drain a publisher over MariaDB."""
    text = TEXT.format("a MariaDB on this machine", "PyMySQL whose rows stay at the server")
    return _compared(stage, stage.mariadb, "MariaDB", text)


def _compared(stage: Stage, url: str, name: str, text: str) -> Result:
    table = stage.table(f"events_{name.lower()}", "json", stage.events, url=url)
    ways: dict[str, Way] = {
        CEILING: partial(fetched, url, table),
        OURS: partial(stage.drained, table, form="json", url=url),
    }
    runs = rounds(ways, stage.count, stage.tell)
    of = {"of the cursor": runs[CEILING]}
    rows = [Row(way, figures(found, of), ours=way == OURS) for way, found in runs.items()]
    goal = Goal(f"{name} publisher, bytes drained", OURS, "of the cursor", 0.60, why=WHY)
    return Result(name.lower(), f"The publisher over {name}", text, "of the cursor", rows, [goal])


def fetched(url: str, table: str) -> Run:
    """Fetch all rows."""
    with acting("fetch", {"database": url, "table": table, "limit": PAGE}) as fetching:
        return fetching.run({})
