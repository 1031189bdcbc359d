"""Which events say the same if their id comes again."""

import pytest
from sqlalchemy import MetaData, create_engine

from zeroeventhub import EventLog, NewEvent
from zeroeventhub.errors import IdReused


@pytest.fixture(scope="module")
def appended():
    """Return whether a log accepts two documents under one id."""
    metadata = MetaData()
    log = EventLog(metadata, "orders")
    engine = create_engine("sqlite://")
    metadata.create_all(engine)

    def appended(one, other):
        events = [NewEvent("placed", document, id="e1") for document in (one, other)]
        with engine.connect() as connection:
            try:
                log.append(connection, events)
            except IdReused:
                return False
            return True

    yield appended
    engine.dispose()


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
def test_documents_are_compared_in_what_they_say(appended, one, other, is_same):
    """Two documents are equal regardless of the order of names and the notation of numbers; digits
    that every database keeps are compared.
    """
    assert appended(one, other) is is_same
