"""`zeroeventhub sync` where something is in its way: another process, or an event."""

import json
import subprocess
import sys
import time

import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import create_engine, insert, text
from starlette.applications import Starlette

from zeroeventhub import CursorStore, TableFeed, feed_routes

PARTITIONS = 2


@pytest.fixture
def publisher(tmp_path):
    """The publisher's engine, with 20 orders in its table."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 20, partitions=PARTITIONS)
    yield engine
    engine.dispose()


@pytest.fixture
def feed(publisher):
    """The URL of the orders."""
    served = TableFeed(orders, partition="part", partitions=PARTITIONS, data="data")
    with serving(Starlette(routes=feed_routes("/orders", served, publisher))) as url:
        yield f"{url}/orders"


def sync(feed, database, *arguments):
    """Run the command to its end."""
    into = ["--into", database, "--table", "landed", "--consumer", "copy", "--json"]
    command = [sys.executable, "-m", "zeroeventhub", "sync", feed, *into, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_sync_says_that_it_waits_for_a_process_that_died(feed, engine, database_url):
    """Who waits for the leases of another process is told so, and lands everything behind it."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        store.leases.claim(connection, "copy", "dead", range(PARTITIONS), seconds=6, share=True)
    started = time.monotonic()
    shown = sync(feed, database_url, "--lease", 1.5)
    assert (shown.returncode, json.loads(shown.stdout)["landed"]) == (0, 20)
    assert shown.stderr.count("Other processes of consumer 'copy' hold its partitions") == 1
    assert time.monotonic() - started < 15


def test_sync_says_nothing_of_leases_where_it_has_them(feed, sqlite_url):
    """A run that is alone has nothing to tell."""
    for landed in (20, 0):
        shown = sync(feed, sqlite_url)
        assert (shown.stderr, json.loads(shown.stdout)["landed"]) == ("", landed)


@pytest.fixture
def poisoned(publisher):
    """The order that PostgreSQL does not take: its JSON has a character that is none to it."""
    with publisher.begin() as connection:
        connection.execute(insert(orders), [{"part": 0, "data": {"n": 20, "name": "\0"}}])
        place(connection, 4, first=21, partitions=PARTITIONS)


@pytest.mark.usefixtures("poisoned")
def test_sync_halts_at_what_it_cannot_land(feed, postgresql, postgresql_url):
    """The other partition lands, and an error says in one sentence where this one stands."""
    refused = sync(feed, postgresql_url, "--tries", 2)
    assert refused.returncode == 1
    assert "Partition 0 stands still" in refused.stderr
    assert "Traceback" not in refused.stderr
    with postgresql.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM landed WHERE partition = 1")) == 12


@pytest.mark.usefixtures("poisoned")
def test_sync_sets_aside_what_it_cannot_land(feed, postgresql, postgresql_url):
    """Told to, it writes the event to the dead letters, and goes on."""
    shown = sync(feed, postgresql_url, "--tries", 2, "--set-aside")
    assert shown.returncode == 0, shown.stderr
    store = CursorStore(postgresql)
    with postgresql.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM landed")) == 24
        (letter,) = store.dead_letters.letters(connection, "copy")
    assert letter.event.data["name"] == "\0"
    document = json.loads(shown.stdout)
    assert (document["landed"], document["set_aside"]) == (24, 1)
    assert shown.stderr.endswith("Events set aside as dead letters: 1\n")
