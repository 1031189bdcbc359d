"""What a batch is planned to read: all events between two cursors, in tasks, once."""

from harness.published import install
from harness.shop import orders, write
from harness.spark_reading import Streaming, numbers, planned, read, rows_of
from harness.statements import add, execute, scalars
from harness.trimmed import trim
from sqlalchemy import delete, select

from zeroeventhub import TableFeed
from zeroeventhub.partitions import Layout
from zeroeventhub.publisher.retention import Retention


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
    for part in (0, 1):
        written = select(orders.c.data).where(orders.c.part == part).order_by(orders.c.id)
        of_part = [row["n"] for row in scalars(shop, written) if row["n"] < 5 * 10**6]
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


def test_closed_partition_and_its_children_are_read(shop, publish):
    """A batch has the events of a parent and of the partitions that start after it."""
    layout = Layout.of(2).split(1, into=2)
    add(shop, orders, [{"part": 2 + n % 2, "data": {"n": n}} for n in range(200, 220)])
    with publish(shop, partitions=layout) as url:
        found = read(url, minPartitions=7)
    assert sorted(numbers(found)) == list(range(220))
    assert {row["partition"] for row in found} == {0, 1, 2, 3}


def test_stream_goes_on_after_a_trim_that_has_passed_what_it_planned(shop, publish):
    """With failOnDataLoss=false a stream skips what is gone, though it was planned already."""
    kept = {"retention": Retention()}
    feed = TableFeed(orders, data="data", partition="part", partitions=2, **kept)
    install(feed, shop)
    with publish(shop, **kept) as url:
        driver = Streaming(url, failOnDataLoss="false", minPartitions=4)
        driver.reader.prepareForTriggerAvailableNow()
        start = driver.begin()
        trimmed = driver.end(start, 40)
        write(shop, 100, first=200, partitions=2)
        trim(feed.bind(shop), 251)
        assert driver.numbers(start, trimmed) == []
        target = driver.end(trimmed, 40)
        assert driver.numbers(trimmed, target) == []
        assert driver.end(target, 40) == target
        driver.reader.stop()
        following = Streaming(url, failOnDataLoss="false")
        found = following.numbers(target, following.end(target))
        following.reader.stop()
    assert sorted(found) == [*range(250, 300)]


def test_trim_does_not_pass_a_partition_without_events(shop, publish):
    """Each run of a stream moves all cursors on, so that a trim between two runs loses none."""
    kept = {"retention": Retention()}
    feed = TableFeed(orders, data="data", partition="part", partitions=2, **kept)
    install(feed, shop)
    with publish(shop, **kept) as url:
        write(shop, 100, first=200)
        latest = Streaming(url, startingOffsets="latest")
        at = latest.begin()
        latest.reader.stop()
        for first in (300, 400):
            write(shop, 100, first=first)
            driver = Streaming(url)
            driver.reader.prepareForTriggerAvailableNow()
            start, at = at, driver.end(at, 200)
            assert driver.numbers(start, at) == [*range(first, first + 100)]
            assert driver.end(at, 200) == at
            driver.reader.stop()
            trim(feed.bind(shop), first + 50)


def test_partition_without_events_is_seldom_moved_alone(shop, publish, monkeypatch):
    """What others than the read partitions get makes micro-batches without rows, but few."""
    with publish(shop) as url:
        driver = Streaming(url, partitions="1")
        start = driver.end(driver.begin())
        write(shop, 10, first=200)
        assert driver.end(start) == start
        monkeypatch.setattr("zeroeventhub.spark.source._LONG_QUIET", 0.0)
        end = driver.end(start)
        assert end["cursors"] != start["cursors"]
        assert driver.numbers(start, end) == []
        assert driver.end(end) == end
        driver.reader.stop()
