"""`zeroeventhub check`, `horizon`, `ddl`, `trim`, `progress`, `compact`, `seal` and `erase`."""

import json
import logging
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import httpx
import pytest
from harness import guides
from harness.appended import made
from harness.command_line import invoke, output_of, started
from harness.published import install
from harness.shop import fill, metadata, orders, place, write
from harness.statements import add, count_of, execute
from harness.trimmed import numbers, ten_days
from sqlalchemy import Column, Index, Integer, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, NewEvent, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Trimmed
from zeroeventhub.publisher import checks
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

block = partial(guides.block, "check.md")


def run(engine, statement):
    """Run a statement as an operator does."""
    execute(engine.execution_options(isolation_level="AUTOCOMMIT"), statement)


def run_as_client(engine, script):
    """Run a script as the client that comes with a database does."""
    raw = engine.raw_connection()
    with closing(raw), closing(raw.cursor()) as cursor:
        if engine.dialect.name == "postgresql":
            cursor.execute(script)
        elif engine.dialect.name == "sqlite":
            cursor.executescript(script)
        else:
            delimiter, statement = ";", ""
            for line in script.splitlines(keepends=True):
                if line.startswith("DELIMITER "):
                    delimiter = line.split()[1]
                    continue
                statement += line
                if line.endswith(f"{delimiter}\n"):
                    cursor.execute(statement.rstrip().removesuffix(delimiter))
                    statement = ""
            assert statement == ""
        raw.commit()


def unindexed(engine):
    """Make the table of orders without its index; return a feed of two partitions over it."""
    metadata.create_all(engine)
    if engine.dialect.name == "sqlite":
        run(engine, "PRAGMA journal_mode = WAL")
    run(engine, "DROP INDEX orders_by_part" + " ON orders" * (engine.dialect.name == "mariadb"))
    return TableFeed(orders, data="data", partition="part", partitions=2)


def levels(feed):
    """The levels of a feed's findings that are not ok, by subject."""
    return {found.subject: found.level for found in feed.check() if found.level != "ok"}


def test_guide_shows_what_the_command_prints(empty_folder):
    """The output in the guide is that of its command."""
    with closing(sqlite3.connect(empty_folder / "shop.db")) as connection:
        connection.executescript(block("table"))
    command, shown = block("check").split("\n", 1)
    found = invoke(*command.split()[2:])
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == shown.replace("3.40.1", sqlite3.sqlite_version)


def test_statement_that_is_printed_mends_it(engine, database_url):
    """A warning has the SQL of the missing index; once that has run, the warning is gone."""
    unindexed(engine)
    write(engine, 10, partitions=2)
    options = ["check", "--database", database_url, "--table", "orders", "--data", "data"]
    options += ["--partition", "part", "--time", "placed", "--id", "customer", "--json"]
    found = invoke(*options)
    assert (found.exit_code, found.stderr) == (0, "")
    findings = json.loads(found.stdout)
    warnings = [each for each in findings if each["level"] == "warning"]
    assert len(warnings) == 3
    assert {each["subject"] for each in warnings} == {"index"}
    assert invoke(*options, "--strict").exit_code == 1
    for warning in warnings:
        assert ("CONCURRENTLY" in warning["statement"]) == (engine.dialect.name == "postgresql")
        run(engine, warning["statement"])
    found = invoke(*options, "--strict")
    assert {each["level"] for each in json.loads(found.stdout)} == {"ok"}
    assert found.exit_code == 0


def test_what_keeps_a_feed_from_answering_is_an_error(sqlite, sqlite_url):
    """An error is a line with its level, without colours in a file, and the exit code is 1."""
    fill(sqlite, 10, partitions=3)
    options = ["check", "--database", sqlite_url, "--table", "orders", "--partition", "part"]
    found = invoke(*options, "--data", "data", "--partitions", 2)
    assert found.exit_code == 1
    assert re.search(r"^error.*There is an event in partition 2", found.stdout, re.MULTILINE)
    assert "\x1b" not in found.stdout


def test_feed_is_checked_from_code(engine):
    """The check of a feed reports what is missing, and raises nothing."""
    feed = unindexed(engine).bind(engine)
    assert levels(feed) == {"index": "warning"}
    run(engine, "ALTER TABLE orders RENAME COLUMN data TO other")
    assert levels(feed) == {"columns": "error"}
    orders.drop(engine)
    assert levels(feed) == {"columns": "error"}
    with pytest.raises(ConfigurationError, match="There is no table"):
        feed.read(0, FIRST, 1)


