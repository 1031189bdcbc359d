"""What a batch is planned to read: everything between two places, in tasks, once."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from harness.shop import orders, write
from harness.spark_reading import Streaming, numbers, planned, read, rows_of
from harness.statements import execute, scalars
from sqlalchemy import delete, insert, select

from zeroeventhub import FIRST, LAST, errors
from zeroeventhub.partitions import Layout


@pytest.fixture
def url(shop, publish):
    """The URL of the shop's feed."""
    with publish(shop) as url:
        yield url


def test_tasks_divide_the_history_while_it_is_written(shop, publish, writing):
    """Each event that was settled at planning is in one task, and none that was written later."""
    with publish(shop) as url, writing(shop, (0, 1), 10**6):
        before = {row["n"] for row in scalars(shop, select(orders.c.data))}
        reader, tasks = planned(url, minPartitions=15, pageSize=50)
        write(shop, 5, first=5 * 10**6, partitions=2)
        found = [numbers(rows_of(reader, [task])) for task in tasks]
        again = [numbers(rows_of(reader, [task])) for task in reversed(tasks)]
    assert len(tasks) >= 15
    assert again == found[::-1]
    everything = [number for part in found for number in part]
    assert before <= set(everything)
    assert max(everything) < 5 * 10**6
    with shop.connect() as connection:
        for part in (0, 1):
            written = select(orders.c.data).where(orders.c.part == part).order_by(orders.c.id)
            of_part = [row["n"] for row in connection.scalars(written) if row["n"] < 5 * 10**6]
            of_tasks = [number for number in everything if number in set(of_part)]
            assert of_part[: len(of_tasks)] == of_tasks


def test_one_partition_is_read_by_several_tasks(shop, publish):
    """One partition falls into tasks of about the same size; an empty feed is one task."""
    with publish(shop, partition=None, partitions=None) as url:
        reader, tasks = planned(url, minPartitions=4)
        parts = [numbers(rows_of(reader, [task])) for task in tasks]
        assert len(parts) >= 4
        assert [number for part in parts for number in part] == list(range(200))
        assert min(map(len, parts)) > 20
        execute(shop, delete(orders))
        reader, tasks = planned(url, minPartitions=4)
        assert (len(tasks), rows_of(reader, tasks)) == (1, [])


def test_batch_ends_where_offsets_say(shop, url):
    """What one batch ended with, another starts with: nothing lies between, and nothing twice."""
    driver = Streaming(url, startingOffsets="latest")
    ends = driver.begin()["cursors"]
    driver.reader.stop()
    write(shop, 10, first=200, partitions=2)

    def found(**options):
        return sorted(numbers(read(url, **options)))

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
    with pytest.raises(errors.ConfigurationError, match="partition 1"):
        planned(url, startingOffsets=json.dumps({"0": FIRST}))


def test_batch_is_between_two_moments(shop, publish):
    """Moments choose events by the feed's own times, of all partitions or of single ones."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [
        {"part": n % 2, "data": {"n": n}, "placed": begin + timedelta(minutes=n)}
        for n in range(200)
    ]
    with shop.begin() as connection:
        connection.execute(delete(orders))
        connection.execute(insert(orders), moments)

    def at(minute):
        return int((begin + timedelta(minutes=minute)).timestamp() * 1000)

    with publish(shop, time="placed") as url:
        found = read(url, startingTimestamp=at(50), endingTimestamp=at(150), minPartitions=3)
        assert sorted(numbers(found)) == list(range(50, 150))
        found = read(url, startingOffsetsByTimestamp=json.dumps({"0": at(190), "1": at(195)}))
        assert sorted(numbers(found)) == [190, 192, 194, 195, 196, 197, 198, 199]
        found = read(url, endingOffsetsByTimestamp=json.dumps({"1": at(4)}), endingTimestamp=at(2))
        assert sorted(numbers(found)) == [0, 1, 3]
        with pytest.raises(errors.ConfigurationError, match="none for 1"):
            planned(url, startingOffsetsByTimestamp=json.dumps({"0": at(1)}))


def test_closed_partition_and_its_children_are_read(shop, publish):
    """A batch has the events of a parent and of the partitions that start after it."""
    layout = Layout.of(2).split(1, into=2)
    with shop.begin() as connection:
        rows = [{"part": 2 + n % 2, "data": {"n": n}} for n in range(200, 220)]
        connection.execute(insert(orders), rows)
    with publish(shop, partitions=layout) as url:
        found = read(url, minPartitions=7)
    assert sorted(numbers(found)) == list(range(220))
    assert {row["partition"] for row in found} == {0, 1, 2, 3}
