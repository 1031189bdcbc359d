"""A table is restored from its archive: consumers lose nothing that was sealed, repeat nothing, and
are told of what was not sealed.
"""

import sys
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from harness.archives import EVENTS, PARTITIONS, Died, opened, pages_from, place, source
from harness.drill import SMALL, drilled
from harness.engines import connected
from harness.killed import opened as opened_store
from harness.killed import restoring, until_killed
from harness.killed import source as log_source
from harness.log import LOG, Log
from harness.ordering_table import OBSERVED, OBSERVED_MARIADB, SINGLE_WRITER
from harness.published import install
from harness.shop import metadata, orders
from harness.statements import add, execute, scalars
from harness.tables import event_table
from harness.trimmed import numbers, position_of, trim
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import mysql

from zeroeventhub import FIRST, LAST, ArchiveFeed, EventLog, NewEvent, Retention, TableFeed
from zeroeventhub.archive import Archive, segment_writer
from zeroeventhub.archive.manifest import SCHEMA
from zeroeventhub.errors import ConfigurationError, Conflict, FeedFailure


def emptied(engine, table=orders):
    """Make a database as new: its tables are there, and have no rows."""
    table.metadata.drop_all(engine)
    execute(engine, "DROP TABLE zeroeventhub_retention")
    table.metadata.create_all(engine)


def rows_of(engine):
    """Return the rows of orders, in order."""
    with engine.connect() as connection:
        return [row._asdict() for row in connection.execute(select(orders).order_by(orders.c.id))]


def pages_of(feed):
    """Read pages of all partitions, with the cursor after each event."""
    return [
        feed.read(partition, cursor, 4, each=True)
        for partition in range(PARTITIONS)
        for cursor in (FIRST, "1-11", "1-23")
    ]


ENVELOPE = {
    "cloudevents": True,
    "headers": {"customer": "customer"},
    "attributes": {"subject": "customer"},
    "id": "id",
}


HEADER = {"cloudevents": True, "headers": {"kind": "kind"}}
COLUMNS = {"data": ["id", "part", "kind", "customer", "placed", "data"], "key": "customer"}


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {"customer": lambda _: None}),
        (COLUMNS, {}),
        (ENVELOPE, {"kind": lambda kind: kind or "orders"}),
        (COLUMNS | {"cloudevents": True}, {}),
        (HEADER, {"customer": lambda _: None}),
    ],
    ids=["json", "columns", "envelope", "columns in an envelope", "type in a header"],
)
def test_restored_table_has_its_rows_and_cursors(engine, tmp_path, options, changes):
    """Rows, pages and cursors are the same, and new events get positions that none had."""
    feed = opened(engine, Archive(tmp_path), **options)
    feed.seal(segment_events=10)
    pages, before = pages_of(feed), rows_of(engine)
    emptied(engine)
    heard = []
    bound = source(Archive(tmp_path), **options).bind(engine, SMALL)
    found = bound.restore(skipped=100, on_progress=lambda *counts: heard.append(counts))
    assert (found.events, found.written, found.after, found.until) == (36, 36, 0, 36)
    assert (found.cursors, heard[-1]) == (4, (36, 36))
    assert rows_of(engine) == [
        row | {name: change(row[name]) for name, change in changes.items()} for row in before
    ]
    assert pages_of(bound) == pages_of(source(None, **options).bind(engine, SMALL)) == pages
    with engine.begin() as connection:
        place(connection, (0, 1, 2))
    assert rows_of(engine)[-1]["id"] == 137
    assert bound.seal().events == 1
    with pytest.raises(ConfigurationError, match="nothing to restore"):
        bound.restore()


