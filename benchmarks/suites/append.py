"""Append to a log: one event a commit, in batches, and to keys that many contend for."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from threading import Thread
from time import perf_counter

from harness.databases import MARIADB_VARIABLE, new_database
from sqlalchemy import Connection, Engine, MetaData, create_engine, func, select

from benchmarks.measuring import Run, Way, figures, rounds
from benchmarks.result import Result, Row
from benchmarks.stage import Stage
from zeroeventhub import EventLog, NewEvent
from zeroeventhub.errors import Conflict, StoreUnavailable

BATCH = 1_000
HANDLERS = 16
SINGLES = 20
"""How many times as many events come in batches as one by one."""

Append = Callable[[Connection, EventLog, Sequence[NewEvent]], object]

TEXT = f"""\
Events of about 100 bytes of JSON are appended to a log of eight partitions, by one connection: one
in each transaction, or {BATCH:,}. Ids are random, keys are 1,000. The bare ways write the same rows
into the same table, made ready before: an INSERT by the driver for one row, and for {BATCH:,} COPY
by psycopg, or the driver's executemany. `append` begins with NewEvent objects, encodes, hashes, and
leaves out what is there already; in “all again” that is everything. “By a temporary table” is the
other way to do so on PostgreSQL, of rows made ready: COPY into one, and INSERT … ON CONFLICT DO
NOTHING from there.

