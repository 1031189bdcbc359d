"""`zeroeventhub progress`, and what `zeroeventhub sync` registers."""

import json

import pytest
from harness.command_line import invoke
from harness.shop import orders
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention


def test_consumers_are_listed_and_forgotten(trimmed, sqlite_url):
    """A consumer that has registered is listed with what lies behind it, holds trimming back, and
    is forgotten on request.
    """
    options = ["--database", sqlite_url, "--table", "orders", "--partition", "part"]
    source = TableFeed(
        orders, partition="part", partitions=2, retention=Retention(), progress=Progress()
    )
    feed = source.bind(trimmed)
    feed.register_progress("billing", 0, feed.cursor_after(4), principal="ada")
    feed.register_progress("audit", 1, feed.cursor_after(10))
    listed = invoke("progress", "list", *options)
    assert listed.exit_code == 0, listed.stderr
    lines = [line.split() for line in listed.stdout.splitlines()]
    assert lines[0] == ["consumer", "principal", "partition", "events", "behind", "heard"]
    assert lines[1][:4] == ["audit", "-", "1", "0"]
    assert lines[2][:4] == ["billing", "ada", "0", "3"]
    listed = json.loads(invoke("progress", "list", *options, "--json").stdout)
    events = {one["consumer"]: one["lag"]["events"] for one in listed}
    assert events == {"audit": 0, "billing": 3}
    held = invoke("trim", *options, "--below", 9, "--dry-run")
    assert "Consumer 'billing' of 'ada' keeps what lies above position 4" in held.stdout
    forgetting = ["progress", "forget", *options, "--consumer", "billing", "--yes"]
    found = invoke(*forgetting, "--principal", "bob", "--json")
    assert json.loads(found.stdout) == {"consumer": "billing", "places": 0}
    assert invoke(*forgetting).stdout == "Places that are forgotten: 1\n"
    held = invoke("trim", *options, "--below", 9, "--dry-run", "--silence", "1d")
    assert held.stdout.startswith("8 events would go")


@pytest.mark.usefixtures("shop")
def test_feed_that_keeps_no_progress_is_refused(sqlite_url):
    """A feed without a table of progress has no consumers to list."""
    options = ["--database", sqlite_url, "--table", "orders"]
    assert invoke("progress", "list", *options).exit_code == 2


def test_sync_registers_what_has_landed(trimmed, tmp_path):
    """The command that lands a feed in a table tells its publisher, if it is asked to."""
    source = TableFeed(orders, data="data", progress=Progress())
    into = f"sqlite:///{tmp_path}/copy.db"
    with serving(Starlette(routes=feed_routes("/orders", source, trimmed))) as url:
        for consumer, flags in (("silent", []), ("heard", ["--register-progress"])):
            options = ["--into", into, "--table", consumer, "--consumer", consumer, *flags]
            assert invoke("sync", f"{url}/orders", *options).exit_code == 0
    (one,) = source.bind(trimmed).registered()
    assert (one.consumer, one.cursor) == ("heard", source.bind(trimmed).cursor_after(10))
