"""`zeroeventhub discover`, `tail` and `sync`."""

import json
import os
import pty
import re
import subprocess

import pytest
from harness.command_line import PROGRAM, invoke, output_of
from harness.published import install
from harness.readers import mounted
from harness.shop import fill, orders, write
from harness.statements import add, scalars
from harness.stores import call, new_store
from harness.web import serving
from sqlalchemy import Engine, MetaData, Table, event, inspect, select
from starlette.applications import Starlette

from zeroeventhub import CursorStore, Event, TableFeed, feed_routes
from zeroeventhub.consumer.event_insert import LandingTable
from zeroeventhub.publisher.progress import Progress

EXTENSIONS = "caught-up, cursor-of-count, cursor-of-time, event-types, lag, splits, stop, wait"


def test_discover_shows_partitions(feed):
    """Discover prints the partitions for people, and JSON for machines."""
    assert invoke("discover", feed).stdout == (
        "FeedAPI v2, token 2; each event once\n"
        f"extensions: {EXTENSIONS}\n"
        "partition 0\npartition 1\n"
    )
    document = json.loads(invoke("discover", feed, "--json").stdout)
    assert (document["token"], document["extensions"]) == ("2", EXTENSIONS.split(", "))


def numbers(result):
    """The numbers of the orders that were printed, a line of JSON each."""
    return [json.loads(line)["data"]["n"] for line in result.stdout.splitlines()]


TENS = [*range(9, 100, 10)]  # the numbers of the orders that are paid
REST = [n for n in range(100) if n not in TENS]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(100)),
        (["--partition", 1, "--from", "1-50", "--limit", 3], [51, 53, 55]),
        (["--limit", 7], range(0, 14, 2)),
        (["--from", "last"], []),
        (["--event-type", "PAID"], TENS),
        (["--event-type", "paid", "--event-type", "placed"], range(100)),
        (["--event-type", "paid", "--limit", 4], [9, 19, 29, 39]),
        (["--event-type", "nothing"], []),
        (["--skip-event-type", "paid", "--skip-event-type", "nothing"], REST),
        (["--since", "2026-01-31T12:01:30Z"], range(90, 100)),
        (["--since", "2026-01-31T13:01:30+01:00", "--partition", 1], [91, 93, 95, 97, 99]),
        (["--since", "2026-02-01T00:00:00Z"], []),
        (["--since", "2020-01-01T00:00:00Z"], range(100)),
    ],
)
def test_tail_prints_the_events_that_options_select(feed, options, expected):
    """Tail prints each event as a line of JSON, and nothing else on stdout or stderr."""
    shown = invoke("tail", feed, *options)
    assert (sorted(numbers(shown)), shown.stderr, shown.exit_code) == ([*expected], "", 0)


def test_tail_needs_the_partition_of_a_cursor(feed):
    """A cursor without --partition is refused."""
    refused = invoke("tail", feed, "--from", "1-50")
    assert (refused.exit_code, refused.stdout, "--partition" in refused.stderr) == (2, "", True)


def test_tail_ends_at_the_head_though_more_comes_all_the_time(shop):
    """Tail ends even if each of its requests finds another event."""
    routes = feed_routes("/orders", TableFeed(orders, data="data"), shop)
    application, coming = Starlette(routes=routes), iter(range(100, 150))

    async def restless(scope, receive, send):
        if scope["type"] == "http":
            write(shop, 1, first=next(coming))
        await application(scope, receive, send)

    with serving(restless) as url:
        shown = invoke("tail", f"{url}/orders")
    assert (shown.exit_code, shown.stderr) == (0, "")
    found = [json.loads(line)["n"] for line in shown.stdout.splitlines()]
    assert found == [*range(len(found))]
    assert 100 <= len(found) < 110


def sync(feed, url, *options):
    """Run the command into a table `landed` of a database."""
    into = ("--into", url, "--table", "landed", "--consumer", "copy", "--json")
    return invoke("sync", feed, *into, *options)


def landed(engine):
    """Read the events that have landed, in order."""
    table = Table("landed", MetaData(), autoload_with=engine).c
    query = select(*(table[name] for name in ("partition", "arrival", "id", "type", "key", "data")))
    with engine.connect() as connection:
        ordered = query.order_by(table.partition, table.arrival)
        return [tuple(row) for row in connection.execute(ordered)]


def test_sync_lands_every_event_once(feed, database_url, engine, shop):
    """Sync creates its table, lands every event with its attributes, and resumes."""
    first = sync(feed, database_url)
    assert (first.exit_code, json.loads(first.stdout)["landed"]) == (0, 100), first.stderr
    rows = landed(engine)
    assert [row[:2] for row in rows] == [(p, a) for p in range(2) for a in range(1, 51)]
    assert rows[0][2:5] == ("1", "placed", "c0")
    write(shop, 4, first=100, partitions=2)
    assert json.loads(sync(feed, database_url).stdout)["landed"] == 4
    assert len(landed(engine)) == 104
    assert json.loads(sync(feed, database_url).stdout)["landed"] == 0


def test_sync_does_not_begin_in_the_middle(feed, any_engine, any_database_url):
    """Sync refuses another table for a consumer that has read before, and another consumer for a
    table that one has filled.
    """
    into = ("sync", feed, "--into", any_database_url, "--consumer", "copy", "--table")
    assert invoke(*into, "landed").exit_code == 0
    refused = invoke(*into, "elsewhere")
    assert (refused.exit_code, "another --consumer" in refused.stderr) == (2, True)
    assert not inspect(any_engine).has_table("elsewhere")
    mistyped = invoke(
        "sync", feed, "--into", any_database_url, "--consumer", "cpy", "--table", "landed"
    )
    assert (mistyped.exit_code, "'cpy' has read none" in mistyped.stderr) == (2, True)
    assert len(landed(any_engine)) == 100


