"""Layouts that change in any way keep every key, every line of cursors and every order."""

from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zeroeventhub import FeedInfo, Layout, Partition
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.partitions import HASHES, key_hash

CHOICES = st.integers(0, 1000)
SOME_KEYS = [f"customer-{number}" for number in range(40)]
MOST = 150  # how many ids a test may use up


class ChangedLayout(RuleBasedStateMachine):
    """Change a layout in any way, and remember how each partition came to be."""

    @initialize(partitions=st.integers(1, 5))
    def start(self, partitions):
        self.layout = Layout.of(partitions)
        self.made_from = dict.fromkeys(range(partitions))
        self.parents = dict.fromkeys(range(partitions))
        self.tokens = {self.layout.token: self.layout}
        self.written = []
        self.write()

    def change(self, layout):
        assert layout.token not in self.tokens
        self.tokens[layout.token] = layout
        assert layout.next_id >= self.layout.next_id
        assert all(number < layout.next_id for number in layout.ids)
        self.layout = layout
        self.write()

    def write(self):
        self.written += [(key, self.layout.partition_of(key)) for key in SOME_KEYS]

    @rule(choice=CHOICES, into=st.integers(1, 3))
    @precondition(lambda self: self.layout.next_id < MOST)
    def split(self, choice, into):
        before = self.layout
        candidates = [share.id for share in before.partitions if not share.closed]
        parent = candidates[choice % len(candidates)]
        self.change(before.split(parent, into=into))
        children = [share for share in self.layout.partitions if share.id >= before.next_id]
        assert len(children) == into
        self.made_from |= {child.id: None for child in children}
        self.parents |= {child.id: parent for child in children}

    @rule(by=st.integers(2, 3))
    @precondition(lambda self: self.layout.next_id < MOST)
    def redistribute(self, by):
        before = {share.id: share for share in self.layout.partitions}
        self.change(self.layout.redistribute(by=by))
        assert before.keys().isdisjoint(share.id for share in self.layout.partitions)
        assert len(self.layout.partitions) == by * len(before)
        for share in self.layout.partitions:
            origin = before[share.cursor_from[0]]
            assert share.closed is origin.closed
            assert origin.holds(share.remainder)
            assert share.modulus == by * origin.modulus
            self.made_from[share.id] = origin.id
            waits_for = self.parents[origin.id]
            assert (share.starts_after is None) is (waits_for is None)
            self.parents[share.id] = share.starts_after

    @rule(choice=CHOICES)
    @precondition(lambda self: any(share.closed for share in self.layout.partitions))
    def drop(self, choice):
        candidates = [share for share in self.layout.partitions if share.closed]
        gone = candidates[choice % len(candidates)]
        self.change(self.layout.drop(gone.id))
        for child, parent in self.parents.items():
            if parent == gone.id:
                self.parents[child] = gone.starts_after

    @rule()
    def expect(self):
        """A layout that expects another's events is the same layout, until it changes."""
        later = self.layout.split(self.layout.partition_of("a"), into=2)
        expecting = self.layout.expecting(later)
        assert (expecting, expecting.token) == (self.layout, self.layout.token)
        assert expecting.ids == later.ids
        assert expecting.redistribute(by=2).ids == self.layout.redistribute(by=2).ids

    @invariant()
    def every_key_has_one_open_partition(self):
        """The open partitions share all hashes, and no two have a key in common."""
        shares = [share for share in self.layout.partitions if not share.closed]
        assert sum(Fraction(1, share.modulus) for share in shares) == 1
        for key in SOME_KEYS:
            (owner,) = (share.id for share in shares if share.holds(key_hash(key)))
            assert self.layout.partition_of(key) == owner

    @invariant()
    def every_event_is_in_one_partition(self):
        """An event is shown in one partition, wherever it was written, or was dropped with one."""
        for key, written in self.written:
            heirs = self.layout.heirs(written)
            (shown,) = (share.id for share in heirs if share.holds(key_hash(key)))
            assert shown in self.layout.ids

    @invariant()
    def lines_of_ancestors_are_right(self):
        """Cursors come from the nearest ancestor first, up to the first, and from no other."""
        for share in self.layout.partitions:
            line = []
            ancestor = self.made_from[share.id]
            while ancestor is not None:
                line.append(ancestor)
                ancestor = self.made_from[ancestor]
            assert share.cursor_from == tuple(line)

    @invariant()
    def children_wait_for_closed_parents(self):
        """A child starts after an older, closed partition that had all of its keys before."""
        known = {share.id: share for share in self.layout.partitions}
        for share in known.values():
            assert share.starts_after == self.parents[share.id]
            if share.starts_after is not None:
                parent = known[share.starts_after]
                assert parent.closed
                assert parent.id < share.id
                assert parent.holds(share.remainder)
                assert share.modulus % parent.modulus == 0

    @invariant()
    def tokens_belong_to_layouts(self):
        """The same layout has the same token in every process, and no other layout has it."""
        same = [token for token, layout in self.tokens.items() if layout == self.layout]
        assert same == [self.layout.token]


