"""A log of events and its feed: what is appended is published, in its partition."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
import sqlalchemy as sa
from harness.appended import ORDERED, append, batch, ids, made, published

from zeroeventhub import FIRST, EventLog, Layout, NewEvent
from zeroeventhub.errors import IdReused
from zeroeventhub.partitions import key_hash
from zeroeventhub.wire.new_events import decode_event, encode_event


@pytest.mark.parametrize(("database", "ordering"), ORDERED)
def test_what_is_appended_is_published(request, database, ordering):
    """The feed has every event in its partition, in order, for batches of any size."""
    engine = request.getfixturevalue(database)
    log = made(engine, ordering=ordering)
    events, first = [], 0
    for size in (1, 3, 4):
        events += batch(size, first=first)
        append(engine, log, events[first:])
        first += size
    events += [NewEvent("placed", {"n": n}, id=f"e{n}") for n in range(8, 20)]
    append(engine, log, events[first:])
    expected = {partition: [] for partition in range(8)}
    for one in events:
        expected[key_hash(one.key or one.id) % 8].append(one.data)
    found = log.feed(cloudevents=True).bind(engine).check()
    assert {each.level for each in found if each.subject != "journal"} == {"ok"}
    assert published(log.feed().bind(engine)) == expected


def test_attributes_are_those_of_a_cloudevent(engine, log):
    """The feed knows id, type, key and time, by which readers find and filter events."""
    began = datetime.now(UTC) - timedelta(seconds=5)
    append(engine, log, [NewEvent("placed", {"n": 1}, "ada", "e1"), NewEvent("paid", "text")])
    feed = log.feed(cloudevents="/shop").bind(engine)
    assert {"event-types", "cursor-of-time", "cursor-of-count"} <= feed.info().extensions
    partition = key_hash("ada") % 8
    (found, *_) = feed.read(partition, FIRST, 10).events
    moment = datetime.fromisoformat(found.data.pop("time"))
    assert began < moment < datetime.now(UTC) + timedelta(seconds=5)
    known = {"id": "e1", "source": "/shop", "type": "placed", "partitionkey": "ada"}
    form = {"specversion": "1.0", "datacontenttype": "application/json"}
    assert found.data == known | form | {"data": {"n": 1}}
    assert feed.cursor_at(moment, partition) == feed.cursor_at(began, partition)
    later = feed.cursor_at(moment + timedelta(seconds=1), partition)
    assert later != feed.cursor_at(moment, partition)


class Text(str):
    """A text of another class."""

    __slots__ = ()
    __str__ = __format__ = __repr__ = lambda *_: "another form than its characters"


@pytest.mark.parametrize("count", [1, 3])
def test_text_of_another_class_is_appended_as_it_is(engine, count):
    """A subclass of str, such as NumPy's, is a name in a log, whatever its str() may be."""
    log = made(engine)
    events = [NewEvent(Text("paid"), {}, Text("ada"), Text(f"e{n}")) for n in range(count)]
    append(engine, log, [decode_event(encode_event(one), 1) for one in events])
    append(engine, log, events)
    columns = sa.select(log.table.c.type, log.table.c.key, log.table.c.id)
    with engine.connect() as connection:
        found = connection.execute(columns).all()
    assert found == [("paid", "ada", f"e{n}") for n in range(count)]


def test_log_of_partitions_that_have_changed(any_engine):
    """New events go where a layout puts their keys, and the feed shows old ones there as well."""
    old = made(any_engine, partitions=Layout.of(2))
    append(any_engine, old, [*batch(7), NewEvent("placed", {"n": 7}, id="e7")])
    layout = Layout.of(2).redistribute(by=2)
    new = EventLog(sa.MetaData(), "orders", partitions=layout)
    append(any_engine, new, batch(7, first=8))
    feed, found = new.feed().bind(any_engine), 0
    for partition in layout.info().partitions:
        events = [each.data["n"] for each in feed.read(partition.id, FIRST, 100).events]
        keys = [f"e{n}" if n == 7 else f"c{n % 7}" for n in events]
        assert {layout.partition_of(key) for key in keys} <= {partition.id}
        found += len(events)
    assert found == 15


def test_id_of_another_event_is_refused(engine, log):
    """An id with another type, key or data is refused, and the transaction appends nothing."""
    append(engine, log, batch(2))
    known = batch(1)[0]
    said = {"type": known.type, "data": known.data, "key": known.key, "id": known.id}
    changes = [{"type": "paid"}, {"data": {"n": 1}}, {"key": "other"}, {"key": None}]
    for change, size in product(changes, (1, 4)):
        with pytest.raises(IdReused, match="'e0'"), engine.begin() as connection:
            log.append(connection, [*batch(size - 1, first=10), NewEvent(**(said | change))])
        assert ids(engine, log) == ["e0", "e1"]
