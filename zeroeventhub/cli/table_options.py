"""The options that name a table and describe its feed, and the feed that they make."""

import os
from functools import partial
from typing import Any

import click
from sqlalchemy import (
    JSON,
    URL,
    Engine,
    MetaData,
    QueuePool,
    Table,
    create_engine,
    func,
    inspect,
    literal_column,
    make_url,
    select,
    type_coerce,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, NoSuchTableError

from zeroeventhub.cli.options import CONFIG, age_option, config_option, option_group
from zeroeventhub.databases import database_of, driver_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log import EventLog
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.archive_feed import ArchiveFeed
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.deletion import ROWS
from zeroeventhub.publisher.mapping import resolve
from zeroeventhub.publisher.ordering import ORDERINGS
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.restoring import SKIPPED, WORKERS
from zeroeventhub.publisher.retention import Compaction, Retention
from zeroeventhub.publisher.sealing import SEGMENT_EVENTS


def open_database(url: str, *, must_exist: bool = False, option: str = "database") -> Engine:
    """Make the engine of a database, with the drivers that come with the command line.

    The feeds of one database share an engine, so that idle ones keep no connections of their own.
    It is disposed of when the command ends. With `must_exist`, an SQLite file that does not exist
    is refused, instead of created.
    """
    context = click.get_current_context(silent=True)
    engines: dict[URL, Engine] = {} if context is None else context.meta.setdefault(__name__, {})
    try:
        parsed = make_url(from_environment(url, option))
        parsed = parsed.set(drivername=driver_of(parsed.drivername))
        if (known := engines.get(parsed)) is not None:
            return known
        engine = create_engine(parsed)
        if isinstance(engine.pool, QueuePool):  # each feed bounds how many connections it uses
            engine = create_engine(parsed, max_overflow=-1)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "This is not a database URL, such as sqlite:///events.db "
            "or postgresql://user:password@host/database."
        ) from None
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"There is no driver for this database: {error}") from None
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{engine.url.drivername} is a driver for asynchronous code: begin the URL with "
            f"{engine.url.get_backend_name()}:// instead."
        )
    if must_exist and (file := database_of(engine).missing_file(engine)):
        raise ConfigurationError(f"There is no database file {file}.")
    if context is not None:
        context.call_on_close(engine.dispose)
    engines[parsed] = engine
    return engine


def from_environment(text: str, option: str) -> str:
    """Return a text, or the environment variable that it names, as in env:SHOP_DATABASE."""
    name = text.removeprefix("env:")
    if name == text:
        return text
    if not (value := os.environ.get(name)):
        raise ConfigurationError(f"The environment variable {name!r} is not set.", option)
    return value


def reflect(engine: Engine, name: str) -> Table:
    """Read a table's columns from its database."""
    schema, _, table = name.rpartition(".")
    try:
        return Table(table, MetaData(), schema=schema or None, autoload_with=engine)
    except NoSuchTableError:
        raise ConfigurationError(f"There is no table {name!r} in this database.", "table") from None


def log_named(name: str, **options: Any) -> EventLog:
    """Return the log of a name, whether its table exists or not."""
    schema, _, table = name.rpartition(".")
    return EventLog(MetaData(), table, schema=schema or None, **options)


def has_log(engine: Engine, log: EventLog) -> bool:
    """Return whether the table of a log exists; refuse another table of its name."""
    if not inspect(engine).has_table(log.table.name, log.table.schema):
        return False
    there = reflect(engine, log.table.fullname).c
    if missing := [one.name for one in log.table.c if one.name not in there]:
        raise ConfigurationError(
            f"Table {log.table.fullname!r} is not a log, as it has no column "
            f"{', '.join(missing)}: choose another name for the log.",
            "table",
        )
    return True


def _attributes(_context: click.Context, _option: Any, texts: tuple[str, ...]) -> dict[str, str]:
    """Read the columns of attributes, as a callback of an option."""
    pairs = [text.partition("=") for text in texts]
    if not all(name and column for name, _, column in pairs):
        raise ConfigurationError("An attribute is written as NAME=COL, such as subject=customer.")
    return {name: column for name, _, column in pairs}


