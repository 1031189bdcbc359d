"""How far a micro-batch goes: what a limit leaves to whom, and who has to wait."""

import json
from contextlib import contextmanager

import pytest
from harness.laid_out_feed import ReadFeed
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import feed_routes
from zeroeventhub.protocol import CAUGHT_UP, CURSOR_OF_COUNT, STOP

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install --group spark")

from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Offsets, Range, chains
from zeroeventhub.spark.options import read_options
from zeroeventhub.spark.plan import Plan
from zeroeventhub.spark.range_reader import RangeReader

EXTENSIONS = [(), (STOP, CAUGHT_UP), (STOP, CURSOR_OF_COUNT)]


@pytest.fixture(params=EXTENSIONS, ids=["plain", "stop", "count"])
def feed(request):
    """A feed of three partitions."""
    return ReadFeed(3, frozenset(request.param))


@contextmanager
def planning(feed, **options):
    """Plan a stream of a feed over HTTP."""
    with serving(Starlette(routes=feed_routes("/numbers", feed))) as url:
        found = read_options({"url": f"{url}/numbers", "startingOffsets": "earliest", **options})
        with Connection.to(found) as connection:
            plan = Plan(connection, found)
            plan.url = found.url
            yield plan


def publish(feed, partition, amount):
    """Publish events of a key that is in a partition."""
    key = next(key for key in range(100) if feed.layout.partition_of(key) == partition)
    for _ in range(amount):
        feed.append(key)


def amounts(feed, start, end):
    """Count the events between two offsets, by partition."""
    found = {}
    for chain in chains(start, end):
        for one in chain:
            after = 0 if one.start == "_first" else int(one.start)
            inside = [n for n, _ in feed.shown(one.partition, after) if n <= int(one.stop)]
            found[one.partition] = len(inside)
    return found


@pytest.mark.parametrize(
    ("there", "limit", "shares"),
    [
        ((20, 20, 20), 30, {0: 10, 1: 10, 2: 10}),
        ((2, 20, 0), 12, {0: 2, 1: 10}),
        ((20, 20, 20), 10, {0: 3, 1: 3, 2: 4}),
        ((20, 20, 20), 1, {0: 1, 1: 1, 2: 1}),
        ((5, 0, 9), None, {0: 5, 2: 9}),
    ],
)
def test_limit_is_shared_out(feed, there, limit, shares):
    """What one partition does not have is for others, and no more comes than one of each."""
    with planning(feed) as plan:
        start = plan.begin()
        for partition, amount in enumerate(there):
            publish(feed, partition, amount)
        assert amounts(feed, start, plan.advance(start, limit, None)) == shares


def test_nothing_new_is_no_move(feed):
    """At the head the end of a batch is its start, letter by letter."""
    with planning(feed) as plan:
        publish(feed, 1, 5)
        end = plan.advance(plan.begin(), None, None)
        assert plan.advance(end, None, None).document() == end.document()
        assert plan.advance(end, 10, None).document() == end.document()


def test_child_waits_for_its_parent(feed):
    """A partition is read when the one before it is at its end, and busy ones do not hinder it."""
    with planning(feed) as plan:
        start = plan.begin()
        publish(feed, 0, 6)
        feed.layout = feed.layout.split(0, into=2)
        publish(feed, 3, 4)
        publish(feed, 1, 50)
        end = plan.advance(start, 4, None)
        assert 3 not in end.cursors
        while 3 not in amounts(feed, start, end):
            start, end = end, plan.advance(end, 1, None)
        assert not feed.shown(0, int(end.cursors[0]))


def test_child_that_was_begun_waits_for_its_parent(feed):
    """A partition that offsets name is not read on before the one that it starts after."""
    publish(feed, 0, 6)
    feed.layout = feed.layout.split(0, into=2)
    publish(feed, 3, 4)
    with planning(feed) as plan:
        start = Offsets({0: "0", 1: "0", 2: "0", 3: "0", 4: "0"})
        assert amounts(feed, start, plan.advance(start, 4, None)) == {0: 4}


def test_children_are_read_side_by_side():
    """A chain holds who has to wait in this batch, and nobody waits for what is not read."""
    after = {2: 0, 3: 0}
    start = Offsets({0: "a", 2: "c", 3: "d"}, starts_after=after)
    end = Offsets({0: "a", 2: "e", 3: "f"}, starts_after=after)
    assert chains(start, end) == [[Range(2, "c", "e")], [Range(3, "d", "f")]]
    end = Offsets({0: "b", 2: "e", 3: "f"}, starts_after=after)
    assert chains(start, end) == [[Range(0, "a", "b"), Range(2, "c", "e"), Range(3, "d", "f")]]


@pytest.mark.parametrize("limit", [6, None])
@pytest.mark.parametrize("heeds_limits", [True, False])
def test_range_is_read_as_it_was_planned(feed, heeds_limits, limit):
    """A task has the events of its range, however many have come behind it meanwhile."""
    feed.heeds_limits = heeds_limits
    with planning(feed) as plan:
        start = plan.begin()
        publish(feed, 0, 11)
        end = plan.advance(start, limit, None)
        expected = [n for n, _ in feed.shown(0) if n <= int(end.cursors[0])]
        publish(feed, 0, 11)
        found = [event["n"] for event in events_of(plan, chains(start, end)[0])]
    assert found == expected


@pytest.mark.parametrize(
    "change", [lambda one: one.redistribute(by=2), lambda one: one.split(1, into=2)]
)
def test_partition_that_changes_while_it_is_read(change):
    """A task goes on in whatever partitions its range is to be found by then, each event once."""
    feed = ReadFeed(1, frozenset({STOP, CAUGHT_UP}))
    feed.layout = feed.layout.split(0, into=2)
    read = feed.read

    def read_and_change(*arguments, **options):
        page = read(*arguments, **options)
        if feed.layout.next_id == 3 and len(page.events) > 1:
            feed.layout = change(feed.layout)
        return page

    with planning(feed) as plan:
        start = plan.begin()
        for key in range(20):
            feed.append(key)
        end = plan.advance(start, None, None)
        feed.read = read_and_change
        found = [event["n"] for chain in chains(start, end) for event in events_of(plan, chain)]
    assert feed.layout.next_id > 3
    assert sorted(found) == list(range(1, 21))


def events_of(plan, chain):
    """Read ranges as a task does."""
    options = read_options({"url": plan.url})
    with Connection.to(options) as connection:
        reader = RangeReader(connection, options, with_headers=False)
        pages = [page for one in chain for page in reader.pages(one)]
    return [json.loads(text) for page in pages for text in _texts(page)]


def _texts(page):
    texts = [text for batch in page.page.batches for text in batch[0].to_pylist()]
    return texts[: page.count]


def test_target_leaves_out_what_is_younger():
    """Nothing behind a target is read, and no partition that came after it."""
    feed = ReadFeed(3, frozenset({STOP, CAUGHT_UP}))
    with planning(feed) as plan:
        start = plan.begin()
        publish(feed, 0, 3)
        target = plan.head()
        publish(feed, 0, 3)
        feed.layout = feed.layout.split(1, into=2)
        publish(feed, 3, 3)
        end = plan.advance(start, None, target)
        assert amounts(feed, start, end) == {0: 3}
        assert 3 not in end.cursors
        assert plan.advance(end, None, target).document() == end.document()


def test_feed_that_cannot_stop_has_no_target():
    """Where a feed cannot stop is not asked for."""
    with planning(ReadFeed(3, frozenset())) as plan:
        assert plan.head() is None
