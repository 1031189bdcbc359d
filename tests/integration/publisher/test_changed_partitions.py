"""Partitions are split and redistributed in a feed that is trimmed, with registered consumers."""

from pathlib import Path

import pytest
from harness import registered
from harness.shop import orders
from harness.statements import add
from harness.trimmed import numbers, of_another_event, position_of, trim

from zeroeventhub import FIRST, Layout, layout_expression
from zeroeventhub.archive import Archive
from zeroeventhub.errors import ConfigurationError, Diverged, Trimmed
from zeroeventhub.partitions import key_hash
from zeroeventhub.publisher import reader

BEFORE = Layout.of(2)
SPLIT = BEFORE.split(0, into=2)
OF_FOUR = {key_hash(f"c{number}") % 4: f"c{number}" for number in range(50)}


def source(layout=SPLIT, **options):
    """Return the feed of a layout, with retention and progress."""
    shown = layout_expression(layout, key=orders.c.customer, written=orders.c.part)
    return registered.source(partition=shown, partitions=layout, **options)


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


def test_events_that_no_reader_can_see_yet_stay(any_shop):
    """While a split is deployed, a trim ends before the first event of a partition to come."""
    feed = source(BEFORE.expecting(SPLIT)).bind(any_shop)
    plan = feed.plan_trim(below=18)
    assert (plan.until, plan.wanted) == (10, 17)
    assert plan.held_back == (
        "Events above position 10 stay: no reader can see those of partition 3 yet.",
    )
    feed.trim(plan)
    feed = source().bind(any_shop)
    assert numbers(feed, 3) == [*range(10, 20, 2)]
    assert trim(feed, 18) == 7


def test_archived_feed_is_redistributed_once_it_is_restored(any_shop, tmp_path):
    """A table that was trimmed is restored, and sealed into a new archive with other partitions."""
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    for folder in (first, second):
        Path(folder).mkdir()
    feed = source(archive=Archive(first), key="customer").bind(any_shop)
    feed.seal()
    trim(feed, 15)
    after = SPLIT.redistribute(by=2)
    with pytest.raises(ConfigurationError, match="before a change of its table, its partitions"):
        numbers(source(after, archive=Archive(first), key="customer").bind(any_shop), 5)
    changed = source(after, archive=Archive(second), key="customer").bind(any_shop)
    with pytest.raises(ConfigurationError, match="the archive has no events"):
        changed.seal()
    assert feed.restore().written == 14
    assert changed.seal().events == 20
    assert trim(changed, 15) == 14
    found = [n for share in after.partitions for n in numbers(changed, share.id)]
    assert sorted(found) == [*range(20)]


def heirs(layout, partition):
    """The partitions of a layout that have replaced one."""
    return [share.id for share in layout.partitions if partition in share.cursor_from]


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


@pytest.mark.parametrize("times", [1, 2])
def test_heirs_go_on_where_their_parent_was_trimmed(any_shop, any_feed, times):
    """After a redistribution, the cursor at the last trimmed event of a partition is valid in the
    partitions that replace it, and in theirs, also once the feed is trimmed again.
    """
    ends = {one: any_feed.read(one, FIRST, 9).cursor for one in (0, 3)}
    trim(any_feed, 19)
    after = SPLIT
    for _ in range(times):
        after = after.redistribute(by=2)
    feed = source(after).bind(any_shop)
    for below in (19, 20):
        trim(feed, below)
        for parent, end in ends.items():
            for heir in heirs(after, parent):
                assert feed.read(heir, end, 9).events == []
                feed.register_progress("billing", heir, end)
    with pytest.raises(Diverged):
        feed.read(heirs(after, 0)[0], of_another_event(ends[0]), 9)
    with pytest.raises(Trimmed):
        feed.read(heirs(after, 1)[0], ends[0], 9)


def test_trimming_waits_where_heirs_go_on(any_shop):
    """A consumer that stopped before a redistribution keeps what it will read in the heirs, also
    below the mark, and what it has registered of the partitions that are gone holds back nothing
    once it has registered their heirs.
    """
    feed = source().bind(any_shop)
    feed.register_progress("billing", 0, feed.read(0, FIRST, 9).cursor)
    feed.register_progress("billing", 1, feed.cursor_after(14))
    assert trim(feed, 18) == 10
    after = SPLIT.redistribute(by=2)
    feed = source(after).bind(any_shop)
    plan = feed.plan_trim(below=18)
    assert (plan.first, plan.until) == (None, 10)
    gone = (*heirs(after, 1), *heirs(after, 3))
    assert sorted(n for heir in gone for n in numbers(feed, heir)) == [*range(10, 20)]
    for heir in (share.id for share in after.partitions):
        assert feed.plan_trim(below=18).until < 17
        feed.register_progress("billing", heir, feed.cursor_after(20))
    assert feed.plan_trim(below=18).held_back == ()
    assert trim(feed, 18) == 7
