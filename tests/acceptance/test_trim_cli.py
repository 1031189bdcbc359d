"""The command that trims a table, as a user has it, and the guide that tells of it."""

import json
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from harness.command_line import invoke, started
from harness.guides import DOCUMENTS, guide
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import create_engine, func, insert, select, text
from starlette.applications import Starlette

from zeroeventhub import FIRST, TableFeed, feed_routes
from zeroeventhub.errors import Trimmed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention


def filled(engine):
    """Place ten orders in a database, the oldest of ten days ago."""
    metadata.create_all(engine)
    now = datetime.now(UTC)
    rows = [
        {"part": days % 2, "placed": now - timedelta(days=days), "data": {"n": days}}
        for days in range(10, 0, -1)
    ]
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    return engine


@pytest.fixture
def shop(engine):
    """An engine of a database with ten orders, on each database."""
    return filled(engine)


@pytest.fixture
def any_shop(any_engine):
    """The same on a database of any kind."""
    return filled(any_engine)


def options(url):
    """The options of the feed."""
    return ["--database", url, "--table", "orders", "--data", "data", "--time", "placed",
            "--partition", "part"]  # fmt: skip


def install(engine, url, what="--retention"):
    """Run the SQL that the command prints."""
    printed = invoke("ddl", "--database", url, "--table", "orders", what)
    assert printed.exit_code == 0, printed.stderr
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
    dry = invoke("trim", *options(database_url), "--older-than", "4d", "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "")
    assert dry.stdout.startswith("7 events would go, positions 1 to 7, of ")
    assert count(shop) == 10
    asked = invoke("trim", *options(database_url), "--below", 4)
    assert asked.exit_code == 1
    assert count(shop) == 10
    done = invoke("trim", *options(database_url), "--below", 4, "--yes", "--rows", 2)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "3 events are gone."
    found = invoke("trim", *options(database_url), "--older-than", "96h", "--yes", "--json")
    told = json.loads(found.stdout)
    assert (told["events"], told["first"], told["until"], told["trimmed"]) == (4, 4, 7, 4)
    assert datetime.fromisoformat(told["oldest"]) < datetime.fromisoformat(told["newest"])
    again = invoke("trim", *options(database_url), "--older-than", "96h", "--yes", "--json")
    assert json.loads(again.stdout)["trimmed"] is None
    nothing = invoke("trim", *options(database_url), "--older-than", "96h", "--yes")
    assert nothing.stdout == "Nothing to trim: the mark is at position 7.\n"
    feed = TableFeed(
        orders, data="data", partition="part", partitions=2, time="placed", retention=Retention()
    ).bind(shop)
    with pytest.raises(Trimmed):
        feed.read(0, "1-1", 10)
    assert [event.data["n"] for event in feed.read(1, FIRST, 10).events] == [3, 1]
    checked = invoke("check", *options(database_url))
    assert "retention   What was trimmed is known." in checked.stdout


def test_what_cannot_be_is_refused(any_shop, any_database_url):
    """Without the feed's row, without anything to go by, and with an age that is none, it ends
    with 2 and changes nothing.
    """
    missing = invoke("trim", *options(any_database_url), "--below", 4, "--yes")
    assert missing.exit_code == 2
    assert "has no row of feed 'orders.id'" in missing.stderr
    install(any_shop, any_database_url)
    for arguments, complaint in (
        ([], "Say what to trim"),
        (["--older-than", "soon"], "an age is written as"),
        (["--below", "0"], "--below"),
        (["--below", "3", "--rows", "0"], "--rows"),
    ):
        found = invoke("trim", *options(any_database_url), *arguments, "--yes")
        assert found.exit_code == 2
        assert complaint in found.stderr
    assert count(any_shop) == 10


def test_consumers_are_listed_and_forgotten(any_shop, any_database_url):
    """Who has registered is listed with what lies behind it, holds trimming back, and is forgotten
    on request.
    """
    assert invoke("progress", "list", *options(any_database_url)).exit_code == 2
    for what in ("--retention", "--progress"):
        install(any_shop, any_database_url, what)
    feed = TableFeed(
        orders, data="data", partition="part", partitions=2, time="placed",
        retention=Retention(), progress=Progress(),
    ).bind(any_shop)  # fmt: skip
    feed.register_progress("billing", 0, feed.cursor_after(4), principal="ada")
    feed.register_progress("audit", 1, feed.cursor_after(10))
    listed = invoke("progress", "list", *options(any_database_url))
    assert listed.exit_code == 0, listed.stderr
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines[0] == ["consumer", "principal", "partition", "events", "behind", "heard"]
    assert lines[1][:4] == ["audit", "-", "1", "0"]
    assert lines[2][:4] == ["billing", "ada", "0", "3"]
    told = json.loads(invoke("progress", "list", *options(any_database_url), "--json").stdout)
    assert [(one["consumer"], one["lag"]["events"]) for one in told] == [
        ("audit", 0),
        ("billing", 3),
    ]
    held = invoke("trim", *options(any_database_url), "--below", 9, "--dry-run")
    assert "Consumer 'billing' of 'ada' keeps what lies above position 4" in held.stdout
    forgetting = ["progress", "forget", *options(any_database_url), "--consumer", "billing"]
    found = invoke(*forgetting, "--principal", "bob", "--yes", "--json")
    assert json.loads(found.stdout) == {"consumer": "billing", "places": 0}
    found = invoke(*forgetting, "--yes")
    assert found.stdout == "Places that are forgotten: 1\n"
    held = invoke("trim", *options(any_database_url), "--below", 9, "--dry-run", "--silence", "1d")
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
            found = invoke("sync", *options[:-1], consumer, "--consumer", consumer, *flags)
            assert found.exit_code == 0, found.stderr
    (one,) = source.bind(engine).registered()
    assert (one.consumer, one.cursor) == ("heard", source.bind(engine).cursor_after(5))
    engine.dispose()


def test_guide_runs(sqlite):
    """What the guide shows works."""
    metadata.create_all(sqlite)
    old = datetime.now(UTC) - timedelta(days=40)
    with guide("retention.md", orders=orders, engine=sqlite) as piece:
        piece("feed")
        with sqlite.begin() as connection:
            rows = [{"placed": when, "data": {}} for when in (old, datetime.now(UTC))]
            connection.execute(insert(orders), rows)
        for mark in ("progress", "thin", "compaction", "trim"):
            piece(mark)
    assert count(sqlite) == 1


def test_guide_names_the_columns():
    """The table of the guide has the columns of the table."""
    guide_ = (DOCUMENTS / "retention.md").read_text()
    table = guide_.partition("| column |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [column.name for column in Retention().table.c]


def test_table_is_compacted(any_shop, any_database_url):
    """Of each key the last event stays; a word that is no SQL is refused."""
    install(any_shop, any_database_url)
    with any_shop.begin() as connection:
        for customer in ("ada", "bob", "ada"):
            row = {"customer": customer, "kind": "placed", "placed": datetime.now(UTC)}
            connection.execute(insert(orders), {**row, "data": {}})
    given = [*options(any_database_url), "--key", "customer"]
    found = invoke("compact", *given, "--older-than", "1d", "--yes")
    assert found.stdout == "0 events are gone.\n", found.stderr
    refused = invoke("compact", *given, "--tombstone", "nonsense here", "--yes")
    assert refused.exit_code == 1
    assert re.fullmatch(r"Error: The feed's .*\.\n", refused.stderr)
    assert "give key" in invoke("compact", *options(any_database_url), "--yes").stderr
    found = invoke("compact", *given, "--tombstone", "kind = 'gone'", "--yes", "--json")
    assert json.loads(found.stdout) == {"deleted": 1}
    assert count(any_shop) == 12


def test_table_that_is_compacted_is_served_as_one(any_shop, any_database_url):
    """With --compacted the feed announces it, and no page may be kept for ever; without it, full
    pages may.
    """
    install(any_shop, any_database_url)
    given = [*options(any_database_url), "--key", "customer"]
    for more, is_compacted in (
        ([], False),
        (["--compacted"], True),
        (["--compacted", "--tombstone", "kind = 'gone'", "--keep-tombstones", "30d"], True),
    ):
        with started("serve", *given, *more, "--port", 0) as process:
            url = re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
            asked = {"token": 2, "partition": 0, "cursor": "1-0", "pagesizehint": 2}
            page = httpx.get(f"{url}/events", params=asked)
            assert ("immutable" in page.headers["cache-control"]) is not is_compacted
            assert ("compacted" in httpx.get(url).json()["extensions"]) is is_compacted
        for command, *arguments in (
            ["check"],
            ["trim", "--below", 1, "--dry-run"],
            ["compact", "--yes"],
        ):
            found = invoke(command, *given, *more, *arguments)
            assert found.exit_code == 0, found.stderr


def test_what_cannot_be_compacted_is_refused(any_shop, any_database_url):
    """A compacted feed has a key and a mark, and one that is not compacted has no tombstones."""
    given = [*options(any_database_url), "--key", "customer"]
    for arguments, complaint in (
        ([*given, "--compacted"], "has no row of feed 'orders.id'"),
        ([*options(any_database_url), "--compacted"], "give key"),
        ([*given, "--tombstone", "kind = 'gone'"], "give --compacted too"),
        ([*given, "--keep-tombstones", "30d"], "give --compacted too"),
    ):
        found = invoke("serve", *arguments)
        assert found.exit_code == 2, found.stderr
        assert complaint in found.stderr