def columns(names: str | list[str]) -> list[str]:
    """Read names of columns, as the type of an option; a file has a list of them."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


row_options = option_group(
    click.option("--table", metavar="NAME", help="The table; schema.table if needed."),
    click.option(
        "--position",
        metavar="COL",
        help="The column that orders events; by default the primary key.",
    ),
    click.option(
        "--partition", metavar="COL", help="The column of an event's partition, counted from 0."
    ),
    click.option("--time", metavar="COL", help="The column of an event's time."),
    click.option(
        "--ordering", type=click.Choice(ORDERINGS), help="The strategy that orders the events."
    ),
    click.option(
        "--append-only",
        is_flag=True,
        help="Promise that no row is ever deleted: for SQLite without AUTOINCREMENT.",
    ),
    click.option(
        "--partitions",
        type=click.IntRange(1),
        metavar="N",
        help="The number of partitions; by default the feed counts those in the table.",
    ),
)
"""The options that name a table of events and its order."""

table_options = option_group(
    click.argument("feed", required=False, expose_value=False),
    config_option,
    click.option(
        "--database",
        metavar="URL",
        help="The database of the table; env:NAME takes it from an environment variable.",
    ),
    row_options,
)
"""The options that name a table in its database, or a feed of the file."""

event_options = option_group(
    click.option("--data", metavar="COL", help="The column of an event's data, as JSON."),
    click.option(
        "--columns", type=columns, metavar="a,b,c", help="The columns that make an event's data."
    ),
    click.option("--type", metavar="COL", help="The column of an event's type."),
    click.option("--key", metavar="COL", help="The column of an event's key."),
    click.option(
        "--version",
        metavar="COL",
        help="The column of an event's version, its number within its key.",
    ),
    click.option("--id", metavar="COL", help="The column of an event's id."),
    click.option(
        "--attribute",
        "attributes",
        multiple=True,
        callback=_attributes,
        metavar="NAME=COL",
        help="The column of an attribute of the envelope, such as subject=customer; repeatable.",
    ),
    click.option("--cloudevents", is_flag=True, help="Wrap events in a CloudEvents envelope."),
    click.option(
        "--mutable",
        is_flag=True,
        help="Rows may be changed or deleted, so the feed does not check cursors.",
    ),
    click.option(
        "--archive", metavar="PLACE", help="The archive of old events: a folder, or a URL."
    ),
    click.option(
        "--erasable",
        is_flag=True,
        help="Events may be erased from the archive, so caches may not keep pages for ever.",
    ),
    click.option(
        "--shared",
        metavar="HOW",
        help='How readers reach files of the archive: "signed" URLs, or the prefix of public URLs.',
    ),
    click.option("--cache", metavar="FOLDER", help="The folder that caches parts of the archive."),
    click.option(
        "--compacted",
        is_flag=True,
        help="The table keeps only the last event of each key, by `zeroeventhub compact`.",
    ),
    click.option(
        "--tombstone",
        metavar="SQL",
        help="The SQL condition that is true for events that delete their key (tombstones); the "
        "database runs it unchanged, so give only a condition that you trust.",
    ),
    age_option(
        "--keep-tombstones", help="The age at which `compact` deletes tombstones; by default 7d."
    ),
    click.option(
        "--cursor-secret",
        metavar="TEXT",
        help="The secret for the digests in cursors, needed if some readers may see only a part of "
        "the feed; env:NAME takes it from an environment variable.",
    ),
)
"""The options of what makes an event of a row, and where old events are."""

publish_options = option_group(table_options, event_options)
"""The options that name a table and describe its feed."""

LOG_COLUMNS = {name: name for name in ("partition", "time", "data", "type", "key", "version", "id")}
"""The columns of a log, by the options that name them for other tables."""

OF_LOG = f"{__name__}.log"
"""Where the context of a command says that the table is that of a log."""

mount_options = option_group(
    click.option("--path", default="/events", help="Serve the feed at this path."),
    click.option("--http-feed", is_flag=True, help="Also answer clients of HTTP Feeds."),
    click.option("--server-sent-events", is_flag=True, help="Also stream server-sent events."),
    click.option("--arrow", is_flag=True, help="Send pages as Arrow to clients that prefer Arrow."),
    click.option(
        "--compressed", is_flag=True, help="Compress pages for clients that accept zstd or gzip."
    ),
)
_older_than_option = age_option(
    "--older-than", help="Select only events older than this, such as 30d or 12h."
)

trim_options = option_group(
    _older_than_option,
    age_option(
        "--silence",
        default="7d",
        help="Wait no longer for a registered consumer that has been silent for this time.",
    ),
    click.option(
        "--rows",
        type=click.IntRange(1, 100_000),
        default=ROWS,
        help="The largest number of events that a transaction deletes.",
    ),
)
compact_options = _older_than_option
seal_options = option_group(
    _older_than_option,
    click.option(
        "--segment-events",
        type=click.IntRange(1),
        default=SEGMENT_EVENTS,
        help="The largest number of events in a segment.",
    ),
    click.option(
        "--least",
        type=click.IntRange(1),
        default=1,
        help="The smallest number of events to write a segment for.",
    ),
)

restore_options = option_group(
    age_option(
        "--newer-than",
        help="Restore only segments with events younger than this; older ones stay in the archive.",
    ),
    click.option(
        "--skipped",
        type=click.IntRange(1),
        default=SKIPPED,
        help="The number of positions to leave free for events that were lost.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1),
        default=WORKERS,
        help="The number of connections that write at once.",
    ),
)


def open_table(database: str | None, table: str | None, **options: Any) -> tuple[Engine, TableFeed]:
    """Open a database and make the feed of one of its tables, from `table_options`."""
    engine, events = _open(database, table)
    return engine, TableFeed(events, **options)


def _open(database: str | None, table: str | None) -> tuple[Engine, Table]:
    if not database or not table:
        raise ConfigurationError(f"Name a feed of {CONFIG}, or give --database and --table.")
    engine = open_database(database, must_exist=True)
    return engine, reflect(engine, table)


def open_feed(*, log: bool = False, must_have_mark: bool = False, **given: Any) -> BoundFeed:
    """Open a database and return the feed of one of its tables, from `publish_options`.

    The table of a feed that is compacted or has an archive must have a low-water mark; with
    `must_have_mark`, that of any feed. With `log`, that of a log is made unless it exists.
    """
    context = click.get_current_context(silent=True)
    is_log = log or (context is not None and OF_LOG in context.meta)
    if given["data"] and given["columns"]:
        raise ConfigurationError("An event's data is --data or --columns, not both.", "data")
    if given["partitions"] and not given["partition"] and not is_log:
        raise ConfigurationError(
            "--partitions needs --partition, the column to read it from.", "partitions"
        )
    archive, compaction = archive_of(given), _compaction(given)
    if given["cursor_secret"]:
        given["cursor_secret"] = from_environment(given["cursor_secret"], "cursor_secret")
    if is_log:
        engine, opened = _open_log(given, makes=log)
        events = opened.table
        feed = partial(opened.feed, compaction=compaction, **given)
    else:
        engine, events = _open(given.pop("database"), name := given.pop("table"))
        snapshots = _snapshots(engine, name)
        if snapshots is not None and not given["version"]:
            raise ConfigurationError(
                f"The keys of table {name!r} have snapshots: give --key and --version, so that "
                "nothing is deleted that they do not cover."
            )
        data = _data(events, given.pop("data"), given.pop("columns"))
        given |= {"data": data, "snapshots": snapshots, "compaction": compaction}
        feed = partial(TableFeed, events, **given)
    retention, progress = Retention(schema=events.schema), Progress(schema=events.schema)
    kept: dict[str, Any] = {}
    with engine.connect() as connection:
        if progress.exists(connection):
            kept["progress"] = progress
        with_mark = feed(retention=retention, archive=archive)
        if must_have_mark or compaction or archive or with_mark.has_mark(connection):
            kept |= {"retention": retention, "archive": archive}
    return feed(**kept).bind(engine)


def _snapshots(engine: Engine, name: str) -> Table | None:
    """Return the table of the snapshots of a log's keys; None without one."""
    schema, _, table = name.rpartition(".")
    # MariaDB would refuse to describe a table on which this account has no rights.
    if f"{table}_snapshots" not in inspect(engine).get_table_names(schema or None):
        return None
    found = reflect(engine, f"{name}_snapshots")
    return found if [*found.c.keys()] == ["key", "version", "data"] else None


