"""A history into a data frame: from a feed, and from the database by what others use."""

from functools import partial
from typing import Any

from sqlalchemy import make_url

from benchmarks.acting import Actor, acting
from benchmarks.events import feed_table
from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.publishing import seal
from benchmarks.result import Goal, Result, Row
from benchmarks.stage import Stage, address

SCANNER = "DuckDB's postgres scanner, data"
SCANNER_MEMBERS = "DuckDB's postgres scanner, five members"
PANDAS = "pandas.read_sql, data"
PANDAS_MEMBERS = "pandas.read_sql, five members"
FEED = "read_arrow, data"
FILES = "read_arrow out of files, data"
FEED_MEMBERS = "read_arrow, five members"
FILES_MEMBERS = "read_arrow out of files, five members"

OF_SCANNER, OF_PANDAS = "of the scanner", "of read_sql"

SCANNED = "the scanner reads the database in several threads, and JSON of files is still to be read"
WHY = "the publisher's one process makes all pages"

TEXT = """\
A table of PostgreSQL becomes columns in memory, in one process each time: the JSON of each event,
or five members of it with types. `read_arrow` reads a feed of it, which is one partition, by four
threads: pages of Arrow of a publisher with one process, or the files of an archive in which all
events are. DuckDB's scanner and `pandas.read_sql` read the table itself, for which they need its
password; the scanner takes it in parts, in a thread for each core, and takes members out of the
documents by itself, while pandas has PostgreSQL do that. The ratios are to the same columns."""


def data_frames(stage: Stage) -> Result:
    """Read a history from a feed, and from its database."""
    table = stage.table("events_jsonb", "jsonb", stage.events)
    archive = str(stage.folder / "archive_of_frames")
    with stage.engine(stage.postgresql) as engine:
        seal(engine, feed_table(table), archive)
    with acting("frame") as reader:
        database = partial(from_database, stage, table, reader)
        feed = partial(from_feed, stage, table, reader)
        ways: dict[str, Way] = {
            SCANNER: partial(database, "scanner", "data"),
            PANDAS: partial(database, "pandas", "data"),
            FEED: partial(feed, "data"),
            FILES: partial(feed, "data", archive=archive),
            SCANNER_MEMBERS: partial(database, "scanner", "members"),
            PANDAS_MEMBERS: partial(database, "pandas", "members"),
            FEED_MEMBERS: partial(feed, "members"),
            FILES_MEMBERS: partial(feed, "members", archive=archive),
        }
        runs = rounds(ways, stage.count, stage.tell)
    rows = []
    for name, found in runs.items():
        is_members = name.endswith("members")
        scanner, pandas = (SCANNER_MEMBERS, PANDAS_MEMBERS) if is_members else (SCANNER, PANDAS)
        of = {OF_SCANNER: runs[scanner], OF_PANDAS: runs[pandas]}
        rows.append(Row(name, figures(found, of), ours=name.startswith("read_arrow")))
    return Result(
        "data_frames",
        "Data frames",
        TEXT,
        OF_SCANNER,
        rows,
        [
            Goal("data frames, out of files", FILES, OF_SCANNER, 1.0, why=SCANNED),
            Goal("data frames, by pages", FEED, OF_SCANNER, 0.67, why=WHY),
            Goal("data frames, five members", FEED_MEMBERS, OF_PANDAS, 2.0, why=WHY),
        ],
    )


def from_database(stage: Stage, table: str, reader: Actor, way: str, columns: str) -> Run:
    """Read the table itself."""
    order = {"way": way, "columns": columns, "table": table, "engine": stage.postgresql}
    meters = {"database": stage.backends}
    return _read(stage, reader, meters, {**order, "database": _libpq(stage)})


def from_feed(
    stage: Stage, table: str, reader: Actor, columns: str, *, archive: str | None = None
) -> Run:
    """Read its feed, whose publisher has been started for it."""
    with stage.publisher(table, arrow=True, archive=archive) as (publisher, meters):
        order = {"way": "feed", "columns": columns, "url": address(publisher, table)}
        return _read(stage, reader, meters, order)


def _read(stage: Stage, reader: Actor, meters: dict[str, Any], order: dict[str, Any]) -> Run:
    run = reader.run(meters, order)
    assert run.events == stage.events  # noqa: S101 - else it would be no measure
    return run


def _libpq(stage: Stage) -> str:
    """Return the database's address as libpq wants it."""
    url = make_url(stage.postgresql)
    given = {
        "host": url.query.get("host") or url.host,
        "port": url.query.get("port") or url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
    }
    return " ".join(f"{name}={value}" for name, value in given.items() if value)
