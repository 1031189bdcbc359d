"""The command that trims a table, as a user has it, and the guide that tells of it."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import create_engine, func, insert, select, text
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes
from zeroeventhub.errors import Trimmed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

GUIDE = (Path(__file__).parents[2] / "docs" / "retention.md").read_text()


def run(command, *arguments):
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "zeroeventhub", command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def block(name):
    """A block of the guide."""
    return re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)[1]


@pytest.fixture
def shop(engine):
    """An engine of a database with ten orders, the oldest of ten days ago."""
    metadata.create_all(engine)
    now = datetime.now(UTC)
    rows = [
        {"part": days % 2, "placed": now - timedelta(days=days), "data": {"n": days}}
        for days in range(10, 0, -1)
    ]
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    return engine


def options(url):
    """The options of the feed."""
    return ["--database", url, "--table", "orders", "--data", "data", "--time", "placed",
            "--partition", "part"]  # fmt: skip


def install(engine, url, what="--retention"):
    """Run the SQL that the command prints."""
    printed = run("ddl", "--database", url, "--table", "orders", what)
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout
    for noise in ("DELIMITER $$", "DELIMITER ;", "BEGIN;", "COMMIT;"):
        lines = lines.replace(noise, "")
    with engine.begin() as connection:
        for statement in re.split(r"\$\$|;", lines):
            if statement.strip():
                connection.execute(text(statement))


def count(engine):
    """How many orders there are."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(orders))