def test_script_of_captures_is_whole(engine, database_url):
    """The script makes the log and what writes to it, and the other one removes the latter."""
    execute(engine, "CREATE TABLE person (id INTEGER NOT NULL PRIMARY KEY)")
    ddl = ["ddl", "--database", database_url, "--capture", "person", "--into", "seen"]
    for number in range(2):  # again with a log that is there
        execute(engine, f"INSERT INTO person VALUES ({number})")
        run_as_client(engine, invoke(*ddl).stdout)
    execute(engine, "DELETE FROM person")
    run_as_client(engine, invoke(*ddl, "--uninstall").stdout)
    execute(engine, "INSERT INTO person VALUES (5)")
    with engine.connect() as connection:
        types = connection.scalars(text("SELECT type FROM seen ORDER BY position")).all()
    read, delete = ["person.read"], ["person.delete"]
    assert types == [*read, "person.insert", *read * 2, *delete * 2]
    found = invoke("ddl", "--capture", "person")
    assert (found.exit_code, "by --database" in found.stderr) == (2, True)
    execute(engine, "CREATE TABLE pet (id INTEGER NOT NULL PRIMARY KEY)")
    found = invoke(*ddl[:-1], "pet")
    assert (found.exit_code, "Table 'pet' is not a log, " in found.stderr) == (2, True)


def test_index_of_some_rows_is_none(postgresql):
    """An index that has only some of the rows, or another order, serves no page."""
    feed = unindexed(postgresql).bind(postgresql)
    part, id_ = orders.c.part, orders.c.id
    some = Index("some", part, id_, postgresql_where=id_ > 5)
    for index in (some, Index("turned", id_, part), Index("mixed", part, id_.desc())):
        index.create(postgresql)
        orders.indexes.discard(index)
        assert levels(feed) == {"index": "warning"}


def test_log_hears_of_a_missing_index_once(sqlite, caplog, monkeypatch):
    """A feed over a large table logs the missing index once, and continues."""
    monkeypatch.setattr(checks, "CHECK_INTERVAL", 0.0)
    source = unindexed(sqlite)
    for more, warnings in ((5_000, 0), (1, 1)):
        write(sqlite, more, partitions=2)
        feed = source.bind(sqlite)
        for _ in range(3):
            assert len(feed.read(0, FIRST, 10).events) == 10
        records = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert ["CREATE INDEX" in one.getMessage() for one in records] == [True] * warnings


GATED = ("--table", "orders", "--position", "id", "--ordering", "gated")


