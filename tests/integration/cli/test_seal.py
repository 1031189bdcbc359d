"""`zeroeventhub seal`."""

import json
import re

import pytest
from harness.command_line import invoke
from harness.shop import orders
from harness.trimmed import numbers

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.retention import Retention

pytestmark = pytest.mark.usefixtures("trimmed")


@pytest.fixture
def options(sqlite_url):
    """The options of the feed."""
    return ["--database", sqlite_url, "--table", "orders", "--data", "data"]


def test_table_is_sealed_trimmed_and_read(options, trimmed, tmp_path):
    """What is sealed may be trimmed, and is served all the same; what is not sealed stays."""
    options += ["--archive", tmp_path / "archive", "--cache", tmp_path / "cache"]
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


def test_what_cannot_be_sealed_is_refused(options, tmp_path):
    """Without a place, with a cache of nothing, or another feed's archive, it ends with 2."""
    archive = ["--archive", tmp_path / "archive"]
    assert invoke("seal", *options, *archive).exit_code == 0
    for command, arguments, complaint in (
        ("seal", [*options], "Say where to seal it"),
        ("seal", [*options, "--archive", "nonsense://place"], "cannot be opened"),
        ("seal", [*options, *archive, "--mutable"], "leave out mutable or archive"),
        ("seal", [*options, *archive, "--columns", "id"], "not both"),
        ("seal", [*options[:-2], *archive], "belongs to another feed"),
        ("check", [*options, "--cache", tmp_path], "of no use without --archive"),
    ):
        found = invoke(command, *arguments)
        assert (found.exit_code, complaint in found.stderr) == (2, True), found.stderr
