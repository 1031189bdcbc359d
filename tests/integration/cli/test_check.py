"""`zeroeventhub check`, and the check of a feed from code: can this table be published?"""

import json
import logging
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from harness.command_line import invoke
from harness.shop import fill, metadata, orders, write
from sqlalchemy import Index, text

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher import checks

GUIDE = (Path(__file__).parents[3] / "docs" / "check.md").read_text()


def block(name):
    """A block of the guide."""
    return re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)[1]


def execute(engine, statement):
    """Run a statement as an operator does."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))


def create(engine):
    """Make the table of orders, where readers and writers do not wait for each other."""
    metadata.create_all(engine)
    if engine.dialect.name == "sqlite":
        execute(engine, "PRAGMA journal_mode = WAL")


def unindexed(engine):
    """Make the table of orders without its index; return a feed of two partitions over it."""
    create(engine)
    on = " ON orders" if engine.dialect.name == "mariadb" else ""
    execute(engine, f"DROP INDEX orders_by_part{on}")
    return TableFeed(orders, data="data", partition="part", partitions=2)


def levels(feed):
    """The levels of what is wrong with a feed, by their subjects."""
    return {found.subject: found.level for found in feed.check() if found.level != "ok"}


def test_guide_shows_what_the_command_prints(tmp_path, monkeypatch):
    """The example of the guide is what comes of running it."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(block("table"))
    command, shown = block("check").split("\n", 1)
    found = invoke(*command.split()[2:])
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == shown.replace("3.40.1", sqlite3.sqlite_version)


def test_statement_that_is_printed_mends_it(engine, database_url):
    """A warning comes with the SQL of the index that is missing, behind which it is gone."""
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
        execute(engine, warning["statement"])
    found = invoke(*options, "--strict")
    assert {each["level"] for each in json.loads(found.stdout)} == {"ok"}
    assert found.exit_code == 0


def test_what_keeps_a_feed_from_answering_is_an_error(sqlite, sqlite_url):
    """An error is a line with its mark, without colours in a file, and the command ends with 1."""
    fill(sqlite, 10, partitions=3)
    options = ["check", "--database", sqlite_url, "--table", "orders", "--partition", "part"]
    found = invoke(*options, "--data", "data", "--partitions", 2)
    assert found.exit_code == 1
    assert re.search(r"^error.*There is an event in partition 2", found.stdout, re.MULTILINE)
    assert "\x1b" not in found.stdout


def test_feed_is_checked_from_code(engine):
    """A feed finds what it lacks, and raises nothing."""
    feed = unindexed(engine).bind(engine)
    assert levels(feed) == {"index": "warning"}
    execute(engine, "ALTER TABLE orders RENAME COLUMN data TO other")
    assert levels(feed) == {"columns": "error"}
    orders.drop(engine)
    assert levels(feed) == {"columns": "error"}
    with pytest.raises(ConfigurationError, match="There is no table"):
        feed.read(0, FIRST, 1)


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
    """A feed over a large table says what to create when it first looks, and goes on."""
    monkeypatch.setattr(checks, "CHECK_INTERVAL", 0.0)
    source = unindexed(sqlite)
    for more, warnings in ((5_000, 0), (1, 1)):
        write(sqlite, more, partitions=2)
        feed = source.bind(sqlite)
        for _ in range(3):
            assert len(feed.read(0, FIRST, 10).events) == 10
        records = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert ["CREATE INDEX" in one.getMessage() for one in records] == [True] * warnings
