import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Layout
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.layout import HASHES, key_hash

START = Layout.of(2)
SPLIT = START.split(0, into=2)
HANDED_ON = SPLIT.redistribute(by=2)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("split"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("redistribute"), st.just(0), st.integers(2, 3)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
    ),
    max_size=4,
)


def changed(layout, change):
    """Take a step, unless the layout does not allow it."""
    name, partition, count = change
    try:
        match name:
            case "split":
                return layout.split(partition, into=count)
            case "redistribute":
                return layout.redistribute(by=count)
        return layout.drop(partition)
    except ConfigurationError:
        return layout


@given(st.integers(1, 4), steps, st.lists(st.text(max_size=5) | st.integers(), max_size=8))
def test_every_key_has_one_open_partition(partitions, changes, keys):
    """Whatever changes, each key is of one open partition, and children start behind a parent."""
    layout = Layout.of(partitions)
    for change in changes:
        before = layout
        layout = changed(layout, change)
        assert layout.next_id >= before.next_id
    shares = {share.id: share for share in layout.partitions}
    assert len(shares) == len(layout.partitions)
    assert all(number < layout.next_id for number in layout.ids)
    for share in shares.values():
        if share.starts_after is not None:
            assert shares[share.starts_after].closed
            assert shares[share.starts_after].holds(share.remainder)
    for key in keys:
        holding = [one.id for one in shares.values() if not one.closed and one.holds(key_hash(key))]
        assert holding == [layout.partition_of(key)]


def test_hash_is_that_of_a_keys_text():
    """A number has the hash of its digits, and what is neither number nor text has none."""
    assert key_hash(7) == key_hash("7") == 0x8F14E45F
    assert key_hash("å") == 0xE726CC85 < HASHES
    for key in (True, 1.0, None, b"7", "\ud800"):
        with pytest.raises(ConfigurationError):
            key_hash(key)


def test_split_closes_the_parent_for_its_children():
    """The children of a split start after their parent, share its keys, and have no cursors; the
    description of a feed has the partitions, the token and the extensions of its layout.
    """
    parent, other, *children = SPLIT.partitions
    assert (parent.closed, other.closed, SPLIT.next_id) == (True, False, 4)
    assert [(one.id, one.modulus, one.remainder) for one in children] == [(2, 4, 0), (3, 4, 2)]
    assert {(one.starts_after, one.cursor_from, one.closed) for one in children} == {(0, (), False)}
    info = SPLIT.info(exactly_once=False, extensions=["wait"])
    assert [(one.id, one.closed, one.starts_after) for one in info.partitions] == [
        *[(0, True, None), (1, False, None), (2, False, 0), (3, False, 0)]
    ]
    assert (info.token, info.exactly_once, info.extensions) == (SPLIT.token, False, {"wait"})


def test_redistribution_hands_history_and_cursors_on():
    """Each partition has heirs of its keys and cursors, and children start after an heir."""
    facts = [
        (one.id, one.cursor_from, one.starts_after, one.closed) for one in HANDED_ON.partitions
    ]
    assert facts == [
        (4, (0,), None, True),
        (5, (1,), None, False),
        (6, (0,), None, True),
        (7, (1,), None, False),
        (8, (2,), 4, False),
        (9, (3,), 6, False),
        (10, (2,), 4, False),
        (11, (3,), 6, False),
    ]
    again = HANDED_ON.redistribute(by=2).partitions
    assert {one.cursor_from[1:] for one in again} == {(0,), (1,), (2,), (3,)}
    assert [one.id for one in HANDED_ON.heirs(2)] == [8, 10]


def test_hash_alone_places_events_until_a_split():
    """Only where no key's events lie in two partitions does a hash say where they are."""
    assert START.is_by_hash_alone
    assert START.redistribute(by=2).is_by_hash_alone
    assert not SPLIT.is_by_hash_alone
    assert not SPLIT.drop(0).is_by_hash_alone


def test_closed_partition_has_no_new_events():
    """A key whose partition was closed without a successor is refused, and others are not."""
    closed = START.close(0)
    placed = {key: START.partition_of(key) for key in "abcdef"}
    assert {*placed.values()} == {0, 1}
    for key, partition in placed.items():
        if partition == 1:
            assert closed.partition_of(key) == 1
        else:
            with pytest.raises(ConfigurationError, match="was closed"):
                closed.partition_of(key)


def test_dropped_partition_is_passed_over():
    """What started after a dropped partition starts where that one would have."""
    dropped = SPLIT.split(2, into=2).drop(2)
    assert [(one.id, one.starts_after) for one in dropped.partitions] == [
        *[(0, None), (1, None), (3, 0), (4, 0), (5, 0)]
    ]
    assert dropped.ids == {0, 1, 2, 3, 4, 5}
    assert dropped.next_id == 6


def test_what_cannot_be_changed_is_refused():
    """Partitions that are not there, closed, open or divided into nothing are refused."""
    for change in (
        lambda: START.close(2),
        lambda: SPLIT.close(0),
        lambda: SPLIT.split(0, into=2),
        lambda: START.split(0, into=0),
        lambda: START.redistribute(by=1),
        lambda: START.drop(0),
        lambda: Layout.of(32767).split(0, into=2),
        lambda: Layout.of(0),
        lambda: HANDED_ON.expecting(START),
        lambda: START.expecting(HANDED_ON),
    ):
        with pytest.raises(ConfigurationError):
            change()
    assert Layout.of(32767).split(0, into=1).next_id == 32768


def test_layout_that_expects_another_is_seen_as_itself():
    """Room for a later layout's events changes neither equality nor the token, until a change."""
    waiting = START.expecting(SPLIT)
    assert (waiting, waiting.token) == (START, START.token)
    assert (waiting.ids, START.ids) == ({0, 1, 2, 3}, {0, 1})
    assert waiting.close(0).ids == {0, 1}


def test_token_is_of_all_that_a_layout_is():
    """Layouts that came to be in the same way have one token, and every change has its own."""
    again = Layout.of(2).split(0, into=2)
    others = [START, SPLIT, HANDED_ON, START.close(0), SPLIT.drop(0), START.split(1, into=2)]
    assert again.token == SPLIT.token
    assert len({layout.token for layout in others}) == len(others)