def test_instants_of_mariadb_are_the_same_in_sessions_of_all_zones(mariadb, tmp_path):
    """A TIMESTAMP is read, compared, trimmed and restored in UTC, whatever the session's zone."""
    table = event_table("log", at=mysql.TIMESTAMP(fsp=6))
    table.metadata.create_all(mariadb)
    zones = [connected(mariadb.url, init_command=f"SET time_zone = '{zone}'") for zone in ZONES]
    options = {"data": ["at"], "time": "at", "retention": Retention(), "append_only": True}
    with zones[0] as behind, zones[1] as ahead:
        install(TableFeed(table, **options), behind)
        for _ in range(3):
            execute(behind, "INSERT INTO log (at) VALUES (CURRENT_TIMESTAMP(6))")
        feeds = [
            TableFeed(table, **options, archive=Archive(tmp_path)).bind(engine)
            for engine in (behind, ahead)
        ]
        moment = datetime.now(UTC) - timedelta(minutes=1)
        pages = [feed.read(0, feed.cursor_at(moment), 2) for feed in feeds]
        assert pages[0] == pages[1]
        assert moment < datetime.fromisoformat(f"{pages[0].events[0].data['at']}Z")
        feeds[0].seal()
        assert feeds[0].plan_trim(older_than=timedelta(minutes=1)).until == 0
        feeds[0].trim(feeds[0].plan_trim(below=3))
        alone = TableFeed(table, **options).bind(ahead)
        assert len(alone.read(0, pages[0].cursor, 2).events) == 1
        feeds[0].restore()
        assert alone.read(0, FIRST, 2) == pages[0]
        with behind.connect() as connection:
            assert connection.exec_driver_sql("SELECT @@time_zone").scalar() == ZONES[0]


ZONES = ["-05:00", "+05:30"]


def test_feed_is_read_and_written_to_while_it_is_restored(sqlite, tmp_path):
    """Readers get all that was sealed, and then what is new; nothing is sealed or trimmed."""
    opened(sqlite, Archive(tmp_path)).seal(segment_events=10)
    emptied(sqlite)
    seen = []
    bound = source(Archive(tmp_path)).bind(sqlite, SMALL)

    def meanwhile(*_):
        if not seen:
            with sqlite.begin() as connection:
                place(connection, (0, 1, 2))
        other = source(Archive(tmp_path)).bind(sqlite, SMALL)
        seen.append([number for part in range(PARTITIONS) for number in numbers(other, part)])
        if len(seen) == 1:
            with pytest.raises(FeedFailure, match="being restored"):
                other.seal()
            assert other.plan_trim(below=9).first is None

    bound.restore(on_progress=meanwhile)
    meanwhile()
    everything = [*range(0, 36, 3), 0, *range(1, 36, 3), *range(2, 36, 3)]
    assert [*map(sorted, seen)] == [sorted(everything)] * len(seen)
    assert len(seen) > 4


def test_process_that_begins_while_a_table_is_restored_skips_nothing(sqlite, tmp_path):
    """The first pages that a process hands over early have no gap where rows are missing yet."""
    feed = opened(sqlite, Archive(tmp_path))
    cursor = feed.read(0, FIRST, 1).cursor
    feed.seal(segment_events=10)
    emptied(sqlite)
    bound, steps = source(Archive(tmp_path)).bind(sqlite), []

    def meanwhile(*_):
        with sqlite.begin() as connection:
            place(connection, (0, 1, 2), (0, 1, 2))
        early = []
        other = source(Archive(tmp_path)).bind(sqlite)
        pages = other.read_pages(0, cursor, 2, 30, on_page=early.append)
        assert early == pages[: len(early)]
        pages += pages_from(other, 0, pages[-1].cursor, 2, 30 - len(pages))
        steps.append([event.data["n"] for page in pages for event in page.events][:11])

    bound.restore(on_progress=meanwhile)
    assert steps == [[*range(3, 36, 3)]] * len(steps)
    assert len(steps) > 4


def test_end_of_a_feed_is_that_of_its_archive_while_it_is_restored(sqlite, tmp_path):
    """While rows are still missing, readers find the same end of the feed, and pieces up to it."""
    feed = opened(sqlite, Archive(tmp_path))
    end = feed.read(0, LAST, 1).cursor
    feed.seal(segment_events=10)
    emptied(sqlite)
    bound, seen = source(Archive(tmp_path)).bind(sqlite), []

    def meanwhile(*_):
        for other in (bound, source(Archive(tmp_path)).bind(sqlite)):
            seen.append(other.read(0, LAST, 1).cursor)
            seen.append(other.splits(0, 1)[-1])
            seen.append(other.cursor_after(1_000_000))
        seen.append(source(None).bind(sqlite).read(0, LAST, 1).cursor)

    bound.restore(on_progress=meanwhile)
    assert seen == [end] * len(seen)
    assert len(seen) > 20


