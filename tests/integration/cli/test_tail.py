"""`zeroeventhub discover` and `zeroeventhub tail`."""

import json

from harness.command_line import invoke
from harness.shop import orders, write
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

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


TENS = list(range(9, 100, 10))  # the numbers of the orders that are paid


def numbers(result):
    """The numbers of the orders that were printed, a line of JSON each."""
    return [json.loads(line)["data"]["n"] for line in result.stdout.splitlines()]


def test_tail_prints_events_and_nothing_else(feed):
    """Tail prints every event as a line of JSON; nothing else is on stdout or stderr."""
    shown = invoke("tail", feed)
    assert sorted(numbers(shown)) == list(range(100))
    assert (shown.stderr, shown.exit_code) == ("", 0)


def test_tail_ends_at_the_head_though_more_comes_all_the_time(shop):
    """Where each request finds another event, tail prints what was there, and ends."""
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


def test_tail_starts_and_stops_where_it_is_asked_to(feed):
    """Tail reads one partition, from a cursor, up to a number of events."""
    cursor = "1-50"
    assert numbers(invoke("tail", feed, "--partition", 1, "--from", cursor, "--limit", 3)) == [
        *(51, 53, 55)
    ]
    assert numbers(invoke("tail", feed, "--limit", 7)) == list(range(0, 14, 2))
    assert invoke("tail", feed, "--from", "last").stdout == ""
    refused = invoke("tail", feed, "--from", cursor)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--partition" in refused.stderr


def test_tail_prints_the_types_that_it_is_asked_for(feed):
    """Tail prints events of some types, or all others; case does not matter."""
    assert sorted(numbers(invoke("tail", feed, "--event-type", "PAID"))) == TENS
    others = invoke("tail", feed, "--skip-event-type", "paid", "--skip-event-type", "nothing")
    assert sorted(numbers(others)) == [n for n in range(100) if n not in TENS]
    both = invoke("tail", feed, "--event-type", "paid", "--event-type", "placed", "--limit", 60)
    assert len(numbers(both)) == 60
    assert invoke("tail", feed, "--event-type", "nothing").stdout == ""


def test_tail_starts_at_a_moment(feed):
    """Tail prints what is of a moment or later, in every partition or in one."""
    shown = invoke("tail", feed, "--since", "2026-01-31T12:01:30Z")
    assert sorted(numbers(shown)) == list(range(90, 100)), shown.stderr
    one = invoke("tail", feed, "--since", "2026-01-31T13:01:30+01:00", "--partition", 1)
    assert numbers(one) == [91, 93, 95, 97, 99]
    assert invoke("tail", feed, "--since", "2026-02-01T00:00:00Z").stdout == ""
    assert len(numbers(invoke("tail", feed, "--since", "2020-01-01T00:00:00Z"))) == 100