def test_ddl_prints_a_gate_that_can_be_run(postgresql, postgresql_url):
    """What ddl prints installs the gate that serve needs, and --uninstall removes it."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, *GATED)
    refused = invoke("serve", *table, "--port", 0)
    assert (refused.exit_code, "zeroeventhub ddl" in refused.stderr) == (2, True)
    run_as_client(postgresql, invoke("ddl", *table).stdout)
    assert invoke("horizon", *table).stdout == "horizon 0, last number drawn 0\n"
    run_as_client(postgresql, invoke("ddl", *table, "--uninstall").stdout)
    assert invoke("horizon", *table).exit_code == 2
    assert "needs nothing" in invoke("ddl", *table[:-2]).stdout


@pytest.mark.parametrize("ordering", ["observed", "gated"])
def test_horizon_names_the_writer_that_holds_it_back(postgresql, postgresql_url, ordering):
    """Horizon shows an open writer, its age, and how long the horizon is held back."""
    metadata.create_all(postgresql)
    table = ("--database", postgresql_url, "--table", "orders", "--ordering", ordering)
    install(TableFeed(orders, ordering=ordering), postgresql)
    with postgresql.connect() as slow:
        place(slow, 1)
        pid = slow.scalar(text("SELECT pg_backend_pid()"))
        shown = invoke("horizon", *table).stdout
        assert f"pid {pid} of " in shown
        assert shown.startswith("horizon not known yet") == (ordering == "observed")
        assert ", held back for at most " in shown
        document = json.loads(invoke("horizon", *table, "--json").stdout)
        assert [blocker["pid"] for blocker in document["blockers"]] == [pid]
        assert document["age"] == document["blockers"][0]["age"] > 0
        slow.commit()
    document = json.loads(invoke("horizon", *table, "--json").stdout)
    assert document == {"settled": 1, "highest": 1, "age": 0, "blockers": [], "unpublished": None}


TOMBSTONE = ["--tombstone", "kind = 'gone'"]


@pytest.fixture
def trimmed(sqlite):
    """The engine of a publisher of ten orders, one a day, with retention and progress."""
    ten_days(sqlite)
    install(TableFeed(orders, retention=Retention(), progress=Progress()), sqlite)
    return sqlite


@pytest.fixture
def table(sqlite_url):
    """The options of the feed."""
    return ["--database", sqlite_url, "--table", "orders"]


def test_table_is_trimmed(engine, database_url):
    """Trim prints what it would delete, deletes it, and the feed knows its new start."""
    ten_days(engine)
    options = ["--database", database_url, "--table", "orders"]
    for what in ("--retention", "--progress") * 2:
        run_as_client(engine, output_of("ddl", *options, what))
    options += ["--data", "data", "--time", "placed", "--partition", "part"]
    dry = invoke("trim", *options, "--older-than", "4d", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "")
    assert dry.stdout.startswith("7 events would go, positions 1 to 7, of ")
    assert invoke("trim", *options, "--below", 4).exit_code == 1
    done = invoke("trim", *options, "--below", 4, "--yes", "--rows", 2)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "3 events are gone."
    by_age = ["trim", *options, "--older-than", "96h", "--yes"]
    said = json.loads(invoke(*by_age, "--json").stdout)
    assert (said["events"], said["first"], said["until"], said["trimmed"]) == (4, 4, 7, 4)
    assert not [name for name in said if name.startswith("_")]
    assert invoke(*by_age).stdout == "Nothing to trim: the mark is at position 7.\n"
    given = {"partition": "part", "partitions": 2, "retention": Retention()}
    feed = TableFeed(orders, data="data", progress=Progress(), **given).bind(engine)
    with pytest.raises(Trimmed):
        feed.read(0, "1-1", 10)
    assert numbers(feed, 1) == [3, 1]
    feed.register_progress("billing", 1, feed.cursor_after(10))
    assert "retention   What was trimmed is known." in invoke("check", *options).stdout


def test_consumers_are_listed_and_forgotten(trimmed, table):
    """A consumer is listed with its lag, holds trimming back, and is forgotten on request."""
    kept = {"retention": Retention(), "progress": Progress()}
    feed = TableFeed(orders, partition="part", partitions=2, **kept).bind(trimmed)
    options = [*table, "--partition", "part"]
    feed.register_progress("billing", 0, feed.cursor_after(4), principal="ada")
    feed.register_progress("audit", 1, feed.cursor_after(10))
    listed = output_of("progress", "list", *options)
    _, audit, billing = (line.split() for line in listed.splitlines())
    assert (audit[:4], billing[:4]) == (["audit", "-", "1", "0"], ["billing", "ada", "0", "3"])
    held = invoke("trim", *options, "--below", 9, "--dry-run")
    assert "Consumer 'billing' of 'ada' keeps what lies above position 4" in held.stdout
    forgetting = ["progress", "forget", *options, "--consumer", "billing", "--yes"]
    found = invoke(*forgetting, "--principal", "bob", "--json")
    assert json.loads(found.stdout) == {"consumer": "billing", "places": 0}
    assert invoke(*forgetting).stdout == "Registered cursors forgotten: 1\n"
    held = invoke("trim", *options, "--below", 9, "--dry-run", "--silence", "1d")
    assert held.stdout.startswith("8 events would go")


def test_table_is_compacted(trimmed, table):
    """Compact keeps the last event of each key; it refuses a condition that is no SQL."""
    row = {"kind": "placed", "placed": datetime.now(UTC), "data": {}}
    add(trimmed, orders, [row | {"customer": customer} for customer in ("ada", "bob", "ada")])
    compact = ["compact", *table, "--yes", "--time", "placed"]
    assert "give key" in invoke(*compact).stderr
    compact += ["--key", "customer"]
    refused = invoke(*compact, "--tombstone", "nonsense here")
    assert refused.exit_code == 1
    assert re.fullmatch(r"Error: The feed's .*\.\n", refused.stderr)
    found = invoke(*compact, *TOMBSTONE, "--json")
    assert json.loads(found.stdout) == {"deleted": 1}
    assert count_of(trimmed, orders) == 12


def test_log_shrinks_as_far_as_snapshots_cover_it(engine, database_url, tmp_path):
    """Trim and compact leave the versions that no snapshot covers, also of a log of the file."""
    log = made(engine, partitions=1, snapshots=True)
    options = ["--database", database_url, "--table", "orders"]
    run_as_client(engine, invoke("ddl", *options, "--retention").stdout)
    with engine.begin() as connection:
        for key in ("ada", "bob"):
            new = [NewEvent("counted", {"n": number}) for number in range(4)]
            log.append_to(connection, key, new, expected_version=0)
        log.save_snapshot(connection, "ada", 3, [3])
        connection.execute(log.table.update().values(time=datetime(2026, 1, 1, tzinfo=UTC)))
    file = tmp_path / "feeds.toml"
    described = f"[feeds.x]\ndatabase = '{database_url}'\ntable = 'orders'\nlog = true\n"
    file.write_text(f"{described}[feeds.x.trim]\nolder_than = '1d'\n")
    for command in ("trim", "compact"):
        found = invoke(command, *options, "--key", "key", "--yes")
        assert (found.exit_code, "give --key and --version" in found.stderr) == (2, True)
    options += ["--partition", "partition", "--data", "data", "--key", "key"]
    trim = ["trim", *options, "--version", "version", "--below", 100, "--yes", "--json"]
    said = json.loads(invoke(*trim).stdout)
    assert (said["trimmed"], said["until"]) == (3, 3)
    assert "the state of key 'ada'" in said["held_back"][0]
    with engine.begin() as connection:
        log.save_snapshot(connection, "ada", 4, [4])
        log.save_snapshot(connection, "bob", 3, [3])
    found = invoke("compact", "x", "--config", file, "--yes")
    assert (found.stdout, found.stderr) == ("3 events are gone.\n", "")
    found = invoke("trim", "x", "--config", file, "--yes")
    assert (found.stdout.splitlines()[-1], found.stderr) == ("1 events are gone.", "")
    assert count_of(engine, log.table) == 1
    with engine.begin() as connection:
        assert log.append_to(connection, "ada", [NewEvent("counted", {})], expected_version=4) == 5


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb", "mysql"])
def test_rule_of_partitions_is_added_and_dropped(request, scheme):
    """The printed SQL runs for names with a percent sign, and for MariaDB also as mysql://."""
    engine = request.getfixturevalue(scheme.replace("mysql", "mariadb"))
    tables = MetaData()
    key, part = Column("id", Integer, primary_key=True), Column("part%", Integer, nullable=False)
    events = Table("events%", tables, key, part)
    tables.create_all(engine)
    url = engine.url.set(drivername=scheme).render_as_string(hide_password=False)
    ddl = ["ddl", "--database", url, "--table", "events%", "--partition", "part%"]
    ddl += ["--partitions", 2]

    def add_to(number):
        with engine.begin() as connection:
            connection.execute(events.insert().values({"part%": number}))

    run_as_client(engine, output_of(*ddl))
    add_to(1)
    with pytest.raises(DBAPIError):
        add_to(2)
    run_as_client(engine, output_of(*ddl, "--uninstall"))
    add_to(2)