def test_events_that_are_lost_twice_leave_their_positions(sqlite, tmp_path):
    """If nothing was sealed between two losses, events after the second have positions above."""
    opened(sqlite, Archive(tmp_path)).seal()
    last = []
    for _ in range(2):
        emptied(sqlite)
        source(Archive(tmp_path)).bind(sqlite).restore(skipped=100)
        with sqlite.begin() as connection:
            place(connection, (0, 1, 2))
        last.append(rows_of(sqlite)[-1]["id"])
    assert last == [137, 237]


def test_old_events_stay_in_the_archive(sqlite, tmp_path):
    """With `newer_than`, old segments stay where they are, and the feed has all events."""
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal(segment_events=10)
    pages = pages_of(feed)
    for young, after in (("2026-01-01T00:21:00+00:00", 20), ("2026-02-01T00:00:00+00:00", 36)):
        emptied(sqlite)
        bound = source(Archive(tmp_path)).bind(sqlite, SMALL)
        found = bound.restore(newer_than=datetime.now(UTC) - datetime.fromisoformat(young))
        assert (found.after, found.events) == (after, 36 - after)
        assert len(rows_of(sqlite)) == 36 - after
        assert pages_of(bound) == pages


def test_run_that_goes_on_with_another_leaves_no_rows_below_the_mark(sqlite, tmp_path):
    """What an interrupted restore has begun is completed, though it is too old by now."""
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal(segment_events=10)
    pages = pages_of(feed)
    emptied(sqlite)

    def interrupt(events, _):
        if events > 4:
            raise Died

    bound = source(Archive(tmp_path)).bind(sqlite, SMALL)
    minute = datetime(2026, 1, 1, 0, 11, tzinfo=UTC)
    with pytest.raises(Died):
        bound.restore(newer_than=datetime.now(UTC) - minute, on_progress=interrupt)
    assert rows_of(sqlite)[0]["id"] == 11
    found = bound.restore(newer_than=datetime.now(UTC) - minute - timedelta(minutes=10))
    assert (found.after, found.events) == (10, 26)
    assert pages_of(bound) == pages
    with sqlite.begin() as connection:
        place(connection, (0, 1, 2))
    assert bound.seal().events == 1


def test_trimmed_events_are_given_back(sqlite, tmp_path):
    """A table that was trimmed gets its rows back, beside those that it has."""
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal(segment_events=10)
    before = rows_of(sqlite)
    trim(feed, 26)
    assert feed.restore().written == 25
    given_back = [row | {"customer": None} for row in before[:25]]
    assert rows_of(sqlite) == [*given_back, *before[25:]]


def test_erased_events_stay_erased(sqlite, tmp_path):
    """An erased event has no row, its cursor stays valid, and caches keep no page of then."""
    archive = Archive(tmp_path, erasable=True)
    feed = opened(sqlite, archive, id="id")
    cursor = feed.read(0, FIRST, 5, each=True).cursors[2]
    feed.seal(segment_events=10)
    assert feed.erase(ids=["7"]) == 1
    emptied(sqlite)
    bound = source(Archive(tmp_path), id="id").bind(sqlite, SMALL)
    assert bound.restore().events == 35
    alone = source(None, id="id").bind(sqlite, SMALL)
    assert position_of(cursor) == 7
    assert numbers(alone, cursor=cursor) == numbers(feed, cursor=cursor)
    assert not alone.read(0, FIRST, 1).full


def versioned(engine, archive, **options):
    """Open the feed of a log whose events have versions, in a new database or the same."""
    log = EventLog(MetaData(), "log")
    log.table.metadata.create_all(engine)
    feed = log.feed(archive=archive, retention=Retention(), **options)
    install(feed, engine)
    return log, feed.bind(engine, SMALL)


