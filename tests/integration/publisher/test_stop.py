"""Reading up to a cursor and no further, over real HTTP."""

import json
import threading
import time

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, feed_routes

PATIENCE = 10


@pytest.fixture
def feed_url(engine):
    """The URL of a feed over an empty table of orders."""
    metadata.create_all(engine)
    feed = TableFeed(orders, data="data", type="kind")
    with serving(Starlette(routes=feed_routes("/orders", feed, engine))) as url:
        yield f"{url}/orders"


def get(url, **parameters):
    """Get a page of FeedAPI v2."""
    parameters = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return httpx.get(f"{url}/events", params=parameters, timeout=PATIENCE)


def page(answer):
    """Return the numbers of a page's events and its checkpoint."""
    assert answer.status_code == 200, answer.text
    *events, checkpoint = map(json.loads, answer.text.splitlines())
    return [event["data"]["n"] for event in events], checkpoint


def cursors(url, count, **parameters):
    """Return the cursors behind the first events, and that before them all."""
    found = ["1-0"]
    for _ in range(count):
        found.append(page(get(url, cursor=found[-1], pagesizehint=1, **parameters))[1]["cursor"])
    return found


def write(engine, count, *, first=0):
    """Append events in a transaction of their own."""
    with engine.begin() as connection:
        place(connection, count, first=first)


def test_page_ends_at_its_stop(feed_url, engine):
    """A page ends with the event at its stop, whose cursor is its checkpoint, and says so."""
    assert "stop" in httpx.get(feed_url).json()["extensions"]
    write(engine, 5)
    known = cursors(feed_url, 5)
    for stop in (0, 1, 3, 5):
        reached = {"cursor": known[stop], "stopReached": True}
        for start in (0, 2, 3, 5):
            numbers, checkpoint = page(get(feed_url, cursor=known[start], stop=known[stop]))
            assert numbers == list(range(start, stop))
            expected = reached if start < stop else {**reached, "cursor": known[start]}
            assert {**checkpoint, "caughtUp": None} == {**expected, "caughtUp": None}
            assert checkpoint.get("caughtUp", False) == (5 in {start, stop} and stop == 5)


