"""The command that seals a table, and the guide to archives, as a user has them."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from harness.command_line import invoke
from harness.guides import guide
from harness.shop import metadata, orders, place
from sqlalchemy import func, insert, select

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.retention import Retention


def count(engine):
    """How many orders there are."""
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(orders))


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders, whose feed knows its mark."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 10)
        TableFeed(orders, data="data", retention=Retention()).install(connection)
    return sqlite


def test_table_is_sealed_trimmed_and_read(shop, sqlite_url, tmp_path):
    """What is sealed may be trimmed, and is served all the same; what is not sealed stays."""
    options = ["--database", sqlite_url, "--table", "orders", "--data", "data"]
    options += ["--archive", tmp_path / "archive", "--cache", tmp_path / "cache"]
    done = invoke("seal", *options, "--segment-events", 3, "--least", 3)
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.fullmatch(
        r"9 events in 3 new segments of [0-9,]+ bytes; sealed up to position 9\.\n", done.stdout
    )
    again = invoke("seal", *options, "--least", 2, "--json")
    assert json.loads(again.stdout) == {"segments": 0, "events": 0, "size": 0, "position": 9}
    trimmed = invoke("trim", *options, "--below", 100, "--yes")
    assert trimmed.stdout.splitlines()[-1] == "9 events are gone."
    assert count(shop) == 1
    archive = Archive(tmp_path / "archive")
    feed = TableFeed(orders, data="data", retention=Retention(), archive=archive).bind(shop)
    assert [event.data["n"] for event in feed.read(0, FIRST, 20).events] == [*range(10)]
    checked = invoke("check", *options)
    assert checked.exit_code == 0, checked.stdout


def test_what_cannot_be_sealed_is_refused(shop, sqlite_url, tmp_path):
    """Without a place, with a cache of nothing, or another feed's archive, it ends with 2."""
    options = ["--database", sqlite_url, "--table", "orders", "--data", "data"]
    archive = ["--archive", tmp_path / "archive"]
    assert invoke("seal", *options, *archive).exit_code == 0
    for arguments, complaint in (
        ([*options], "Say where to seal it"),
        ([*options, "--archive", "nonsense://place"], "cannot be opened"),
        ([*options, *archive, "--mutable"], "leave out mutable or archive"),
        ([*options, *archive, "--columns", "id"], "not both"),
        ([*options[:-2], *archive], "belongs to another feed"),
    ):
        found = invoke("seal", *arguments)
        assert found.exit_code == 2, found.stderr
        assert complaint in found.stderr
    found = invoke("check", *options, "--cache", tmp_path)
    assert "of no use without --archive" in found.stderr


def test_guide_of_archives_runs(sqlite, tmp_path):
    """What the guide shows works."""
    metadata.create_all(sqlite)
    old = datetime.now(UTC) - timedelta(days=40)
    place = {"s3://shop-history/orders": str(tmp_path / "archive")}
    with guide("archive.md", places=place, orders=orders, engine=sqlite) as piece:
        piece("feed")
        with sqlite.begin() as connection:
            rows = [{"placed": when, "data": {}} for when in (old, datetime.now(UTC))]
            connection.execute(insert(orders), rows)
        names = piece("seal")
    assert count(sqlite) == 1
    assert len(names["bound"].read(0, FIRST, 5).events) == 2


def test_events_are_erased(shop, sqlite_url, tmp_path):
    """What is named is erased from the archive after a yes; without --erasable nothing is."""
    options = ["--database", sqlite_url, "--table", "orders", "--data", "data", "--id", "id"]
    options += ["--key", "customer", "--archive", tmp_path / "archive"]
    assert invoke("seal", *options).exit_code == 0
    assert invoke("trim", *options, "--below", 11, "--yes").exit_code == 0
    named = ["--event-id", 3, "--event-id", 4, "--event-key", "c6"]
    refused = invoke("erase", *options, *named, "--yes")
    assert refused.exit_code == 2
    assert "erasable" in refused.stderr
    for arguments, complaint in (
        ([*options, "--erasable"], "Say which events"),
        ([*options[:-2], "--event-id", 3], "Say from where"),
    ):
        found = invoke("erase", *arguments, "--yes")
        assert (found.exit_code, complaint in found.stderr) == (2, True), found.stderr
    found = invoke("check", *options[:-2], "--erasable")
    assert "give --archive too" in found.stderr
    unsure = invoke("erase", *options, "--erasable", *named)
    assert "Aborted" in unsure.stderr
    done = invoke("erase", *options, "--erasable", *named, "--yes", "--json")
    assert json.loads(done.stdout) == {"erased": 3}
    again = invoke("erase", *options, "--erasable", *named, "--yes")
    assert again.stdout == "0 events were erased.\n"
    archive = Archive(tmp_path / "archive")
    feed = TableFeed(
        orders, data="data", id="id", key="customer", retention=Retention(), archive=archive
    ).bind(shop)
    assert [event.data["n"] for event in feed.read(0, FIRST, 20).events] == [0, 1, 4, 5, 7, 8, 9]
