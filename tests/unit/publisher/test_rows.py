"""Rows of a table whose events are JSON already."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeroeventhub.errors import FeedFailure
from zeroeventhub.publisher.rows import Rows

PIECES = ["{}", '{"n":1}', "1", '"a"', "\x1e", "\n", " ", "", "\\", "null", '"', "\u2028"]


@given(st.lists(st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join), min_size=1))
@example(["1\x1e2", " "])
@example(['{"a":1}\x1e', '{"c":1}'])
def test_texts_are_the_events_or_are_refused(texts):
    """Whatever texts rows hold, each is one value of JSON and one event, or all are refused."""
    rows = list(enumerate(texts, 1))
    stored = [text for text in texts if text is not None]
    if all(is_json(text) for text in stored):
        found = Rows.of_json(rows)
        assert [json.loads(event.raw) for event in found.events] == list(map(json.loads, stored))
        return
    with pytest.raises(FeedFailure, match="cannot be published"):
        Rows.of_json(rows)


def is_json(text):
    """Tell whether a text is one value of JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