@pytest.mark.usefixtures("trimmed")
def test_table_that_is_compacted_is_served_as_one(table):
    """A feed that is served with --compacted announces it, and no page is immutable."""
    options = [*table, "--time", "placed", "--key", "customer"]
    options += ["--compacted", *TOMBSTONE, "--keep-tombstones", "30d"]
    with started("serve", *options, "--port", 0) as process:
        url = re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
        asked = {"token": 1, "partition": 0, "cursor": "1-0", "pagesizehint": 2}
        page = httpx.get(f"{url}/events", params=asked)
        assert "immutable" not in page.headers["cache-control"]
        assert "compacted" in httpx.get(url).json()["extensions"]
    for command in (["check"], ["trim", "--below", 1, "--dry-run"], ["compact", "--yes"]):
        output_of(*command, *options)


def test_table_is_sealed_trimmed_and_read(table, trimmed, tmp_path):
    """Sealed events may be trimmed, and are still served; events that are not sealed stay."""
    options = [*table, "--data", "data", "--archive", tmp_path / "archive"]
    options += ["--cache", tmp_path / "cache"]
    for command in (["check"], ["trim", "--below", 5, "--dry-run"]):
        assert invoke(*command, *options).exit_code == 0
        assert not (tmp_path / "archive").exists()
    done = invoke("seal", *options, "--segment-events", 3, "--least", 3)
    assert (done.exit_code, done.stderr) == (0, "")
    said = r"9 events in 3 new segments of [0-9,]+ bytes; sealed up to position 9\.\n"
    assert re.fullmatch(said, done.stdout)
    again = invoke("seal", *options, "--least", 2, "--json")
    assert json.loads(again.stdout) == {"segments": 0, "events": 0, "size": 0, "position": 9}
    gone = invoke("trim", *options, "--below", 100, "--yes")
    assert gone.stdout.splitlines()[-1] == "9 events are gone."
    assert numbers(TableFeed(orders, data="data", retention=Retention()).bind(trimmed)) == [1]
    archive = Archive(tmp_path / "archive")
    feed = TableFeed(orders, data="data", retention=Retention(), archive=archive).bind(trimmed)
    assert numbers(feed) == [*range(10, 0, -1)]
    assert invoke("check", *options).exit_code == 0
    (tmp_path / "archive").rename(tmp_path / "unmounted")
    found = invoke("check", *options)
    assert (found.exit_code, "its folder is not mounted" in found.stdout) == (1, True)
    assert not (tmp_path / "archive").exists()


