"""`zeroeventhub lag`."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from harness.command_line import invoke
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, CursorStore, Event, FeedInfo, Page, TableFeed, feed_routes


def run(*arguments):
    """Run the command."""
    return invoke("lag", *arguments)


@pytest.fixture
def billing(any_engine):
    """A feed of two partitions, of which billing has read some of the first; its URL."""
    metadata.create_all(any_engine)
    ago = datetime.now(UTC) - timedelta(minutes=90)
    with any_engine.begin() as connection:
        rows = [{"part": n % 2, "placed": ago, "data": {"n": n}} for n in range(2500)]
        connection.execute(insert(orders), rows)
    feed = TableFeed(orders, data="data", time="placed", partition="part", partitions=2)
    store = CursorStore(any_engine)
    cursor = feed.bind(any_engine).read(0, FIRST, 1248).cursor
    with any_engine.begin() as connection:
        store.create_tables(connection)
        store.load(connection, "billing", 0, start=cursor)
    with serving(Starlette(routes=feed_routes("/orders", feed, any_engine))) as url:
        yield f"{url}/orders"


def test_lag_is_shown_for_people_and_for_machines(billing, any_database_url):
    """A table for people has a line for each partition; JSON has the same in numbers."""
    shown = run(billing, "--store", any_database_url, "--consumer", "billing")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == (
        "partition  events  behind\n        0       2   1.5 h\n        1   1,250   1.5 h\n"
    )
    shown = run(billing, "--store", any_database_url, "--consumer", "billing", "--json")
    document = json.loads(shown.stdout)
    assert document["consumer"] == "billing"
    lags = document["partitions"]
    assert [(lag["partition"], lag["events"], lag["exact"]) for lag in lags] == [
        (0, 2, True),
        (1, 1250, True),
    ]
    assert all(5400 <= lag["seconds"] < 5520 for lag in lags)


class Endless:
    """A feed that does not count, and has no end and no times."""

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        start = 0 if cursor == FIRST else int(cursor)
        return Page([Event(b'{"n":1}')] * limit, str(start + limit))


def test_count_that_was_given_up_is_shown_as_such(sqlite, sqlite_url):
    """Where nobody counts to the end there are more, and where there is no time nobody knows."""
    store = CursorStore(sqlite)
    with sqlite.begin() as connection:
        store.create_tables(connection)
        store.load(connection, "billing", 0, start="5")
    with serving(Starlette(routes=feed_routes("/feed", Endless()))) as url:
        arguments = [f"{url}/feed", "--store", sqlite_url, "--consumer", "billing"]
        assert run(*arguments).stdout.splitlines()[1].split() == ["0", "10,000+", "unknown"]
        (lag,) = json.loads(run(*arguments, "--json").stdout)["partitions"]
    assert lag == {"partition": 0, "events": 10_000, "seconds": None, "exact": False}


def test_command_ends_in_a_sentence_where_it_cannot_go_on(sqlite, sqlite_url, tmp_path):
    """A consumer, a database or a feed that is not there is told in one sentence."""
    metadata.create_all(sqlite)
    store = CursorStore(sqlite)
    with sqlite.begin() as connection:
        place(connection, 3)
        store.create_tables(connection)
        store.load(connection, "billing", 0)
    nowhere = "http://127.0.0.1:1/feed"
    cases = [
        ((nowhere, "--store", sqlite_url, "--consumer", "typo"), 2, "no cursor of consumer 'typo'"),
        ((nowhere, "--store", sqlite_url, "--consumer", "billing"), 1, "cannot be reached"),
        ((nowhere, "--store", f"sqlite:///{tmp_path}/no.db", "--consumer", "a"), 2, "no database"),
        ((nowhere, "--store", sqlite_url), 2, "--consumer"),
    ]
    for arguments, code, sentence in cases:
        shown = run(*arguments)
        assert (shown.exit_code, shown.stdout) == (code, "")
        assert sentence in shown.stderr
        assert "Traceback" not in shown.stderr