Handlers are {HANDLERS} threads of one process. Each loads the key, appends one event at the version
that it has read, and tries again until it is let in; there are as many keys as it takes that each
has ten events, or 16, or one, with a tenth of the events. Each event is counted once, when it is
in; all versions are checked after the run."""


def append(stage: Stage) -> Result:
    """Append to logs on each database that there is."""
    databases = {"PostgreSQL": stage.postgresql, "SQLite": stage.sqlite}
    missing = ""
    if MARIADB_VARIABLE in os.environ:
        server = os.environ[MARIADB_VARIABLE]
        databases["MariaDB"] = stage.stack.enter_context(new_database(server))
    else:
        missing = f", without MariaDB, for {MARIADB_VARIABLE} names no server"
    rows = [row for name, url in databases.items() for row in _rows(stage, name, url)]
    size = (
        f"{stage.events:,} events a run in batches, {stage.events // SINGLES:,} one by one and by "
    )
    size += f"handlers, {stage.count} rounds{missing}"
    return Result("append", "Appending to a log", TEXT, "of the bare way", rows, size=size)


def _rows(stage: Stage, database: str, url: str) -> Iterator[Row]:
    """Measure one database."""
    events = stage.events
    bare = "COPY" if database == "PostgreSQL" else "executemany"
    single, many = f"{database}, INSERT, one a commit", f"{database}, {bare}, {BATCH:,} a commit"
    few, batches = _new(events // SINGLES), _new(events)
    staged: dict[str, Way] = {
        f"{database}, by a temporary table, {BATCH:,} a commit": partial(
            _appended, url, batches, BATCH, _staged
        )
    }
    ways: dict[str, Way] = {
        single: partial(_appended, url, few, 1, _loaded),
        f"{database}, append, one a commit": partial(_appended, url, few, 1, _append),
        many: partial(_appended, url, batches, BATCH, _loaded),
        f"{database}, append, {BATCH:,} a commit": partial(_appended, url, batches, BATCH, _append),
        f"{database}, append, all again": partial(
            _appended, url, batches, BATCH, _append, again=True
        ),
    }
    contended = {
        f"{database}, {HANDLERS} handlers, {name}": partial(handled, url, number, keys)
        for name, number, keys in (
            ("ten events a key", len(few), len(few) // 10),
            ("16 keys", len(few), 16),
            ("1 key", len(few) // 10, 1),
        )
    }
    if database == "PostgreSQL":
        ways |= staged
    runs = rounds(ways | contended, stage.count, stage.tell)
    for name, found in runs.items():
        way = runs[single if "one" in name else many]
        of = {} if name in contended else {"of the bare way": way}
        conflicts = [f"{run.more['conflicts']:,}" for run in found if run.more]
        note = f"conflicts: {', '.join(conflicts)}" if conflicts else ""
        yield Row(name, figures(found, of), note, ours="append" in name or "handlers" in name)


def _new(number: int) -> list[NewEvent]:
    """Make events that are not appended yet."""
    return [
        NewEvent("OrderPlaced", {"n": n, "amount": 12.5, "note": "x" * 60}, key=f"k{n % 1000}")
        for n in range(number)
    ]


@contextmanager
def _log(url: str) -> Iterator[tuple[EventLog, Engine]]:
    """Make an empty log."""
    patience = {"timeout": 600} if url.startswith("sqlite") else {}
    engine, metadata = create_engine(url, pool_size=HANDLERS, connect_args=patience), MetaData()
    log = EventLog(metadata, "append_log", partitions=8)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    yield log, engine
    engine.dispose()


def _appended(
    url: str, events: Sequence[NewEvent], size: int, way: Append, *, again: bool = False
) -> Run:
    """Append all events, so many in a transaction."""
    with _log(url) as (log, engine):
        parts = [events[first : first + size] for first in range(0, len(events), size)]
        ready = parts if way is _append else [_ready(part) for part in parts]
        for _ in range(1 + again):
            began = perf_counter()
            for part in ready:
                with engine.begin() as connection:
                    way(connection, log, part)
            seconds = perf_counter() - began
        _expect(engine, log, len(events))
    return Run(len(events), seconds)


def _append(connection: Connection, log: EventLog, events: Sequence[NewEvent]) -> None:
    log.append(connection, events)


def _ready(events: Sequence[NewEvent]) -> list[dict[str, object]]:
    """Make the rows of events."""
    names = ("partition", "id", "key", "type", "data")
    values = ((0, new.id, new.key, new.type, new.text) for new in events)
    return [dict(zip(names, row, strict=True)) for row in values]


def _loaded(connection: Connection, log: EventLog, rows: Sequence[dict[str, object]]) -> None:
    """Load rows by the driver alone."""
    quoted = connection.dialect.identifier_preparer
    names = ", ".join(quoted.quote(name) for name in rows[0])
    values = [tuple(row.values()) for row in rows]
    with closing(connection.connection.cursor()) as cursor:
        if connection.dialect.name == "postgresql" and len(rows) > 1:
            with cursor.copy(f"COPY {log.table.name} ({names}) FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
            return
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        marks = ", ".join([mark] * len(rows[0]))
        cursor.executemany(f"INSERT INTO {log.table.name} ({names}) VALUES ({marks})", values)  # noqa: S608


def _staged(connection: Connection, log: EventLog, rows: Sequence[dict[str, object]]) -> None:
    """Load rows into a temporary table, and from there those that are not there yet."""
    names, name = ", ".join(rows[0]), log.table.name
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE stage ON COMMIT DROP AS SELECT {names} FROM {name} LIMIT 0"  # noqa: S608
    )
    with (
        closing(connection.connection.cursor()) as cursor,
        cursor.copy(f"COPY stage ({names}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(tuple(row.values()))
    connection.exec_driver_sql(
        f"INSERT INTO {name} ({names}) SELECT {names} FROM stage ON CONFLICT DO NOTHING"  # noqa: S608
    )


def handled(url: str, events: int, keys: int, *, remembers: bool = False) -> Run:
    """Let handlers append to keys, each event at the version that was read.

    Args:
        url: of a database.
        events: how many, all keys together.
        keys: how many.
        remembers: whether a handler keeps what it has read of a key, and reads what has come since.
    """
    each = events // keys
    with _log(url) as (log, engine):
        left, conflicts = count(), count()

        def handle() -> None:
            known: dict[str, int] = {}
            while (number := next(left)) < each * keys:
                key = f"key {number % keys}"
                while (version := _version(engine, log, key, known.get(key, 0))) is None:
                    next(conflicts)
                if remembers:
                    known[key] = version

        threads = [Thread(target=handle) for _ in range(HANDLERS)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = perf_counter() - began
        _expect(engine, log, each * keys)
        with engine.connect() as connection:
            columns = log.table.c
            tops = select(func.count(), func.max(columns.version)).group_by(columns.key)
            found = {tuple(row) for row in connection.execute(tops)}
    assert found == {(each, each)}  # noqa: S101 - else it would be no measure
    return Run(each * keys, seconds, more={"conflicts": next(conflicts)})


def _version(engine: Engine, log: EventLog, key: str, known: int) -> int | None:
    """Load what has come to a key, and append to it; return its version, None if not let in."""
    try:
        with engine.begin() as connection:
            kept = log.read_key(connection, key, after_version=known)
            version = known + len(kept)
            new = NewEvent("Counted", {"n": version})
            return log.append_to(connection, key, [new], expected_version=version)
    except (Conflict, StoreUnavailable):
        return None


def _expect(engine: Engine, log: EventLog, events: int) -> None:
    with engine.connect() as connection:
        found = connection.scalar(select(func.count()).select_from(log.table))
    assert found == events  # noqa: S101 - else it would be no measure