def test_sync_may_begin_while_another_process_lands_a_first_page(feed, postgresql_url, postgresql):
    """Events that land after sync has begun are not those of another consumer."""
    landing, store, to_come = LandingTable("landed"), CursorStore(postgresql), [0]
    with postgresql.begin() as connection:
        store.create_tables(connection)
        landing.create(connection)

    @event.listens_for(Engine, "before_cursor_execute")
    def land(connection, cursor, statement, *_):
        if statement.startswith("SELECT landed.arrival") and to_come:
            with postgresql.begin() as other:
                store.load(other, "copy", to_come.pop(), start="1-2")
                landing.land(other, 0, [Event.of({"n": 0})])

    try:
        assert sync(feed, postgresql_url).exit_code == 0
    finally:
        event.remove(Engine, "before_cursor_execute", land)
    assert len(landed(postgresql)) == 100


def test_sync_lands_the_types_that_it_is_asked_for(feed, sqlite, sqlite_url):
    """Sync lands events of some types, and skips all other types for good."""
    paid = sync(feed, sqlite_url, "--event-type", "paid")
    assert json.loads(paid.stdout)["landed"] == 10
    assert {row[3] for row in landed(sqlite)} == {"paid"}
    skipped = sync(feed, sqlite_url, "--skip-event-type", "paid")
    assert json.loads(skipped.stdout)["landed"] == 0


@pytest.mark.slow
def test_warning_has_a_line_of_its_own_beside_the_bar(sqlite_url):
    """On a terminal, what is said of a try that failed does not run into the bar."""
    terminal, end = pty.openpty()
    command = [*PROGRAM, "sync", "http://127.0.0.1:1/x", "--into", sqlite_url, "--table", "t"]
    with subprocess.Popen([*command, "--consumer", "copy", "--follow"], stderr=end) as process:
        os.close(end)
        shown = b""
        while shown.count(b"cannot be reached") < 3:
            shown += os.read(terminal, 4096)
        process.kill()
    os.close(terminal)
    lines = re.split(r"\r|\n|\x1b\[2K", shown.decode(errors="ignore"))
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in lines]
    tries = [line for line in plain if "cannot be reached" in line]
    assert [line for line in tries if not line.startswith("http")] == []


@pytest.mark.slow
def test_sync_says_that_it_waits_for_a_process_that_died(feed, sqlite, sqlite_url, caplog):
    """Sync names the consumer whose other processes hold the leases, and lands all after them."""
    store = new_store(sqlite)
    call(store, store.leases.claim, "dead", range(2), seconds=1, share=True, name="copy")
    shown = sync(feed, sqlite_url, "--lease", 0.6)
    assert (shown.exit_code, json.loads(shown.stdout)["landed"]) == (0, 100)
    said = [one.message for one in caplog.records if "Other processes of consumer" in one.message]
    assert [("'copy'" in one, "free 0.6 s after" in one) for one in said] == [(True, True)]


@pytest.mark.parametrize("sets_aside", [False, True])
def test_sync_at_an_event_that_cannot_land(feed, shop, postgresql, postgresql_url, sets_aside):
    """Sync halts the partition and names it, or writes a dead letter and continues."""
    # PostgreSQL refuses JSON that has U+0000.
    add(shop, orders, {"part": 0, "data": {"n": 100, "name": "\0"}})
    write(shop, 4, first=101, partitions=2)
    flags = ["--set-aside"] if sets_aside else []
    shown = sync(feed, postgresql_url, "--tries", 2, *flags)
    store = CursorStore(postgresql)
    letters = call(store, store.dead_letters.letters, name="copy")
    assert scalars(postgresql, "SELECT count(*) FROM landed WHERE partition = 1") == [52]
    if sets_aside:
        assert shown.exit_code == 0, shown.stderr
        document = json.loads(shown.stdout)
        assert (document["landed"], document["set_aside"]) == (104, 1)
        assert shown.stderr.endswith("Events set aside as dead letters: 1\n")
        assert [letter.event.data["data"]["name"] for letter in letters] == ["\0"]
    else:
        assert shown.exit_code == 1
        assert "Partition 0 stands still" in shown.stderr
        assert letters == []


def test_sync_registers_what_has_landed(sqlite, tmp_path):
    """Sync with --register-progress registers its cursor at the publisher."""
    fill(sqlite, 10)
    source = TableFeed(orders, data="data", progress=Progress())
    install(source, sqlite)
    into = f"sqlite:///{tmp_path}/copy.db"
    with mounted(source, sqlite) as url:
        for consumer, flags in (("silent", []), ("heard", ["--register-progress"])):
            options = ["--into", into, "--table", consumer, "--consumer", consumer, *flags]
            assert invoke("sync", url, *options).exit_code == 0
    (one,) = source.bind(sqlite).registered()
    assert (one.consumer, one.cursor) == ("heard", source.bind(sqlite).cursor_after(10))


def test_consumer_of_the_file_is_run_by_its_name(feed, sqlite_url, empty_folder, monkeypatch):
    """Sync takes a consumer's name in the place of a URL, and its options from the file."""
    monkeypatch.setenv("COPY", sqlite_url)
    (empty_folder / "zeroeventhub.toml").write_text(
        f'[consumers.copy]\nurl = "{feed}"\ninto = "env:COPY"\ntable = "paid"\n'
        'event_types = ["paid"]\n'
    )
    landed = {"landed": 10, "set_aside": 0, "table": "paid", "consumer": "copy"}
    assert json.loads(output_of("sync", "copy", "--json")) == landed
