"""Offsets of the Spark source: their JSON, and the ranges between two of them."""

import json
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, FeedInfo, Partition
from zeroeventhub.spark.offsets import Offsets, Range, chains

ids = st.integers(0, 7) | st.just(32767)
cursors = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)


@st.composite
def offsets(draw):
    """Offsets of partitions, of which none waits for one of a higher number."""
    begun = draw(st.dictionaries(ids, cursors, max_size=6))
    known = sorted(begun)
    starts_after = {
        child: draw(st.sampled_from(known[:place]))
        for place, child in enumerate(known)
        if place and draw(st.booleans())
    }
    cursor_from = (
        draw(st.dictionaries(st.sampled_from(known), st.tuples(ids, ids))) if known else {}
    )
    counts = draw(st.dictionaries(st.sampled_from(known), st.integers(0))) if known else {}
    token = draw(st.none() | st.text(min_size=1))
    return Offsets(begun, token, starts_after, cursor_from, counts)


@settings(max_examples=40)
@given(offsets(), st.randoms())
def test_offsets_come_back_from_json(one, dice):
    """Offsets are read back as they were, and their JSON does not depend on an order of dicts."""
    text = json.dumps(one.document())
    assert Offsets.of(json.loads(text)) == one
    shuffled = list(one.cursors.items())
    dice.shuffle(shuffled)
    again = Offsets(dict(shuffled), one.token, one.starts_after, one.cursor_from, one.counts)
    assert json.dumps(again.document()) == text
    assert chains(one, again) == []


@pytest.mark.parametrize(
    "document",
    [7, [], "a", None, {"x": "a"}, {"0": 7}, {"0": ""}, {"0": "\u00e5"}, {"cursors": []}]
    + [{"cursors": {"0": "a"}, name: 7} for name in ("startsAfter", "cursorFrom", "counts")],
    ids=str,
)
def test_other_json_is_refused(document):
    """What is no offsets is told as such."""
    with pytest.raises(ConfigurationError, match="offset"):
        Offsets.of(document)


@settings(max_examples=60)
@given(offsets(), offsets())
def test_chains_reach_from_start_to_end(start, end):
    """Each partition that moved is in one chain, once, behind the one that it starts after."""
    planned = chains(start, end)
    expected = []
    for partition, stop in sorted(end.cursors.items()):
        begin = start.place(partition, end.cursor_from.get(partition, ())) or FIRST
        count = end.counts.get(partition)
        if count is not None:
            count -= start.counts.get(partition, 0)
        if begin != stop and count != 0:
            expected.append(Range(partition, begin, stop, count))
    found = [one for chain in planned for one in chain]
    assert sorted(found, key=attrgetter("partition")) == expected
    assert all(planned)
    places = {
        one.partition: (number, place)
        for number, chain in enumerate(planned)
        for place, one in enumerate(chain)
    }
    for child, parent in end.starts_after.items():
        if child in places and parent in places:
            assert places[parent][0] == places[child][0]
            assert places[parent][1] < places[child][1]


def test_children_are_read_side_by_side():
    """A chain holds what has to wait in this batch, and nothing waits for what is not read."""
    after = {2: 0, 3: 0}
    start = Offsets({0: "a", 2: "c", 3: "d"}, starts_after=after)
    end = Offsets({0: "a", 2: "e", 3: "f"}, starts_after=after)
    assert chains(start, end) == [[Range(2, "c", "e")], [Range(3, "d", "f")]]
    end = Offsets({0: "b", 2: "e", 3: "f"}, starts_after=after)
    assert chains(start, end) == [[Range(0, "a", "b"), Range(2, "c", "e"), Range(3, "d", "f")]]


def test_heir_goes_on_where_its_nearest_ancestor_stood():
    """A partition without a cursor has that of the first of its line that has one (SPEC 8.4)."""
    info = FeedInfo((Partition(4, cursor_from=(2, 0)), Partition(5, starts_after=4)), "t")
    end = Offsets.within(info, {4: "d", 5: "e"})
    assert end.document() == {
        "cursors": {"4": "d", "5": "e"},
        "cursorFrom": {"4": ["2", "0"]},
        "startsAfter": {"5": "4"},
        "token": "t",
    }
    assert chains(Offsets({0: "a", 2: "b"}), end) == [[Range(4, "b", "d"), Range(5, FIRST, "e")]]
    assert chains(Offsets({0: "a"}), end) == [[Range(4, "a", "d"), Range(5, FIRST, "e")]]