def _open_log(given: dict[str, Any], *, makes: bool) -> tuple[Engine, EventLog]:
    """Open a log, whose table is made unless it exists; take the options that are not of its feed.

    Only the server makes tables, and lets others append.
    """
    database, name, ordering = given.pop("database"), given.pop("table"), given.pop("ordering")
    partitions = given.pop("partitions") or 1
    foreign = {option: given.pop(option) for option in ("position", "columns", *LOG_COLUMNS)}
    if any(column and column != LOG_COLUMNS.get(option) for option, column in foreign.items()):
        raise ConfigurationError("A log has columns of its own: leave out the options of columns.")
    engine = open_database(database or f"sqlite:///{name}.db", must_exist=not makes)
    options = {"partitions": partitions, "ordering": ordering, "append": makes}
    log = log_named(name, snapshots=_snapshots(engine, name) is not None, **options)
    if not has_log(engine, log) and not makes:
        raise ConfigurationError(f"There is no table {name!r} in this database.", "table")
    if makes:
        log.table.metadata.create_all(engine)
    with engine.connect() as connection:
        highest = connection.scalar(select(func.max(log.table.c.partition))) or 0
    if highest >= partitions:
        raise ConfigurationError(
            f"The log has events in partition {highest}: give --partitions as when it was made."
        )
    return engine, log


