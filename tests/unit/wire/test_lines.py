"""The events of a page as one text are the events that they were made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import Event, Page
from zeroeventhub.wire.lines import Lines
from zeroeventhub.wire.ndjson import encode_page

json_texts = st.sampled_from([b"1", b'"a b"', b'{"n": 1}', b"[]", '"å\u2028"'.encode()])
many = st.lists(json_texts, max_size=6)


@given(many, many)
def test_lines_are_a_sequence_of_events(raws, others):
    """Lines are in all ways the list of their events, and are sent as it would be."""
    events, found = [*map(Event, raws)], Lines.of(raws)
    for read in (list, len, bool, repr, lambda it: it[1:-1], lambda it: encode_page(Page(it, "1"))):
        assert read(found) == read(events)
    assert [found[index] for index in range(len(events))] == events
    with pytest.raises(IndexError):
        found[len(events)]
    for made in (Lines.of(others), [*map(Event, others)]):
        assert (found == made) is (raws == others)
    assert found != set(raws)


def test_event_is_sent_on_one_line():
    """A newline within an event is white space, and ends no line."""
    raws = [b'{"a":\n1}', b'"}{\\"data\\":"', b"[\r\n2]"]
    body = b'{"data":{"a": 1}}\n{"data":"}{\\"data\\":"}\n{"data":[  2]}\n{"cursor":"1-7"}\n'
    for events in (Lines.of(raws), [*map(Event, raws)]):
        assert encode_page(Page(events, "1-7")) == body