def test_versions_of_keys_are_restored(engine, tmp_path):
    """A restored log knows the versions of its keys: nobody appends to a key as if it were new."""
    log, feed = versioned(engine, Archive(tmp_path))
    with engine.begin() as connection:
        log.append_to(connection, "a", [NewEvent("x", {}), NewEvent("x", {})], expected_version=0)
        log.append(connection, [NewEvent("x", {}, key="a"), NewEvent("x", {})])
    feed.seal()
    emptied(engine, log.table)
    log, feed = versioned(engine, Archive(tmp_path))
    assert feed.restore(skipped=10).events == 4
    assert scalars(engine, select(log.table.c.version).order_by(log.table.c.position)) == (
        [1, 2, None, None]
    )
    with engine.begin() as connection, pytest.raises(Conflict):
        log.append_to(connection, "a", [NewEvent("x", {})], expected_version=0)
    with engine.begin() as connection:
        assert log.append_to(connection, "a", [NewEvent("x", {})], expected_version=2) == 3
    emptied(engine, log.table)
    _, alone = versioned(engine, Archive(tmp_path), version=None)
    with pytest.raises(ConfigurationError, match="name the column that holds them"):
        alone.restore(skipped=10)


def test_positions_that_the_database_draws_are_restored_without_copy(postgresql, tmp_path):
    """Positions that are GENERATED ALWAYS are restored also where SQLAlchemy names the tables."""
    execute(postgresql, "CREATE SCHEMA other")
    engine = postgresql.execution_options(schema_translate_map={None: "other"})
    log, feed = versioned(engine, Archive(tmp_path))
    with engine.begin() as connection:
        log.append(connection, [NewEvent("x", {}), NewEvent("x", {})])
    feed.seal()
    execute(postgresql, "DROP SCHEMA other CASCADE")
    execute(postgresql, "CREATE SCHEMA other")
    log, feed = versioned(engine, Archive(tmp_path))
    assert feed.restore(skipped=10).events == 2
    assert scalars(engine, select(log.table.c.position)) == [1, 2]


@pytest.mark.parametrize("of", ["id", "version"])
def test_event_that_came_again_before_it_was_restored_is_named(engine, tmp_path, of):
    """A restore that meets an event appended too early says so, and ends once that is gone."""
    _, feed = versioned(engine, Archive(tmp_path))
    log = EventLog(MetaData(), "log")
    with engine.begin() as connection:
        for key in ("a", "b", "last"):
            log.append_to(connection, key, [NewEvent("x", {}, id=key)], expected_version=0)
    feed.seal(segment_events=1)
    emptied(engine, log.table)
    _, feed = versioned(engine, Archive(tmp_path))
    to_append = [NewEvent("x", {}, id="last" if of == "id" else "new")]

    def append(*_):  # the third segment is not begun before this returns
        while to_append:
            with engine.begin() as connection:
                log.append_to(connection, "last", [to_append.pop()], expected_version=0)

    with pytest.raises(FeedFailure, match="appended since this restore began has a unique value"):
        feed.restore(skipped=10, workers=1, on_progress=append)
    execute(engine, log.table.delete().where(log.table.c.position > 10))
    assert feed.restore().events == 3


def test_archives_of_earlier_releases_have_no_versions(sqlite, tmp_path, monkeypatch):
    """A file without versions is read, merged, erased from and restored as all others."""
    earlier = SCHEMA.remove(SCHEMA.get_field_index("version"))
    archive = Archive(tmp_path, erasable=True)
    log, feed = versioned(sqlite, archive)
    with sqlite.begin() as connection:
        log.append_to(
            connection, "a", [NewEvent("x", {}, id=str(n)) for n in range(9)], expected_version=0
        )
    with monkeypatch.context() as before:
        before.setattr(segment_writer, "SCHEMA", earlier)
        feed.seal(segment_events=3)
    assert feed.erase(ids=["1"]) == 1
    with sqlite.begin() as connection:
        log.append_to(connection, "b", [NewEvent("x", {}) for _ in range(3)], expected_version=0)
    feed.seal()
    archive.merge(100, 10**6)
    assert len(archive.look().segments) == 1
    emptied(sqlite, log.table)
    log, feed = versioned(sqlite, Archive(tmp_path, erasable=True))
    assert feed.restore(skipped=10).events == 11
    assert scalars(sqlite, select(log.table.c.version).order_by(log.table.c.position)) == (
        [None] * 8 + [1, 2, 3]
    )
    emptied(sqlite, log.table)
    log, feed = versioned(sqlite, Archive(tmp_path, erasable=True))
    log.table.c.version.nullable = False
    with pytest.raises(ConfigurationError, match="sealed by an earlier release"):
        feed.restore(skipped=10)


