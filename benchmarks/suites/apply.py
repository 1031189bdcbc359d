"""Exactly once into a database: the rows of a page and the cursor in one transaction."""

from functools import partial

from sqlalchemy import func, select

from benchmarks.acting import acting
from benchmarks.cpu import Meter
from benchmarks.events import effects_table
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import PAGE, Stage

COPY = "COPY FROM, a page a commit"
ROWS = "COPY FROM, rows of Python's values"
INTO_POSTGRESQL = "consumer into PostgreSQL"
FROM_MEMORY = "consumer into PostgreSQL, pages from memory"
MANY = "sqlite3 executemany, a page a commit"
INTO_SQLITE = "consumer into SQLite"
SQLITE_FROM_MEMORY = "consumer into SQLite, pages from memory"

WHY = "JSON is decoded and checked column by column, which the ceiling's ready rows are not"

TEXT = """\
Every event becomes a row of 15 columns with a primary key, in pages of 1,000; the consumer
inserts a page by `page.insert_into`, and moves its cursor in the same transaction. The ceilings
have their rows ready, as bytes for COPY and as tuples for executemany, commit as often, and keep
no cursor. The first row of a consumer has the whole way: a publisher over PostgreSQL, HTTP, the
consumer. “Pages from memory” replaces the publisher by a server that has recorded its answers,
which leaves the consumer's part."""


def apply(stage: Stage) -> Result:
    """Apply a feed to two databases."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    beside = f"sqlite:///{stage.folder / 'effects.db'}"
    local = stage.table("events_sqlite", "json", stage.events, url=beside)
    inside = stage.postgresql
    ways: dict[str, Way] = {
        COPY: partial(loaded, stage, inside, table),
        ROWS: partial(loaded, stage, inside, table, rows=True),
        INTO_POSTGRESQL: partial(applied, stage, inside, table, replayed=False),
        FROM_MEMORY: partial(applied, stage, inside, table, replayed=True),
        MANY: partial(loaded, stage, beside, local),
        INTO_SQLITE: partial(applied, stage, beside, table, replayed=False),
        SQLITE_FROM_MEMORY: partial(applied, stage, beside, table, replayed=True),
    }
    runs = rounds(ways, stage.count, stage.tell)
    ceilings = dict.fromkeys(ways, COPY) | dict.fromkeys(
        (MANY, INTO_SQLITE, SQLITE_FROM_MEMORY), MANY
    )
    rows = [
        Row(
            name,
            figures(found, {"of the ceiling": runs[ceilings[name]]}),
            ours=name.startswith("consumer"),
        )
        for name, found in runs.items()
    ]
    return Result(
        "apply",
        "Exactly once into a database",
        TEXT,
        "of the ceiling",
        rows,
        [
            Goal("exactly once into PostgreSQL", INTO_POSTGRESQL, "of the ceiling", 0.50, why=WHY),
            Goal("the same, pages from memory", FROM_MEMORY, "of the ceiling", 0.70, why=WHY),
            Goal("exactly once into SQLite", INTO_SQLITE, "of the ceiling", 0.50, why=WHY),
            Goal(
                "the same, pages from memory", SQLITE_FROM_MEMORY, "of the ceiling", 0.65, why=WHY
            ),
        ],
    )


def loaded(stage: Stage, database: str, table: str, *, rows: bool = False) -> Run:
    """Load ready rows, into PostgreSQL as bytes or as Python's values."""
    empty(stage, database)
    is_sqlite = database.startswith("sqlite")
    task = {
        "database": database.removeprefix("sqlite:///") if is_sqlite else stage.plain_url,
        "sqlite": is_sqlite,
        "rows": rows,
        "table": table,
        "events": stage.events,
        "limit": PAGE,
    }
    with acting("load", task) as loading:
        run = loading.run({} if is_sqlite else {"database": stage.backends})
    return checked(stage, database, run)


def applied(stage: Stage, database: str, table: str, *, replayed: bool) -> Run:
    """Apply a feed, from its publisher or from a recording of it."""
    empty(stage, database)
    with stage.publisher(table) as (publisher, meters):
        if not replayed:
            return consumed(stage, database, table, publisher.ready["port"], meters)
        task = {"port": publisher.ready["port"], "table": table, "limit": PAGE}
        with acting("replay", task) as replay:
            backends = {} if database.startswith("sqlite") else {"database": stage.backends}
            return consumed(stage, database, table, replay.ready["port"], backends)


def consumed(stage: Stage, database: str, table: str, port: int, meters: dict[str, Meter]) -> Run:
    """Apply what a port serves."""
    task = {"url": f"http://127.0.0.1:{port}/{table}", "database": database, "limit": PAGE}
    with acting("apply", task) as applying:
        run = applying.run(meters)
    return checked(stage, database, run)


def empty(stage: Stage, database: str) -> None:
    """Make the table of the effects anew."""
    with stage.engine(database) as engine:
        effects_table().drop(engine, checkfirst=True)
        effects_table().create(engine)


def checked(stage: Stage, database: str, run: Run) -> Run:
    """Check that every event has taken effect."""
    with stage.engine(database) as engine, engine.connect() as connection:
        count = connection.scalar(select(func.count()).select_from(effects_table()))
    assert run.events == count == stage.events  # noqa: S101 - else it would be no measure
    return run