def test_table_is_trimmed(shop, database_url):
    """First it says what would go, then it does it, and the feed is told."""
    install(shop, database_url)
    install(shop, database_url)
    dry = run("trim", *options(database_url), "--older-than", "4d", "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout.startswith("7 events would go, positions 1 to 7, of ")
    assert count(shop) == 10
    asked = run("trim", *options(database_url), "--below", 4)
    assert asked.returncode == 1
    assert count(shop) == 10
    done = run("trim", *options(database_url), "--below", 4, "--yes", "--rows", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "3 events are gone."
    found = run("trim", *options(database_url), "--older-than", "96h", "--yes", "--json")
    told = json.loads(found.stdout)
    assert (told["events"], told["first"], told["until"], told["trimmed"]) == (4, 4, 7, 4)
    assert datetime.fromisoformat(told["oldest"]) < datetime.fromisoformat(told["newest"])
    again = run("trim", *options(database_url), "--older-than", "96h", "--yes", "--json")
    assert json.loads(again.stdout)["trimmed"] is None
    nothing = run("trim", *options(database_url), "--older-than", "96h", "--yes")
    assert nothing.stdout == "Nothing to trim: the mark is at position 7.\n"
    feed = TableFeed(
        orders, data="data", partition="part", partitions=2, time="placed", retention=Retention()
    ).bind(shop)
    with pytest.raises(Trimmed):
        feed.read(0, "1-1", 10)
    assert [event.data["n"] for event in feed.read(1, FIRST, 10).events] == [3, 1]
    checked = run("check", *options(database_url))
    assert "retention   What was trimmed is known." in checked.stdout


def test_what_cannot_be_is_refused(shop, database_url):
    """Without the feed's row, without anything to go by, and with an age that is none, it ends
    with 2 and changes nothing.
    """
    missing = run("trim", *options(database_url), "--below", 4, "--yes")
    assert missing.returncode == 2
    assert "has no row of feed 'orders.id'" in missing.stderr
    install(shop, database_url)
    for arguments, complaint in (
        ([], "Say what to trim"),
        (["--older-than", "soon"], "an age is written as"),
        (["--below", "0"], "--below"),
        (["--below", "3", "--rows", "0"], "--rows"),
    ):
        found = run("trim", *options(database_url), *arguments, "--yes")
        assert found.returncode == 2
        assert complaint in found.stderr
    assert count(shop) == 10


def test_consumers_are_listed_and_forgotten(shop, database_url):
    """Who has registered is listed with what lies behind it, holds trimming back, and is forgotten
    on request.
    """
    assert run("progress", "list", *options(database_url)).returncode == 2
    for what in ("--retention", "--progress"):
        install(shop, database_url, what)
    feed = TableFeed(
        orders, data="data", partition="part", partitions=2, time="placed",
        retention=Retention(), progress=Progress(),
    ).bind(shop)  # fmt: skip
    feed.register_progress("billing", 0, feed.cursor_after(4), principal="ada")
    feed.register_progress("audit", 1, feed.cursor_after(10))
    listed = run("progress", "list", *options(database_url))
    assert listed.returncode == 0, listed.stderr
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines[0] == ["consumer", "principal", "partition", "events", "behind", "heard"]
    assert lines[1][:4] == ["audit", "-", "1", "0"]
    assert lines[2][:4] == ["billing", "ada", "0", "3"]
    told = json.loads(run("progress", "list", *options(database_url), "--json").stdout)
    assert [(one["consumer"], one["lag"]["events"]) for one in told] == [
        ("audit", 0),
        ("billing", 3),
    ]
    held = run("trim", *options(database_url), "--below", 9, "--dry-run")
    assert "Consumer 'billing' of 'ada' keeps what lies above position 4" in held.stdout
    forgetting = ["progress", "forget", *options(database_url), "--consumer", "billing"]
    found = run(*forgetting, "--principal", "bob", "--yes", "--json")
    assert json.loads(found.stdout) == {"consumer": "billing", "places": 0}
    found = run(*forgetting, "--yes")
    assert found.stdout == "Places that are forgotten: 1\n"
    held = run("trim", *options(database_url), "--below", 9, "--dry-run", "--silence", "1d")
    assert held.stdout.startswith("8 events would go")


def test_sync_registers_what_has_landed(tmp_path):
    """The command that lands a feed in a table tells its publisher, if it is asked to."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", progress=Progress())
    with engine.begin() as connection:
        source.install(connection)
        connection.execute(insert(orders), [{"data": {"n": number}} for number in range(5)])
    with serving(Starlette(routes=feed_routes("/orders", source, engine))) as url:
        options = [f"{url}/orders", "--into", f"sqlite:///{tmp_path}/copy.db", "--table", "copy"]
        for consumer, flags in (("silent", []), ("heard", ["--register-progress"])):
            found = run("sync", *options[:-1], consumer, "--consumer", consumer, *flags)
            assert found.returncode == 0, found.stderr
    (one,) = source.bind(engine).registered()
    assert (one.consumer, one.cursor) == ("heard", source.bind(engine).cursor_after(5))
    engine.dispose()


def test_guide_runs(tmp_path):
    """What the guide shows works."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    metadata.create_all(engine)
    names = {"orders": orders, "engine": engine}
    exec(block("feed"), names)
    old = datetime.now(UTC) - timedelta(days=40)
    with engine.begin() as connection:
        connection.execute(
            insert(orders), [{"placed": when, "data": {}} for when in (old, datetime.now(UTC))]
        )
    exec(block("progress"), names)
    exec(block("thin"), names)
    exec(block("compaction"), names)
    exec(block("trim"), names)
    assert count(engine) == 1
    engine.dispose()


def test_guide_names_the_columns():
    """The table of the guide has the columns of the table."""
    table = GUIDE.partition("| column |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [column.name for column in Retention().table.c]


def test_table_is_compacted(shop, database_url):
    """Of each key the last event stays; a word that is no SQL is refused."""
    install(shop, database_url)
    with shop.begin() as connection:
        for customer in ("ada", "bob", "ada"):
            row = {"customer": customer, "kind": "placed", "placed": datetime.now(UTC)}
            connection.execute(insert(orders), {**row, "data": {}})
    given = [*options(database_url), "--key", "customer"]
    found = run("compact", *given, "--older-than", "1d", "--yes")
    assert found.stdout == "0 events are gone.\n", found.stderr
    refused = run("compact", *given, "--tombstone", "nonsense here", "--yes")
    assert refused.returncode == 1
    assert re.fullmatch(r"Error: The feed's .*\.\n", refused.stderr)
    assert "give key" in run("compact", *options(database_url), "--yes").stderr
    found = run("compact", *given, "--tombstone", "kind = 'gone'", "--yes", "--json")
    assert json.loads(found.stdout) == {"deleted": 1}
    assert count(shop) == 12


@contextmanager
def served(*given):
    """Serve a table by the command, and yield the URL of its feed."""
    command = [sys.executable, "-m", "zeroeventhub", "serve", *given, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
    finally:
        process.kill()
        process.communicate()


def test_table_that_is_compacted_is_served_as_one(shop, database_url):
    """With --compacted the feed announces it, and no page may be kept for ever; without it, full
    pages may.
    """
    install(shop, database_url)
    given = [*options(database_url), "--key", "customer"]
    for more, is_compacted in (
        ([], False),
        (["--compacted"], True),
        (["--compacted", "--tombstone", "kind = 'gone'", "--keep-tombstones", "30d"], True),
    ):
        with served(*given, *more) as url:
            asked = {"token": 2, "partition": 0, "cursor": "1-0", "pagesizehint": 2}
            page = httpx.get(f"{url}/events", params=asked)
            assert ("immutable" in page.headers["cache-control"]) is not is_compacted
            assert ("compacted" in httpx.get(url).json()["extensions"]) is is_compacted
        for command, *arguments in (
            ["check"],
            ["trim", "--below", 1, "--dry-run"],
            ["compact", "--yes"],
        ):
            found = run(command, *given, *more, *arguments)
            assert found.returncode == 0, found.stderr


def test_what_cannot_be_compacted_is_refused(shop, database_url):
    """A compacted feed has a key and a mark, and one that is not compacted has no tombstones."""
    given = [*options(database_url), "--key", "customer"]
    for arguments, complaint in (
        ([*given, "--compacted"], "has no row of feed 'orders.id'"),
        ([*options(database_url), "--compacted"], "give key"),
        ([*given, "--tombstone", "kind = 'gone'"], "give --compacted too"),
        ([*given, "--keep-tombstones", "30d"], "give --compacted too"),
    ):
        found = run("serve", *arguments)
        assert found.returncode == 2, found.stderr
        assert complaint in found.stderr