def test_tables_that_cannot_be_restored_are_refused(sqlite, tmp_path):
    """Restoring refuses an empty archive, that of another feed, and tables that it cannot fill."""
    with pytest.raises(ConfigurationError, match="no archive"):
        source(None).bind(sqlite).restore()
    feed = opened(sqlite, Archive(tmp_path))
    with pytest.raises(ConfigurationError, match="The archive has no events"):
        feed.restore()
    for options in ({"skipped": 0}, {"workers": 0}):
        with pytest.raises(ConfigurationError, match="above zero"):
            feed.restore(**options)
    feed.seal()
    emptied(sqlite)
    with pytest.raises(ConfigurationError, match="years 1 to 9999"):
        feed.restore(newer_than=timedelta.max)
    with pytest.raises(ConfigurationError, match="belongs to another feed"):
        source(Archive(tmp_path), partitions=4).bind(sqlite).restore()
    with sqlite.begin() as connection:
        place(connection, (0, 1, 2))
    with pytest.raises(ConfigurationError, match="nothing to restore"):
        source(Archive(tmp_path)).bind(sqlite).restore()


def test_orderings_that_give_positions_are_refused(sqlite, tmp_path):
    """With the ordering sequenced, rows would get new positions, also those that were trimmed."""
    feed = source(Archive(tmp_path), ordering="sequenced")
    metadata.create_all(sqlite)
    install(feed, sqlite)
    with sqlite.begin() as connection:
        place(connection, *EVENTS)
    bound = feed.bind(sqlite)
    bound.seal()
    trim(bound, 20)
    with pytest.raises(ConfigurationError, match="rows get new positions"):
        bound.restore()
    with sqlite.begin() as connection:
        feed.uninstall(connection)
    emptied(sqlite)
    install(feed, sqlite)
    with pytest.raises(ConfigurationError, match="rows get new positions"):
        feed.bind(sqlite).restore()


def test_table_behind_a_gate_is_restored_by_another_ordering(postgresql, tmp_path):
    """A table that has its gate already is refused, and not touched, and the error says the way."""
    metadata.create_all(postgresql)
    gated = source(Archive(tmp_path), ordering="gated")
    install(gated, postgresql)
    with postgresql.begin() as connection:
        place(connection, *EVENTS)
    gated.bind(postgresql).seal()
    emptied(postgresql)
    install(gated, postgresql)
    with pytest.raises(ConfigurationError, match="without its triggers, by the ordering observed"):
        gated.bind(postgresql).restore()
    with postgresql.begin() as connection:
        gated.uninstall(connection)
    assert source(Archive(tmp_path)).bind(postgresql).restore().written == 36
    install(gated, postgresql)
    with postgresql.begin() as connection:
        place(connection, (0, 1, 2))
    assert gated.bind(postgresql).seal().events == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([Column("more", Text, nullable=False)], "'more' .* needs a value"),
        ([], "n of events is made by the expression"),
    ],
    ids=["needs more", "expression"],
)
def test_rows_that_cannot_be_made_are_refused(sqlite, tmp_path, columns, said):
    """A table whose rows cannot be made from its events is refused before it is touched."""
    key = Column("id", Integer, primary_key=True)
    table = Table(
        "orders", MetaData(), key, Column("data", Text), *columns, sqlite_autoincrement=True
    )
    table.create(sqlite)
    data = "data" if columns else {"n": func.upper(table.c.data, type_=Text)}
    feed = TableFeed(table, data=data, retention=Retention(), archive=Archive(tmp_path))
    install(feed, sqlite)
    values = {"data": '"x"'} | {column.name: "y" for column in columns}
    execute(sqlite, insert(table).values(values))
    bound = feed.bind(sqlite)
    bound.seal()
    emptied(sqlite, table)
    with pytest.raises(ConfigurationError, match=said):
        bound.restore()
    assert scalars(sqlite, "SELECT seq FROM sqlite_sequence") == []


