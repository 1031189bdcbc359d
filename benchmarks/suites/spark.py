"""A history into Parquet by Spark: from a feed, and from the database by Spark's own source."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, make_url

from benchmarks.acting import Actor, acting
from benchmarks.cpu import Meter, of_descendants, of_process
from benchmarks.events import feed_table
from benchmarks.measuring import Figure, Run, Way, figures, rounds, spread
from benchmarks.publishing import seal
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import NetworkStage, Stage, address
from zeroeventhub import LAST, Client

CORES = 2
TASKS = 4
LESSONS = 2
ROWS_AT_ONCE = 10_000
DRIVER = Path("/usr/share/java/postgresql.jar")
"""Where Debian's libpostgresql-jdbc-java puts the driver."""

MEMBERS = "id BIGINT, customer STRING, amount DOUBLE, items INT, placed TIMESTAMP"

JDBC = "JDBC, data"
JDBC_MEMBERS = "JDBC, data, five members of it by `from_json`"
ARROW = "feed, Arrow, data"
LINES = "feed, lines, data"
FILES = "feed, files of its archive, data"
ALL = "feed, Arrow, the default columns"
ALL_OF_FILES = "feed, files of its archive, the default columns"
ARROW_MEMBERS = "feed, Arrow, a schema of five members"

OTHERS = (JDBC, JDBC_MEMBERS)
COMPARED = {JDBC_MEMBERS: JDBC_MEMBERS, ARROW_MEMBERS: JDBC_MEMBERS}
"""With what a way is compared, if not with JDBC."""

OF_JDBC = "time, of JDBC's"

WHY = "the publisher's one process reads for all four tasks"

TEXT = f"""\
A warm Spark of {CORES} cores loads a table of PostgreSQL into Parquet, in {TASKS} tasks: by its own
JDBC source, which reads the table itself in {TASKS} ranges of its key and {ROWS_AT_ONCE:,} rows
at once, and from a feed of it, which is one partition in {TASKS} splits: by pages, or out of the
files of its archive, into which all had been sealed before. What is written is one
column, the JSON of each event; in one row, the default columns of the source. In the last two rows
each document is made into five columns, with JDBC by `from_json`, with the feed by the source,
and their ratio is to each other. All reach PostgreSQL over TCP, as Java has to. The publisher and
Spark's Java and Python share the cores: what they take in all is in the last column, in
seconds of processors for a million events. JDBC has to be let into the database, and its driver is
that of Debian's `libpostgresql-jdbc-java`."""


def spark(stage: Stage) -> Result:
    """Load a history from a feed, and from its database."""
    stage = NetworkStage.of(stage)
    table = stage.table("events_jsonb", "jsonb", stage.rows)
    archive = str(stage.folder / "archive")
    seal(create_engine(stage.postgresql), feed_table(table), archive)
    with spark_session(stage, CORES) as (loader, meters):
        jdbc = partial(loaded_by_jdbc, stage, table, loader, meters)
        feed = partial(loaded_from_feed, stage, table, loader, meters)
        ways: dict[str, Way] = {
            JDBC: partial(jdbc, columns=["data"]),
            ARROW: partial(feed, schema="data STRING"),
            LINES: partial(feed, arrow=False, schema="data STRING"),
            FILES: partial(feed, archive=archive, schema="data STRING"),
            ALL: feed,
            ALL_OF_FILES: partial(feed, archive=archive),
            JDBC_MEMBERS: partial(jdbc, members=MEMBERS),
            ARROW_MEMBERS: partial(feed, schema=MEMBERS),
        }
        if not DRIVER.exists():
            ways = {name: way for name, way in ways.items() if name not in OTHERS}
        learning(ways, stage.tell)
        runs = rounds(ways, stage.count, stage.tell)
    rows = [
        Row(name, _figures(found, runs.get(COMPARED.get(name, JDBC))), ours=name not in OTHERS)
        for name, found in runs.items()
    ]
    rows += [Row(name, note="not installed") for name in OTHERS if name not in runs]
    return Result(
        "spark",
        "Spark: a history into Parquet",
        TEXT,
        OF_JDBC,
        rows,
        [
            Goal("Spark, by Arrow", ARROW, OF_JDBC, 1.8, at_most=True, why=WHY),
            Goal("Spark, out of files", FILES, OF_JDBC, 1.0, at_most=True),
            Goal("Spark, by lines", LINES, OF_JDBC, 1.3, at_most=True, why=WHY),
        ],
        size=f"{stage.rows:,} events a run, {stage.count} rounds",
    )


