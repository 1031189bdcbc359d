"""A task reads exactly the events that were planned, whatever happens meanwhile."""

import json
from itertools import count
from types import SimpleNamespace

import pytest
from harness.laid_out_feed import ReadFeed
from harness.peer import peer_python, run_peer
from harness.readers import mounted
from harness.shop import orders
from harness.spark_reading import numbers, planned, read, rows_of
from sqlalchemy import select, update

from zeroeventhub import FeedInfo, Page, TableFeed, errors
from zeroeventhub.extensions import EVENT_TYPES, STOP

__all__ = ["peer_python"]


def numbered(*extensions, partitions=2):
    """A feed of sixty events, of which a page has at most four."""
    feed = ReadFeed(partitions, frozenset(extensions))
    for number in range(60):
        feed.append(number % 17)
    return feed


@pytest.mark.parametrize("requests", [0, 1, 8])
def test_layout_changes_before_and_in_a_task(requests):
    """The rest of a replaced partition is read from its heirs, once."""
    feed = numbered(STOP)
    info, left = feed.info, count(requests, -1)

    def info_and_change():
        if next(left) == 0:
            feed.layout = feed.layout.redistribute(by=2).redistribute(by=3)
        return info()

    with mounted(feed) as url:
        reader, tasks = planned(url)
        feed.info = info_and_change
        assert sorted(numbers(rows_of(reader, tasks))) == list(range(1, 61))
    assert next(left) < 0


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("change", ["split", "redistribute"])
def test_process_with_an_older_layout_than_the_plan(change, fails):
    """A task asks again if a process of the feed does not show its partition yet; none is lost."""
    feed = numbered(STOP)
    older = feed.layout
    newer = older.split(0, into=2) if change == "split" else older.redistribute(by=2)
    feed.layout = newer
    for number in range(60):
        feed.append(number % 17)
    with mounted(feed) as url:
        reader, tasks = planned(url, failOnDataLoss=fails)
        found = []
        for task in tasks:
            answers = [older.info(extensions={STOP})]
            feed.info = lambda left=answers: left.pop() if left else newer.info(extensions={STOP})
            found += numbers(rows_of(reader, [task]))
        assert sorted(found) == list(range(1, 121))


@pytest.mark.parametrize(("size", "heeds_limits"), [(1000, True), (3, True), (3, False)])
def test_feed_that_cannot_stop_is_read_by_count(size, heeds_limits):
    """A feed without extensions is read up to where it was planned, even if it ignores sizes."""
    feed = numbered()
    feed.heeds_limits = heeds_limits
    for number in range(60, 63):
        feed.append(number % 17)
    with mounted(feed) as url:
        reader, tasks = planned(url, pageSize=size, minPartitions=4)
        # The head of a partition moves on with events of others.
        for _ in range(30):
            feed.append(0)
        for _ in range(2):
            assert sorted(numbers(rows_of(reader, tasks))) == list(range(1, 64))
        with pytest.raises(errors.ConfigurationError, match=r"stop: leave out endingOffsets"):
            planned(url, endingOffsets=json.dumps({"0": "7", "1": "7"}))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda feed: feed.rows.insert(0, feed.rows[0]), errors.ProtocolError),
        (lambda feed: setattr(feed, "layout", feed.layout.redistribute(by=2)), errors.Gone),
    ],
    ids=["cut elsewhere", "partition gone"],
)
def test_count_that_leads_elsewhere_is_told(change, error):
    """If the counted events are no longer where they were, the read fails."""
    feed = numbered()
    with mounted(feed) as url:
        reader, tasks = planned(url)
        change(feed)
        with pytest.raises(error, match=r"other cursors|Partition \d of the feed is gone"):
            rows_of(reader, tasks)


@pytest.mark.parametrize("is_behind", [False, True], ids=["fails", "is behind"])
def test_feed_is_asked_again_as_often_as_options_say(is_behind):
    """A feed that fails or lags is asked again; too many failures in a row end the task."""
    feed = numbered(STOP, partitions=1)
    whole, troubles = feed.read, []

    def read(partition, cursor, limit, *, stop=None):
        if cursor not in troubles:
            return whole(partition, cursor, limit, stop=stop)
        troubles.remove(cursor)
        if is_behind:
            return Page([], cursor)
        raise errors.Unavailable("Not now.")

    with mounted(feed) as url:
        reader, tasks = planned(url, attempts=2)
        feed.read = read
        troubles += ["4", "8"]
        assert numbers(rows_of(reader, tasks)) == list(range(1, 61))
        assert not troubles
        troubles += ["8"] * 2
        sentence = "lacks events of partition 0" if is_behind else "Not now"
        with pytest.raises(errors.Unavailable, match=sentence):
            rows_of(reader, tasks)
    assert not troubles


@pytest.mark.test_all
def test_published_peer_is_read_once(peer_python):
    """A feed of ZeroEventHub v1 is read with its headers, however small the pages are."""
    process = run_peer(peer_python, "server.py")
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}/feed/v1"
        for size in (4, 100):
            rows = read(url, v1Partitions=2, pageSize=size, includeHeaders="true")
            found = sorted((row["partition"], json.loads(row["data"])["n"]) for row in rows)
            assert found == [(part, n) for part in range(2) for n in range(25)]
            assert all(dict(row["headers"]) for row in rows)
    finally:
        process.terminate()
        process.communicate(timeout=200)


@pytest.mark.parametrize("extensions", [None, (), (EVENT_TYPES,)], ids=["all", "none", "types"])
def test_types_are_chosen_by_the_feed_or_here(shop, extensions):
    """Events of other types are left out, whether the feed can filter or not."""
    with shop.begin() as connection:
        connection.execute(update(orders).where(orders.c.id % 3 == 0).values(kind="paid"))
        connection.execute(update(orders).where(orders.c.id % 3 == 1).values(kind=None))
        kinds = dict(connection.execute(select(orders.c.id, orders.c.kind)).all())
    columns = {"partition": "part", "type": "kind", "data": "data"}
    feed = TableFeed(orders, partitions=2, cloudevents="/shop", **columns).bind(shop)
    if extensions is not None:
        info = feed.info()
        bare = FeedInfo(info.partitions, info.token, extensions=frozenset(extensions))
        feed = SimpleNamespace(info=lambda: bare, read=feed.read)
    with mounted(feed) as url:
        for option, names, wanted in [
            ("eventTypes", "PAID", {"paid"}),
            ("skipEventTypes", "paid;other", {"placed", None}),
        ]:
            rows = read(url, **{option: names}, minPartitions=4)
            expected = [str(identity) for identity, kind in kinds.items() if kind in wanted]
            assert sorted(row["id"] for row in rows) == sorted(expected)