def test_rows_that_differ_from_the_archive_are_refused(sqlite, tmp_path):
    """A row that the database has changed stops the restore, and the mark stays."""
    feed = opened(sqlite, Archive(tmp_path))
    feed.seal(segment_events=10)
    emptied(sqlite)
    change = "UPDATE orders SET data = '{}' WHERE id = NEW.id"
    execute(
        sqlite,
        f"CREATE TRIGGER changes AFTER INSERT ON orders WHEN NEW.id = 17 BEGIN {change}; END",
    )
    bound = source(Archive(tmp_path)).bind(sqlite, SMALL)
    with pytest.raises(FeedFailure, match="differ from the archive in their data"):
        bound.restore()
    assert numbers(bound) == numbers(ArchiveFeed(Archive(tmp_path)))
    execute(sqlite, "DROP TRIGGER changes")
    assert bound.restore().events == 36
    execute(sqlite, "DELETE FROM orders WHERE id = 17")


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_restore_ends_whatever_isolation_its_host_has_chosen(request, tmp_path, database):
    """Rows are written by several workers at once, also through an engine at SERIALIZABLE."""
    shop = request.getfixturevalue(database)
    log = event_table("log")
    log.metadata.create_all(shop)
    add(shop, log, [{}] * 200)
    options = {"retention": Retention(), "archive": Archive(tmp_path)}
    host = create_engine(shop.url, isolation_level="SERIALIZABLE")
    feed = TableFeed(log, **options).bind(host)
    install(TableFeed(log, **options), shop)
    feed.seal(segment_events=10)
    emptied(shop, log)
    assert feed.restore().written == 200
    host.dispose()


@pytest.mark.parametrize("kind", [Integer(), String(2)])
def test_row_that_does_not_fit_is_an_error_that_says_where(postgresql, tmp_path, kind):
    """A table whose column has another type than what was sealed gets none of its rows."""
    for size in (String(9), kind):
        log = event_table("log", key=size)
        log.metadata.create_all(postgresql)
        options = {"retention": Retention(), "archive": Archive(tmp_path)}
        publisher = TableFeed(log, data=["id"], key="key", **options)
        install(publisher, postgresql)
        bound = publisher.bind(postgresql)
        if size is not kind:
            add(postgresql, log, [{"key": "ada"}] * 3)
            bound.seal()
            emptied(postgresql, log)
            log.drop(postgresql)
    with pytest.raises(FeedFailure, match="0 from position 1 to 3 does not fit into the table: "):
        bound.restore()
    assert scalars(postgresql, "SELECT count(*) FROM log") == [0]


@pytest.mark.test_all
@pytest.mark.parametrize("case", [SINGLE_WRITER, OBSERVED, OBSERVED_MARIADB])
def test_killed_at_points_of_restoring(request, tmp_path, case):
    """Wherever a process is killed, readers have all that was sealed, and the next one finishes."""
    store = tmp_path / "archive"
    log = Log(request.getfixturevalue(case.database), case)
    given = {"retention": Retention(), "id": "id", "archive": opened_store(store)}
    log.publish(**given)
    log.write(*range(30))
    log.feed.seal(segment_events=6)
    url = log.engine.url.render_as_string(hide_password=False)
    at, kills, killed = 1, 0, True
    while killed:
        emptied(log.engine, LOG)
        killed = until_killed(restoring, url, log.ordering, store, at)
        kills += killed
        feed = log_source(log.ordering, opened_store(store)).bind(log.engine)
        with suppress(ConfigurationError):  # it was killed when all was done
            feed.restore()
        assert numbers(feed) == [*range(30)]
        at += 7
    assert kills > 2


@pytest.mark.parametrize(
    ("first", "drills"), [(1, 2), pytest.param(100, 100, marks=pytest.mark.test_all)]
)
def test_drill_loses_and_repeats_nothing(tmp_path, first, drills):
    """After a database was destroyed and restored, readers go on or get an error."""
    paths = map(tmp_path.joinpath, map(str, count()))
    counts = drilled(
        lambda: nullcontext(f"sqlite:///{next(paths)}.db"), range(first, first + drills)
    )
    sys.stdout.write(f"{dict(counts)}\n")
    assert min(counts[name] for name in ("killed", "lost", "informed", "went on")) > 0
