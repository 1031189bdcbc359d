"""Which events say the same if their id comes again."""

from contextlib import nullcontext

import msgspec
import pytest
from harness.appended import made

from zeroeventhub import NewEvent
from zeroeventhub.errors import ConfigurationError, IdReused
from zeroeventhub.new_events import make_events


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0}, {"a": False}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": None}, {}, False),
        ([1, 2], [2, 1], False),
        ([1.0], [1], True),
        ([1e22], [10**22], True),
        ([2**53], [2**53 + 1], False),
        ([-(2**53)], [-(2**53) - 1], False),
        ([10**18 - 1], [10**18 - 2], False),
        ([2**53], [float(2**53)], True),
        ([10**30], [10**30 + 1], True),
    ],
)
def test_documents_are_compared_in_what_they_say(sqlite, one, other, is_same):
    """Documents are equal regardless of the order of names and the notation of numbers."""
    log = made(sqlite)
    events = [NewEvent("placed", document, id="e1") for document in (one, other)]
    expected = nullcontext() if is_same else pytest.raises(IdReused)
    with sqlite.connect() as connection, expected:
        log.append(connection, events)


def test_document_that_is_too_deep_to_be_compared_is_refused(sqlite):
    """A document nested more deeply than Python decodes is not taken for the stored one."""
    log, depth = made(sqlite), 100_000
    documents = [msgspec.Raw(b"[" * depth + leaf + b"]" * depth) for leaf in (b"1", b"2")]
    events = make_events([NewEvent("placed", [], id="e1")] * 2, documents)
    with sqlite.connect() as connection, pytest.raises(ConfigurationError, match="deeply"):
        log.append(connection, events)
