"""`zeroeventhub compact`, and the options of a compacted feed."""

import json
import re

import httpx
import pytest
from harness.command_line import invoke, started
from harness.shop import orders
from sqlalchemy import func, insert, select


@pytest.fixture
def options(sqlite_url):
    """The options of a feed with keys."""
    return ["--database", sqlite_url, "--table", "orders", "--time", "placed", "--key", "customer"]


TOMBSTONE = ["--tombstone", "kind = 'gone'"]


def test_table_is_compacted(trimmed, options):
    """Of each key the last event stays; a word that is no SQL is refused."""
    with trimmed.begin() as connection:
        for customer in ("ada", "bob", "ada"):
            row = {"customer": customer, "kind": "placed", "placed": func.now(), "data": {}}
            connection.execute(insert(orders).values(row))
    found = invoke("compact", *options, "--older-than", "1d", "--yes")
    assert found.stdout == "0 events are gone.\n", found.stderr
    refused = invoke("compact", *options, "--tombstone", "nonsense here", "--yes")
    assert refused.exit_code == 1
    assert re.fullmatch(r"Error: The feed's .*\.\n", refused.stderr)
    assert "give key" in invoke("compact", *options[:-2], "--yes").stderr
    found = invoke("compact", *options, *TOMBSTONE, "--yes", "--json")
    assert json.loads(found.stdout) == {"deleted": 1}
    with trimmed.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(orders)) == 12


@pytest.mark.usefixtures("trimmed")
def test_table_that_is_compacted_is_served_as_one(options):
    """With --compacted the feed announces it, and no page may be kept for ever; without it, full
    pages may.
    """
    compacted = ["--compacted", *TOMBSTONE, "--keep-tombstones", "30d"]
    for more in ([], compacted):
        with started("serve", *options, *more, "--port", 0) as process:
            url = re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
            asked = {"token": 1, "partition": 0, "cursor": "1-0", "pagesizehint": 2}
            page = httpx.get(f"{url}/events", params=asked)
            assert ("immutable" in page.headers["cache-control"]) is not bool(more)
            assert ("compacted" in httpx.get(url).json()["extensions"]) is bool(more)
    for command in (["check"], ["trim", "--below", 1, "--dry-run"], ["compact", "--yes"]):
        found = invoke(*command, *options, *compacted)
        assert found.exit_code == 0, found.stderr


@pytest.mark.usefixtures("shop")
def test_what_cannot_be_compacted_is_refused(options):
    """A compacted feed has a key and a mark, and one that is not compacted has no tombstones."""
    for arguments, complaint in (
        ([*options, "--compacted"], "has no row of feed 'orders.id'"),
        ([*options[:-2], "--compacted"], "give key"),
        ([*options, *TOMBSTONE], "give --compacted too"),
        ([*options, "--keep-tombstones", "30d"], "give --compacted too"),
    ):
        found = invoke("serve", *arguments)
        assert (found.exit_code, complaint in found.stderr) == (2, True), found.stderr