def test_check_asks_for_the_mark_that_the_upkeep_of_a_feed_needs(sqlite, sqlite_url, empty_folder):
    """A feed of the file that is trimmed fails a check for as long as `serve` would refuse it."""
    fill(sqlite, 2)
    described = f"[feeds.x]\ndatabase = '{sqlite_url}'\ntable = 'orders'\n"
    (empty_folder / "zeroeventhub.toml").write_text(f"{described}[feeds.x.trim]\nevery = '1h'\n")
    found = invoke("check", "x")
    assert (found.exit_code, "error    retention" in found.stdout) == (1, True)
    run_as_client(sqlite, output_of("ddl", "x"))
    assert "ok       retention" in output_of("check", "x")


def test_table_is_restored(table, trimmed, tmp_path):
    """A new table gets the events of the archive, tidied, which is served alone as well."""
    options = [*table, "--data", "data", "--time", "placed", "--archive", tmp_path / "archive"]
    assert invoke("seal", *options, "--segment-events", 5).exit_code == 0
    page = TableFeed(orders, data="data", time="placed").bind(trimmed).read(0, FIRST, 20, each=True)
    metadata.drop_all(trimmed)
    execute(trimmed, "DROP TABLE zeroeventhub_retention")
    metadata.create_all(trimmed)
    assert output_of("restore", *options) == (
        "10 events from position 1 to 10 are in the table, 10 of them written now. They are as "
        "they were sealed, and so are the 2 cursors that the archive holds.\n"
    )
    restored = TableFeed(orders, data="data", time="placed").bind(trimmed)
    assert restored.read(0, FIRST, 20, each=True) == page
    assert invoke("restore", *options).exit_code == 2
    assert invoke("trim", *options, "--below", 6, "--yes").exit_code == 0
    found = json.loads(invoke("restore", *options, "--newer-than", "1d", "--json").stdout)
    assert found == {"events": 0, "written": 0, "after": 5, "until": 5, "cursors": 0}
    assert json.loads(invoke("tidy", *options, "--json").stdout) == {"deleted": []}
    assert output_of("tidy", "--archive", "typo") == (
        "There is no archive typo yet, so no file is gone.\n"
    )


def test_events_are_erased(trimmed, table, tmp_path):
    """Erase deletes events from the archive after a yes; without --erasable it refuses."""
    options = [*table, "--data", "data", "--id", "id", "--key", "customer"]
    options += ["--archive", tmp_path / "archive"]
    assert invoke("seal", *options).exit_code == 0
    assert invoke("trim", *options, "--below", 11, "--yes").exit_code == 0
    erase = ["erase", *options, "--erasable"]
    named = ["--event-id", 3, "--event-id", 4, "--event-key", "c1"]
    assert "Aborted" in invoke(*erase, *named).stderr
    assert invoke("erase", *options, *named, "--yes").exit_code == 2
    done = invoke(*erase, *named, "--yes", "--json")
    assert json.loads(done.stdout) == {"erased": 3}
    assert invoke(*erase, *named, "--yes").stdout == "0 events were erased.\n"
    given = {"id": "id", "key": "customer", "archive": Archive(tmp_path / "archive")}
    feed = TableFeed(orders, data="data", retention=Retention(), **given).bind(trimmed)
    assert numbers(feed) == [10, 9, 6, 5, 4, 3, 2]