def open_archive(*, cursor_secret: str | None, **given: Any) -> ArchiveFeed:
    """Return the feed of an archive alone, from `publish_options` without a table."""
    archive = archive_of(given)
    if others := [name for name, value in given.items() if value]:
        raise ConfigurationError(
            f"--{others[0].replace('_', '-')} describes a table: give --database and --table, or "
            "only options of the archive."
        )
    secret = None if cursor_secret is None else from_environment(cursor_secret, "cursor_secret")
    return ArchiveFeed(archive, cursor_secret=secret)


def archive_of(given: dict[str, Any]) -> Any:
    """Take the options of an archive; return the archive, or None."""
    place = given.pop("archive")
    options = {name: given.pop(name) for name in ("cache", "erasable", "shared")}
    if place:
        from zeroeventhub.archive import Archive  # noqa: PLC0415 - of another extra

        return Archive(place, **options)
    for name, value in options.items():
        if value:
            raise ConfigurationError(
                f"--{name} is an option of an archive: give --archive too.", name
            )
    return None


def _compaction(given: dict[str, Any]) -> Compaction | None:
    """Take the options of a compacted feed; return its compaction, or None."""
    compacted, tombstone = given.pop("compacted"), given.pop("tombstone")
    age = given.pop("keep_tombstones")
    if compacted:
        keep = {} if age is None else {"keep_tombstones": age}
        return Compaction(tombstone=tombstone and literal_column(f"({tombstone})"), **keep)
    for name, value in (("tombstone", tombstone), ("keep_tombstones", age)):
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigurationError(
                f"{option} needs a compacted feed: give --compacted too.", name
            )
    return None


def _data(events: Table, data: str | None, columns: list[str] | None) -> Any:
    if columns:
        return [resolve(events, each, "columns") for each in columns]
    if data is None:
        return None
    column = resolve(events, data, "data")
    # The column holds JSON, whatever its declared type is. A column of jsonb keeps its type, as
    # PostgreSQL would parse every document again to convert it to json.
    return column if isinstance(column.type, JSON) else type_coerce(column, JSON).label(data)
