"""Partitions are split in a feed that is trimmed, with registered consumers."""

import pytest
from harness import registered
from harness.shop import orders
from harness.statements import add
from harness.trimmed import of_another_event, position_of, trim

from zeroeventhub import FIRST, Layout, layout_expression
from zeroeventhub.errors import Diverged, Trimmed
from zeroeventhub.partitions import key_hash
from zeroeventhub.publisher import reader

BEFORE = Layout.of(2)
SPLIT = BEFORE.split(0, into=2)
OF_FOUR = {key_hash(f"c{number}") % 4: f"c{number}" for number in range(50)}


def source(layout=SPLIT):
    """Return the feed of a layout, with retention and progress."""
    shown = layout_expression(layout, key=orders.c.customer, written=orders.c.part)
    return registered.source(partition=shown, partitions=layout)


def fill(engine):
    """Place twenty orders, the even ones in partition 0, which is split before number 10."""
    place(engine, range(10), BEFORE)
    place(engine, range(10, 20))


def place(engine, numbers, layout=SPLIT):
    """Place orders; those of partition 0 come to both of its children, or to the second one."""
    rows = []
    for number in numbers:
        customer = OF_FOUR[number % 2 or 2 * (number > 9 or number % 4 > 0)]
        part = layout.partition_of(customer)
        rows.append({"part": part, "customer": customer, "data": {"n": number}})
    add(engine, orders, rows)


def test_end_of_a_closed_partition_holds_no_trim_back(any_shop, any_feed, monkeypatch):
    """A consumer that read on in a partition while its split was deployed ends there at the event
    of another partition: the trim passes that cursor, and it stays valid.
    """
    feed = any_feed
    own = feed.read(0, FIRST, 9).cursor
    with monkeypatch.context() as patch:
        patch.setattr(reader, "QUIET", 10)
        beyond = source(BEFORE.expecting(SPLIT)).bind(any_shop).read(0, own, 9).cursor
    assert (position_of(own), position_of(beyond)) == (9, 20)
    place(any_shop, range(20, 40))
    head = feed.cursor_after(40)
    for partition, cursor in ((0, beyond), (1, head), (2, "1-0"), (3, head)):
        feed.register_progress("billing", partition, cursor)
    assert trim(feed, 30) == 29
    for cursor in (own, beyond):
        page = feed.read(0, cursor, 9)
        assert (page.events, position_of(page.cursor)) == ([], 29)
        feed.register_progress("billing", 0, cursor)
    with pytest.raises(Diverged):
        feed.read(0, of_another_event(own), 9)
    with pytest.raises(Trimmed):
        feed.read(1, beyond, 9)
    assert trim(feed, 32) == 2