TestChangedLayout = ChangedLayout.TestCase
TestChangedLayout.settings = settings(max_examples=20, stateful_step_count=10)


def test_hash_is_that_of_a_keys_text():
    """A number has the hash of its digits, and what is neither number nor text has none."""
    assert key_hash(7) == key_hash("7") == 0x8F14E45F
    assert key_hash("å") == 0xE726CC85 < HASHES
    for key in (True, 1.0, None, b"7", "\ud800"):
        with pytest.raises(ConfigurationError):
            key_hash(key)


def test_layout_is_shown_to_readers():
    """A new layout is that of a number; splits close parents, redistributions hand cursors on."""
    start = Layout.of(2)
    assert start.info() == FeedInfo(FeedInfo.of(2).partitions, start.token)
    assert [start.partition_of(key) for key in SOME_KEYS] == [
        key_hash(key) % 2 for key in SOME_KEYS
    ]
    split = start.split(0, into=2)
    assert split.info().partitions == (
        Partition(0, closed=True),
        Partition(1),
        Partition(2, starts_after=0),
        Partition(3, starts_after=0),
    )
    assert split.redistribute(by=2).info().partitions == (
        Partition(4, closed=True, cursor_from=(0,)),
        Partition(5, cursor_from=(1,)),
        Partition(6, closed=True, cursor_from=(0,)),
        Partition(7, cursor_from=(1,)),
        Partition(8, starts_after=4, cursor_from=(2,)),
        Partition(9, starts_after=6, cursor_from=(3,)),
        Partition(10, starts_after=4, cursor_from=(2,)),
        Partition(11, starts_after=6, cursor_from=(3,)),
    )
    assert all(one.is_by_hash_alone for one in (start, start.close(1), start.redistribute(by=2)))
    assert not any(one.is_by_hash_alone for one in (split, split.drop(0)))


def test_closed_partition_has_no_successor():
    """A key whose partition was only closed is refused, and others are not."""
    start = Layout.of(2)
    closed = start.close(1)
    assert closed.info().partitions == (Partition(0), Partition(1, closed=True))
    for key in SOME_KEYS:
        if start.partition_of(key) == 0:
            assert closed.partition_of(key) == 0
        else:
            with pytest.raises(ConfigurationError, match="was closed and has no successor"):
                closed.partition_of(key)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda layout: layout.close(1).close(1), "closed already"),
        (lambda layout: layout.split(0, into=2).split(0, into=2), "closed already"),
        (lambda layout: layout.close(4), "no partition 4"),
        (lambda layout: layout.split(4, into=2), "no partition 4"),
        (lambda layout: layout.drop(4), "no partition 4"),
        (lambda layout: layout.drop(0), "not closed"),
        (lambda layout: layout.split(0, into=0), "1 or more"),
        (lambda layout: layout.redistribute(by=1), "2 or more"),
        (lambda layout: layout.split(0, into=32765), "up to 32767"),
        (lambda layout: Layout.of(32769), "1 to 32768"),
        (lambda layout: Layout.of(0), "1 to 32768"),
        (lambda layout: layout.expecting(layout.redistribute(by=2)), "all readers"),
        (lambda layout: layout.split(0, into=2).expecting(layout), "all readers"),
    ],
)
def test_what_cannot_be_is_refused(change, complaint):
    """A change that would break a promise is refused in a sentence."""
    with pytest.raises(ConfigurationError, match=complaint):
        change(Layout.of(4))


def test_tokens_stay_the_same():
    """A token that changed with a release would send every consumer to discover, twice over."""
    assert Layout.of(4).token == "17f2c1abddfe"
    assert Layout.of(4).split(0, into=2).redistribute(by=3).token == "49cbf07b5d7c"
