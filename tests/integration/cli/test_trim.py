"""`zeroeventhub trim`, and the SQL of `zeroeventhub ddl` that it needs."""

import json
import re
from datetime import datetime

import pytest
from harness.command_line import invoke
from harness.shop import orders
from harness.trimmed import numbers, ten_days
from sqlalchemy import text

from zeroeventhub import TableFeed
from zeroeventhub.errors import Trimmed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention


def install(engine, url):
    """Run the SQL that the command prints."""
    for what in ("--retention", "--progress"):
        printed = invoke("ddl", "--database", url, "--table", "orders", what)
        assert printed.exit_code == 0, printed.stderr
        lines = printed.stdout
        for noise in ("DELIMITER $$", "DELIMITER ;", "BEGIN;", "COMMIT;"):
            lines = lines.replace(noise, "")
        with engine.begin() as connection:
            for statement in re.split(r"\$\$|;", lines):
                if statement.strip():
                    connection.execute(text(statement))


def options_of(url):
    """The options of the feed."""
    return ["--database", url, "--table", "orders", "--data", "data", "--time", "placed",
            "--partition", "part"]  # fmt: skip


def test_table_is_trimmed(engine, database_url):
    """The command says what would go, then does it, and the feed hears of it."""
    ten_days(engine)
    install(engine, database_url)
    install(engine, database_url)
    options = options_of(database_url)
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
    assert datetime.fromisoformat(said["oldest"]) < datetime.fromisoformat(said["newest"])
    assert json.loads(invoke(*by_age, "--json").stdout)["trimmed"] is None
    assert invoke(*by_age).stdout == "Nothing to trim: the mark is at position 7.\n"
    given = {"partition": "part", "partitions": 2, "retention": Retention()}
    feed = TableFeed(orders, data="data", progress=Progress(), **given).bind(engine)
    with pytest.raises(Trimmed):
        feed.read(0, "1-1", 10)
    assert numbers(feed, 1) == [3, 1]
    feed.register_progress("billing", 1, feed.cursor_after(10))
    assert "retention   What was trimmed is known." in invoke("check", *options).stdout


@pytest.mark.usefixtures("trimmed")
def test_what_cannot_be_trimmed_is_refused(sqlite_url):
    """Without anything to go by, and with an age that is none, it ends with 2."""
    for arguments, complaint in (
        ([], "Say what to trim"),
        (["--older-than", "soon"], "an age is written as"),
        (["--below", "0"], "--below"),
        (["--below", "3", "--rows", "0"], "--rows"),
    ):
        found = invoke("trim", *options_of(sqlite_url), *arguments, "--yes")
        assert (found.exit_code, complaint in found.stderr) == (2, True), found.stderr


@pytest.mark.usefixtures("shop")
def test_feed_without_its_row_is_refused(sqlite_url):
    """The command trims no feed that would not hear of it."""
    found = invoke("trim", *options_of(sqlite_url), "--below", 4, "--yes")
    assert found.exit_code == 2
    assert "has no row of feed 'orders.id'" in found.stderr
