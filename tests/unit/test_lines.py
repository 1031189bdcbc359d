"""The events of a page as one text are the events that they were made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Event
from zeroeventhub.lines import SEPARATOR, Lines, joined, size_of, text_of
from zeroeventhub.ndjson import encode_page
from zeroeventhub.protocol import Page

json_texts = st.sampled_from([b"1", b'"a b"', b'{"n": 1}', b"[]", '"å\u2028"'.encode()])
many = st.lists(json_texts, max_size=6)


def lines(raws):
    """Lines of JSON texts."""
    return Lines(SEPARATOR.join(raws), len(raws))


@given(many)
def test_lines_are_a_sequence_of_events(raws):
    """Lines are in all ways the list of their events, and are sent as it would be."""
    events = [Event(raw) for raw in raws]
    found = lines(raws)
    assert len(found) == len(events)
    assert [*found] == events
    assert [found[index] for index in range(len(events))] == events
    assert found[1:-1] == events[1:-1]
    assert found == events
    assert found == lines(raws)
    assert repr(found) == repr(events)
    assert bool(found) is bool(events)
    assert text_of(found, b",\n") == text_of(events, b",\n")
    assert encode_page(Page(found, "1-7")) == encode_page(Page(events, "1-7"))


def test_lines_are_not_other_events():
    """Lines differ from fewer, other and empty events, and from what are no events."""
    found = lines([b"1", b"2"])
    assert found != [Event(b"1")]
    assert found != [Event(b"1"), Event(b"3")]
    assert found != lines([b"1", b"3"])
    assert lines([]) != lines([b""])
    assert found != {"1", "2"}
    with pytest.raises(IndexError):
        found[2]


@given(st.lists(st.tuples(st.booleans(), many), max_size=4))
def test_parts_are_joined_in_their_order(parts):
    """Whether parts are lines or lists, joined they are all events one behind the other."""
    made = [lines(raws) if as_lines else [*map(Event, raws)] for as_lines, raws in parts]
    together = joined(made)
    assert [*together] == [Event(raw) for _, raws in parts for raw in raws]
    assert size_of(together) == sum(len(raw) for _, raws in parts for raw in raws)


def test_event_is_sent_on_one_line():
    """A newline within an event is white space, a separator is its own, and neither ends a line."""
    page = encode_page(Page([Event(b'{"a":\n1}'), Event(b'"a\x1eb"'), Event(b"2")], "1-7"))
    assert page == b'{"data":{"a": 1}}\n{"data":"a\x1eb"}\n{"data":2}\n{"cursor":"1-7"}\n'
