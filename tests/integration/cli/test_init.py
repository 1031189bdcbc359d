"""`zeroeventhub init` describes a table in the file of feeds."""

import os
import pty
import subprocess
import tomllib
from pathlib import Path

import pytest
from harness.command_line import PATIENCE, PROGRAM, invoke, output_of
from harness.shop import fill
from harness.statements import execute

from zeroeventhub.cli.configuration import File, read_toml

pytestmark = pytest.mark.usefixtures("empty_folder")

CHOSEN = {"table": "orders", "data": "data", "partition": "part", "time": "placed", "type": "kind"}


def described(name="orders"):
    """Read what the file says of a feed; the file is one that commands take."""
    read_toml(Path("zeroeventhub.toml"), File)
    return tomllib.loads(Path("zeroeventhub.toml").read_text())["feeds"][name]


def test_table_is_described_by_usual_names(sqlite, sqlite_url):
    """Columns are chosen by their names and types, and what the table lacks is printed."""
    fill(sqlite, 10, partitions=2)
    said = output_of("init", sqlite_url)
    assert described() == {"database": sqlite_url, **CHOSEN}
    assert "-- This ordering needs nothing" in said
    assert "CREATE INDEX" in said


@pytest.mark.parametrize("name", ["changed_at", "updated_at", "Occurred"])
def test_time_is_a_column_of_a_usual_name(sqlite, sqlite_url, name):
    """The time of an event is the column that says when its row was written or changed."""
    execute(sqlite, f"CREATE TABLE stock (id INTEGER PRIMARY KEY, body TEXT, {name} DATETIME)")
    invoke("init", sqlite_url)
    assert described("stock")["time"] == name


@pytest.mark.parametrize("option", [None, "password", "sslpassword"])
def test_password_is_not_written(postgresql, postgresql_url, option):
    """A file of the source code has no password in it, but the name of a variable."""
    fill(postgresql, 0)
    url = postgresql.url.set(password="canary")
    if option is not None:
        url = postgresql.url.update_query_dict({option: "canary"})
    url = url.render_as_string(hide_password=False)
    said = output_of("init", url)
    assert "canary" not in Path("zeroeventhub.toml").read_text() + said
    assert described()["database"] == "env:ORDERS_DATABASE"
    assert invoke("init", postgresql_url).stderr.endswith("describes a feed orders already.\n")


def test_options_are_written_as_they_are_given(sqlite, sqlite_url, monkeypatch):
    """What options say is not guessed, and a second feed is appended to the file."""
    fill(sqlite, 2)
    execute(sqlite, "CREATE TABLE stock (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")
    monkeypatch.setenv("SHOP", sqlite_url)
    assert "it has orders, stock" in invoke("init", "env:SHOP").stderr
    first = ["init", "env:SHOP", "--table", "orders", "--columns", "id,customer", "--type", "-"]
    first += ["--cloudevents", "--attribute", "subject=customer", "--partitions", 1]
    for command in (first, ["init", "env:SHOP", "--table", "stock"]):
        output_of(*command)
    assert described() == {
        "database": "env:SHOP",
        **{key: CHOSEN[key] for key in ("table", "partition", "time")},
        "columns": ["id", "customer"],
        "cloudevents": True,
        "attributes": {"subject": "customer"},
        "partitions": 1,
    }
    assert described("stock") == {"database": "env:SHOP", "table": "stock", "data": "body"}


@pytest.mark.parametrize("age", ["30d", "36h", "1w"])
def test_age_is_written_as_the_file_has_it(sqlite, sqlite_url, age):
    """An age among the options is one that commands read from the file."""
    fill(sqlite, 2)
    options = ["--compacted", "--key", "customer", "--tombstone", "part = 9"]
    invoke("init", sqlite_url, *options, "--keep-tombstones", age)
    assert described()["keep_tombstones"] == age


def test_nothing_is_written_of_a_table_that_cannot_be_published(sqlite, sqlite_url):
    """A mistake ends the command before it writes."""
    execute(sqlite, "CREATE TABLE zeroeventhub_of_ours (id INTEGER)")
    assert "it has none" in invoke("init", sqlite_url).stderr
    fill(sqlite, 2)
    assert "no column 'nothing'" in invoke("init", sqlite_url, "--key", "nothing").stderr
    assert not Path("zeroeventhub.toml").exists()


@pytest.mark.slow
def test_terminal_is_asked(sqlite, sqlite_url):
    """A terminal chooses the table and each column; a line alone takes what is proposed."""
    fill(sqlite, 2)
    execute(sqlite, "CREATE TABLE stock (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)")
    ours, theirs = pty.openpty()
    os.write(ours, b"orders\n\n-\n\n\ncustomer\n\n")
    done = subprocess.run(
        [*PROGRAM, "init", sqlite_url],
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    found = {key: value for key, value in CHOSEN.items() if key != "partition"}
    assert described() == {"database": sqlite_url, **found, "key": "customer"}
