"""`zeroeventhub erase`."""

import json

from harness.command_line import invoke
from harness.shop import orders
from harness.trimmed import numbers

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.publisher.retention import Retention


def test_events_are_erased(trimmed, sqlite_url, tmp_path):
    """What is named is erased from the archive after a yes; without --erasable nothing is."""
    table = ["--database", sqlite_url, "--table", "orders", "--data", "data", "--id", "id"]
    table += ["--key", "customer"]
    options = [*table, "--archive", tmp_path / "archive"]
    assert invoke("seal", *options).exit_code == 0
    assert invoke("trim", *options, "--below", 11, "--yes").exit_code == 0
    named = ["--event-id", 3, "--event-id", 4, "--event-key", "c1"]
    for command, arguments, complaint in (
        ("erase", [*options, *named], "erasable"),
        ("erase", [*options, "--erasable"], "Say which events"),
        ("erase", [*table, "--event-id", 3], "Say from where"),
        ("check", [*table, "--erasable"], "give --archive too"),
    ):
        found = invoke(command, *arguments, *(["--yes"] if command == "erase" else []))
        assert (found.exit_code, complaint in found.stderr) == (2, True), found.stderr
    assert "Aborted" in invoke("erase", *options, "--erasable", *named).stderr
    done = invoke("erase", *options, "--erasable", *named, "--yes", "--json")
    assert json.loads(done.stdout) == {"erased": 3}
    again = invoke("erase", *options, "--erasable", *named, "--yes")
    assert again.stdout == "0 events were erased.\n"
    given = {"id": "id", "key": "customer", "archive": Archive(tmp_path / "archive")}
    feed = TableFeed(orders, data="data", retention=Retention(), **given).bind(trimmed)
    assert numbers(feed) == [10, 9, 6, 5, 4, 3, 2]