@contextmanager
def spark_session(
    stage: Stage, cores: int, java: str = ""
) -> Iterator[tuple[Actor, dict[str, Meter]]]:
    """Start Spark; yield it, and what measures it.

    Args:
        stage: has the folder for what is loaded.
        cores: how many tasks it works on at once.
        java: options of Java.
    """
    task = {"cores": cores, "driver": str(DRIVER), "folder": str(stage.folder), "java": java}
    with acting("spark", task) as loader:
        java = loader.ready["jvm"]
        yield loader, {"JVM": of_process(java), "workers": of_descendants(java)}


def learning(ways: Mapping[str, Way], tell: Callable[[str], object]) -> None:
    """Run ways before they count, for Java compiles what it does often."""
    for name, way in list(ways.items()) * LESSONS:
        tell(f"{name}, not counted: {way().rate:,.0f} events/s")


def from_feed(url: str, tasks: int, **more: Any) -> dict[str, Any]:
    """Return the order to load a feed."""
    return {
        "format": "zeroeventhub",
        "options": {"path": url, "minPartitions": str(tasks), "segmentOrigins": "file://"},
        **more,
    }


def loaded(loader: Actor, meters: Mapping[str, Meter], order: object, events: int) -> Run:
    """Let Spark load something."""
    run = loader.run(meters, order)
    assert run.events == events  # noqa: S101 - else it would be no measure
    # The process that tells Java what to do does nothing itself.
    cpu = {name: took for name, took in run.cpu.items() if name != "client"}
    return Run(run.events, run.seconds, cpu)


def loaded_by_jdbc(
    stage: Stage, table: str, loader: Actor, meters: Mapping[str, Meter], **more: Any
) -> Run:
    """Load a table by Spark's own source for databases."""
    url = make_url(stage.postgresql)
    options = {
        "url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "user": url.username or "",
        "password": url.password or "",
        "dbtable": table,
        "numPartitions": str(TASKS),
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": str(stage.rows + 1),
        "fetchsize": str(ROWS_AT_ONCE),
    }
    order = {"format": "jdbc", "options": options, **more}
    return loaded(loader, {"database": stage.backends, **meters}, order, stage.rows)


def loaded_from_feed(
    stage: Stage,
    table: str,
    loader: Actor,
    meters: Mapping[str, Meter],
    *,
    arrow: bool = True,
    archive: str | None = None,
    **more: Any,
) -> Run:
    """Load a feed, whose publisher has begun to work before."""
    with stage.publisher(table, arrow=arrow, archive=archive) as (publisher, publisher_meters):
        url = address(publisher, table)
        with httpx.Client() as http:
            Client(url, http).fetch(0, LAST)
        meters = {**publisher_meters, **meters}
        return loaded(loader, meters, from_feed(url, TASKS, **more), stage.rows)


def _figures(runs: Sequence[Run], others: Sequence[Run] | None) -> dict[str, Figure]:
    """Return what ways took, and how much of what others took in the same round."""
    found = {"s": spread([run.seconds for run in runs])}
    if others is not None:
        pairs = zip(runs, others, strict=True)
        found[OF_JDBC] = spread([run.seconds / other.seconds for run, other in pairs])
    found |= figures(runs, {})
    found["CPU in all"] = spread([sum(map(run.cpu_per_million, run.cpu)) for run in runs])
    return found