def test_bounded_pages_end_exactly(feed_url, engine):
    """Pages of any size lead to the stop, and only the last of them says that it is reached."""
    write(engine, 9)
    stop = cursors(feed_url, 7)[7]
    for size in (1, 3, 6, 7, 8):
        numbers, cursor, reached = [], FIRST, []
        while not any(reached):
            more, checkpoint = page(get(feed_url, cursor=cursor, stop=stop, pagesizehint=size))
            numbers += more
            cursor = checkpoint["cursor"]
            reached.append(checkpoint.get("stopReached", False))
        assert numbers == list(range(7))
        assert cursor == stop
        assert len(reached) == -(-7 // size)


def test_replay_stays_the_same_while_events_are_written(feed_url, engine):
    """A read between two cursors gives the same bytes, whatever is written meanwhile."""
    write(engine, 20)
    known = cursors(feed_url, 15)
    bounds = {"cursor": known[3], "stop": known[15]}
    ended = threading.Event()

    def go_on_writing():
        number = 20
        while not ended.wait(0.005):
            write(engine, 1, first=number)
            number += 1

    writer = threading.Thread(target=go_on_writing)
    writer.start()
    try:
        replays = {get(feed_url, **bounds).content for _ in range(8)}
    finally:
        ended.set()
        writer.join()
    (replay,) = replays
    assert replay.count(b'"data":') == 12


def test_stop_that_is_none_is_refused(feed_url, engine):
    """A stop is a cursor that the feed has given, of a history that it still has."""
    write(engine, 3)
    third = cursors(feed_url, 3)[3]
    forged = third[:-1] + ("0" if third[-1] != "0" else "1")
    for stop, status, kind in [
        (FIRST, 400, "bad-cursor"),
        (LAST, 400, "bad-cursor"),
        ("", 400, "bad-cursor"),
        ("1-x", 400, "bad-cursor"),
        ("\u00e5", 400, "bad-cursor"),
        ([third, third], 400, "bad-request"),
        ("1-4", 410, "diverged"),
        ("2-99-0000-0000000000", 410, "diverged"),
        (forged, 410, "diverged"),
    ]:
        answer = get(feed_url, stop=stop)
        assert (answer.status_code, answer.json()["type"]) == (
            status,
            f"urn:zeroeventhub:problem/{kind}",
        ), stop


def test_stop_and_types_go_together(feed_url, engine):
    """With a filter, a page reaches its stop over events that it does not hold."""
    write(engine, 3)
    with engine.begin() as connection:
        connection.execute(
            insert(orders), [{"kind": "paid", "data": {"n": number}} for number in range(3, 6)]
        )
    stop = cursors(feed_url, 5)[5]
    numbers, checkpoint = page(get(feed_url, stop=stop, **{"event-types": "placed"}))
    assert (numbers, checkpoint) == ([0, 1, 2], {"cursor": stop, "stopReached": True})
    numbers, checkpoint = page(get(feed_url, stop=stop, **{"skip-event-types": "placed"}))
    assert (numbers, checkpoint) == ([3, 4], {"cursor": stop, "stopReached": True})
    numbers, checkpoint = page(get(feed_url, stop=stop, **{"event-types": "lost"}))
    assert (numbers, checkpoint) == ([], {"cursor": stop, "stopReached": True})


def test_read_does_not_wait_at_its_stop(feed_url, engine):
    """A read that has reached its stop is answered at once; one that has not waits for it."""
    write(engine, 2)
    *_, last = cursors(feed_url, 2)
    began = time.monotonic()
    numbers, checkpoint = page(get(feed_url, cursor=last, stop=last, wait=8))
    assert (numbers, checkpoint["stopReached"]) == ([], True)
    assert time.monotonic() - began < 4


def test_stop_may_be_an_event_of_another_partition(engine):
    """Positions are those of all partitions: each of them is read up to the same place."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 9, partitions=3)
    feed = TableFeed(orders, data="data", partition="part", partitions=3).bind(engine)
    stop = feed.read(1, FIRST, 2).cursor  # behind the fifth event
    for partition, expected in [(0, [0, 3]), (1, [1, 4]), (2, [2])]:
        found = feed.read(partition, FIRST, 10, stop=stop)
        assert [event.data["n"] for event in found.events] == expected
        assert (found.cursor, found.stop_reached, found.caught_up) == (stop, True, False)
        again = feed.read(partition, found.cursor, 10, stop=stop)
        assert (list(again.events), again.cursor, again.stop_reached) == ([], stop, True)


def test_last_page_alone_has_caught_up(feed_url, engine):
    """A page says that it has caught up if it holds all that is left, even where it is full."""
    write(engine, 6)
    cursor, seen = FIRST, []
    while True:
        numbers, checkpoint = page(get(feed_url, cursor=cursor, pagesizehint=2))
        cursor = checkpoint["cursor"]
        seen.append((numbers, checkpoint.get("caughtUp", False)))
        if checkpoint.get("caughtUp"):
            break
    assert seen == [([0, 1], False), ([2, 3], False), ([4, 5], True)]
    assert page(get(feed_url, cursor=cursor)) == ([], {"cursor": cursor, "caughtUp": True})
    write(engine, 3, first=6)
    assert "caughtUp" not in page(get(feed_url, cursor=cursor, pagesizehint=2))[1]


def test_page_that_is_cut_for_its_bytes_has_not_caught_up(sqlite):
    """Where large events end a page early, it has not caught up, nor reached a stop behind it."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(
            insert(orders), [{"data": {"n": n, "blob": "x" * 3_000_000}} for n in range(3)]
        )
    feed = TableFeed(orders, data="data").bind(sqlite)
    first = feed.read(0, FIRST, 3)
    second = feed.read(0, first.cursor, 3)
    assert (len(first.events), first.caught_up, first.full) == (2, False, True)
    assert (len(second.events), second.caught_up, second.full) == (1, True, False)
    bounded = feed.read(0, FIRST, 3, stop=second.cursor)
    assert (len(bounded.events), bounded.stop_reached) == (2, False)
