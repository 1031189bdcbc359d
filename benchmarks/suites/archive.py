"""A feed's history in its archive: what sealing takes, what it saves, and how it is read."""

from functools import partial
from shutil import rmtree

from sqlalchemy import text

from benchmarks.acting import acting
from benchmarks.measuring import Run, Way, figures, rounds, spread
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import Stage

HOT = "from the table"
CACHED = "from the archive, cached on the disk"
FETCHED = "from the archive in a folder, without a cache"
SEALING = "sealing"
SIZE = "bytes per event"

IN_PYTHON = (
    "a page of the archive is cut out of columns by the publisher's one process, while another "
    "process, PostgreSQL, makes those of the table"
)

TEXT = """\
The drain of the publisher, over a table and over the same events in an archive, once all of them
were trimmed from the table. Every round has new publishers, so that nothing is in memory. Sealing
is one process that reads the table in PostgreSQL and writes into a folder, to the disk. Bytes per
event are those of the table with its index, and those of the archive's files: the events of the
benchmark are much alike, and pack better than others."""


def archive(stage: Stage) -> Result:
    """Seal a table, and read what was sealed."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    sealed = stage.table("events_sealed", "jsonb", stage.events)
    place, cache = stage.folder / "archive", stage.folder / "cache"
    of_table = _table_bytes(stage, table)
    with acting("seal", _task(stage, sealed)) as sealer:
        of_archive = sealer.act({"archive": str(place)})["bytes"] / stage.events
    ways: dict[str, Way] = {
        HOT: partial(stage.drained, table),
        CACHED: partial(stage.drained, sealed, archive=str(place), cache=str(cache)),
        FETCHED: partial(stage.drained, sealed, archive=str(place)),
        SEALING: partial(sealing, stage, table),
    }
    ways[CACHED]()
    runs = rounds(ways, stage.count, stage.tell)
    rmtree(place)
    del stage.filled[stage.postgresql, sealed]
    of = {"of the table": runs[HOT]}
    rows = [Row(name, figures(found, of), ours=name != HOT) for name, found in runs.items()]
    rows[0].figures[SIZE], rows[1].figures[SIZE] = spread([of_table]), spread([of_archive])
    return Result(
        "archive",
        "History in an archive",
        TEXT,
        "events/s",
        rows,
        [
            Goal("publisher, from its archive", CACHED, "of the table", 0.67, why=IN_PYTHON),
            Goal("sealing, events a second", SEALING, "events/s", 100_000),
        ],
    )


def sealing(stage: Stage, table: str) -> Run:
    """Seal a table that stays as it is."""
    with acting("seal", _task(stage, table)) as sealer:
        return sealer.run({"database": stage.backends}, {})


def _task(stage: Stage, table: str) -> dict[str, str]:
    return {"database": stage.postgresql, "table": table, "folder": str(stage.folder)}


def _table_bytes(stage: Stage, table: str) -> float:
    """Return the bytes that an event takes in PostgreSQL, with its index."""
    with stage.engine(stage.postgresql) as engine, engine.connect() as connection:
        size = connection.scalar(text("SELECT pg_total_relation_size(:name)"), {"name": table})
    return float(size) / stage.events
