"""Where a batch starts and ends: offsets, and moments."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from harness.laid_out_feed import ReadFeed
from harness.readers import TOKEN, mounted
from harness.shop import metadata, orders, write
from harness.spark_reading import Streaming, numbers, planned, read
from harness.statements import add, execute
from sqlalchemy import delete

from zeroeventhub import FIRST, LAST, Principal, TableFeed, bearer_tokens, errors, read_arrow
from zeroeventhub.extensions import STOP


def test_batch_ends_where_offsets_say(shop, publish):
    """A batch that starts where another ended repeats and omits nothing."""

    def found(**options):
        return sorted(numbers(read(url, **options)))

    with publish(shop) as url:
        driver = Streaming(url, startingOffsets="latest")
        ends = driver.begin()["cursors"]
        driver.reader.stop()
        write(shop, 10, first=200, partitions=2)
        text = json.dumps(ends)
        assert found(endingOffsets=text, minPartitions=3) == list(range(200))
        assert found(startingOffsets=text) == list(range(200, 210))
        assert found(startingOffsets=text, endingOffsets=text) == []
        whole = json.dumps({"token": "another", "cursors": ends | {"0": FIRST}})
        assert found(startingOffsets=whole) == sorted([*range(0, 210, 2), *range(201, 210, 2)])
        assert found(startingOffsets="latest") == []
        assert found(startingOffsets=json.dumps({"0": LAST, "1": LAST})) == []
        assert found(endingOffsets=json.dumps({"1": ends["1"]})) == list(range(1, 200, 2))
        assert found(partitions="1", startingOffsets="earliest") == list(range(1, 210, 2))
        assert found(partitions="0", startingOffsets=json.dumps({"0": LAST})) == []
        with pytest.raises(errors.ConfigurationError, match=r"startingOffsets .*partition 1"):
            planned(url, startingOffsets=json.dumps({"0": FIRST}))
        with pytest.raises(errors.ConfigurationError, match=r"no partition 7.*option partitions"):
            planned(url, partitions="1,7")


def test_batch_is_between_two_moments(shop, publish):
    """Moments choose events by the feed's own times, of all partitions or of single ones."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [
        {"part": n % 2, "data": {"n": n}, "placed": begin + timedelta(minutes=n)}
        for n in range(200)
    ]
    execute(shop, delete(orders))
    add(shop, orders, moments)

    def at(minute):
        return int((begin + timedelta(minutes=minute)).timestamp() * 1000)

    with publish(shop, time="placed") as url:
        found = read(url, startingTimestamp=at(50), endingTimestamp=at(150), minPartitions=3)
        assert sorted(numbers(found)) == list(range(50, 150))
        found = read(url, startingOffsetsByTimestamp=json.dumps({"0": at(190), "1": at(195)}))
        assert sorted(numbers(found)) == [190, 192, 194, 195, 196, 197, 198, 199]
        found = read(url, endingOffsetsByTimestamp=json.dumps({"1": at(4)}), endingTimestamp=at(2))
        assert sorted(numbers(found)) == [0, 1, 3]
        with pytest.raises(errors.ConfigurationError, match=r"OffsetsByTimestamp .*partition 1"):
            planned(url, startingOffsetsByTimestamp=json.dumps({"0": at(1)}))


def test_feed_without_times_is_not_asked_for_them():
    """If the feed cannot find cursors by time, the error names options that do without it."""
    refused = pytest.raises(errors.ConfigurationError, match="startingOffsets and endingOffsets")
    with mounted(ReadFeed(1, frozenset({STOP}))) as url, refused:
        planned(url, endingTimestamp=1)


def test_stream_passes_many_events_that_its_reader_may_not_see(sqlite):
    """A reader of one type gets its events, however many of other types are before them."""
    metadata.create_all(sqlite)
    hidden = 50_001  # the feed examines one less for an answer
    kinds = ["secret"] * hidden + ["paid"] * 3
    add(sqlite, orders, [{"kind": kind, "data": {"n": n}} for n, kind in enumerate(kinds)])
    feed = TableFeed(orders, data="data", type="kind", cursor_secret="0123456789abcdef")
    reader = bearer_tokens({TOKEN: Principal(name="reader", types={"paid"})})
    with mounted(feed, sqlite, authorize=reader) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN", TOKEN)
        driver = Streaming(url, bearerTokenEnv="TOKEN")
        start = driver.begin()
        assert driver.numbers(start, driver.end(start)) == [hidden, hidden + 1, hidden + 2]
        driver.reader.stop()


@pytest.mark.parametrize(("counted", "found"), [(1000, 100), (100, 100), (20, 100)])
def test_events_are_counted_or_estimated(shop, publish, monkeypatch, counted, found):
    """If a feed counts no further, one of many pieces is counted in place of all events."""
    monkeypatch.setattr("zeroeventhub.bulk.boundaries.MOST_COUNTED", counted)
    monkeypatch.setattr("zeroeventhub.bulk.boundaries._SAMPLED", 10)
    told = []
    with publish(shop) as url:
        read_arrow(url, partitions=[1], progress=lambda *one: told.append(one)).reader.read_all()
    assert told[-1] == (100, found)
