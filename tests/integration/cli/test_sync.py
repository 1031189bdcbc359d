"""`zeroeventhub sync`: each database, other processes, and events that do not fit."""

import json

import pytest
from harness.command_line import invoke
from harness.shop import orders, place, write
from harness.stores import call, new_store
from sqlalchemy import MetaData, Table, insert, inspect, select, text

from zeroeventhub import CursorStore
from zeroeventhub.cli import reading as module


def sync(feed, url, *options):
    """Run the command into a table `landed` of a database."""
    into = ("--into", url, "--table", "landed", "--consumer", "copy", "--json")
    return invoke("sync", feed, *into, *options)


def landed(engine):
    """Read what has landed, in order."""
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
    """A consumer that has read before is not taken to another table without its history."""
    into = ("sync", feed, "--into", any_database_url, "--consumer", "copy", "--table")
    assert invoke(*into, "landed").exit_code == 0
    refused = invoke(*into, "elsewhere")
    assert (refused.exit_code, "another --consumer" in refused.stderr) == (2, True)
    assert not inspect(any_engine).has_table("elsewhere")


def test_sync_lands_the_types_that_it_is_asked_for(feed, sqlite, sqlite_url):
    """Sync lands events of some types, and passes over the others for good."""
    paid = sync(feed, sqlite_url, "--event-type", "paid")
    assert json.loads(paid.stdout)["landed"] == 10
    assert {row[3] for row in landed(sqlite)} == {"paid"}
    skipped = sync(feed, sqlite_url, "--skip-event-type", "paid")
    assert json.loads(skipped.stdout)["landed"] == 0


@pytest.mark.slow
def test_sync_says_that_it_waits_for_a_process_that_died(feed, sqlite, sqlite_url, monkeypatch):
    """Sync names the consumer whose other processes hold the leases, and lands all after them."""
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    store = new_store(sqlite)
    call(store, store.leases.claim, "dead", range(2), seconds=1, share=True, name="copy")
    shown = sync(feed, sqlite_url, "--lease", 0.6)
    assert (shown.exit_code, json.loads(shown.stdout)["landed"]) == (0, 100)
    assert shown.stderr.count("Other processes of consumer 'copy' hold its partitions") == 1


@pytest.fixture
def poison(shop):
    """An order that PostgreSQL refuses, for its JSON has U+0000, and four orders after it."""
    with shop.begin() as connection:
        connection.execute(insert(orders), [{"part": 0, "data": {"n": 100, "name": "\0"}}])
        place(connection, 4, first=101, partitions=2)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("sets_aside", [False, True])
def test_sync_at_an_event_that_cannot_land(feed, postgresql, postgresql_url, sets_aside):
    """Sync halts the partition and says where, or writes a dead letter and goes on."""
    flags = ["--set-aside"] if sets_aside else []
    shown = sync(feed, postgresql_url, "--tries", 2, *flags)
    store = CursorStore(postgresql)
    with postgresql.connect() as connection:
        in_1 = connection.scalar(text("SELECT count(*) FROM landed WHERE partition = 1"))
        letters = store.dead_letters.letters(connection, "copy")
    assert in_1 == 52
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
