"""`zeroeventhub trim`, `progress`, `compact`, `seal` and `erase`, and the SQL that they need."""

import json
import re

import httpx
import pytest
from harness.command_line import invoke, started
from harness.published import install
from harness.readers import mounted
from harness.shop import orders
from harness.statements import count_of
from harness.trimmed import numbers, ten_days
from sqlalchemy import func, insert

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.errors import Trimmed
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

TOMBSTONE = ["--tombstone", "kind = 'gone'"]


@pytest.fixture
def trimmed(sqlite):
    """The engine of a publisher of ten orders, one a day, that knows its mark and who reads on."""
    ten_days(sqlite)
    install(TableFeed(orders, retention=Retention(), progress=Progress()), sqlite)
    return sqlite


@pytest.fixture
def table(sqlite_url):
    """The options of the feed."""
    return ["--database", sqlite_url, "--table", "orders"]


def test_table_is_trimmed(engine, database_url, run_as_client):
    """The command says what would go, then does it, and the feed hears of it."""
    ten_days(engine)
    options = ["--database", database_url, "--table", "orders"]
    for what in ("--retention", "--progress") * 2:
        printed = invoke("ddl", *options, what)
        assert printed.exit_code == 0, printed.stderr
        run_as_client(engine, printed.stdout)
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
    listed = invoke("progress", "list", *options)
    assert listed.exit_code == 0, listed.stderr
    _, audit, billing = (line.split() for line in listed.stdout.splitlines())
    assert (audit[:4], billing[:4]) == (["audit", "-", "1", "0"], ["billing", "ada", "0", "3"])
    held = invoke("trim", *options, "--below", 9, "--dry-run")
    assert "Consumer 'billing' of 'ada' keeps what lies above position 4" in held.stdout
    forgetting = ["progress", "forget", *options, "--consumer", "billing", "--yes"]
    found = invoke(*forgetting, "--principal", "bob", "--json")
    assert json.loads(found.stdout) == {"consumer": "billing", "places": 0}
    assert invoke(*forgetting).stdout == "Places that are forgotten: 1\n"
    held = invoke("trim", *options, "--below", 9, "--dry-run", "--silence", "1d")
    assert held.stdout.startswith("8 events would go")


def test_sync_registers_what_has_landed(trimmed, tmp_path):
    """The command that lands a feed in a table tells its publisher, if it is asked to."""
    source = TableFeed(orders, data="data", progress=Progress())
    into = f"sqlite:///{tmp_path}/copy.db"
    with mounted(source, trimmed) as url:
        for consumer, flags in (("silent", []), ("heard", ["--register-progress"])):
            options = ["--into", into, "--table", consumer, "--consumer", consumer, *flags]
            assert invoke("sync", url, *options).exit_code == 0
    (one,) = source.bind(trimmed).registered()
    assert (one.consumer, one.cursor) == ("heard", source.bind(trimmed).cursor_after(10))


def test_table_is_compacted(trimmed, table):
    """Compact keeps the last event of each key; it refuses a condition that is no SQL."""
    with trimmed.begin() as connection:
        for customer in ("ada", "bob", "ada"):
            row = {"customer": customer, "kind": "placed", "placed": func.now(), "data": {}}
            connection.execute(insert(orders).values(row))
    compact = ["compact", *table, "--yes", "--time", "placed"]
    assert "give key" in invoke(*compact).stderr
    compact += ["--key", "customer"]
    refused = invoke(*compact, "--tombstone", "nonsense here")
    assert refused.exit_code == 1
    assert re.fullmatch(r"Error: The feed's .*\.\n", refused.stderr)
    found = invoke(*compact, *TOMBSTONE, "--json")
    assert json.loads(found.stdout) == {"deleted": 1}
    assert count_of(trimmed, orders) == 12


@pytest.mark.usefixtures("trimmed")
def test_table_that_is_compacted_is_served_as_one(table):
    """With --compacted the feed announces it, and no page may be kept for ever."""
    options = [*table, "--time", "placed", "--key", "customer"]
    options += ["--compacted", *TOMBSTONE, "--keep-tombstones", "30d"]
    with started("serve", *options, "--port", 0) as process:
        url = re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
        asked = {"token": 1, "partition": 0, "cursor": "1-0", "pagesizehint": 2}
        page = httpx.get(f"{url}/events", params=asked)
        assert "immutable" not in page.headers["cache-control"]
        assert "compacted" in httpx.get(url).json()["extensions"]
    for command in (["check"], ["trim", "--below", 1, "--dry-run"], ["compact", "--yes"]):
        found = invoke(*command, *options)
        assert found.exit_code == 0, found.stderr


def test_table_is_sealed_trimmed_and_read(table, trimmed, tmp_path):
    """What is sealed may be trimmed, and is served all the same; what is not sealed stays."""
    options = [*table, "--data", "data", "--archive", tmp_path / "archive"]
    options += ["--cache", tmp_path / "cache"]
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


def test_events_are_erased(trimmed, table, tmp_path):
    """What is named is erased from the archive after a yes; without --erasable nothing is."""
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
