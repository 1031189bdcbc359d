"""The cursor behind an event of an id: found by an index, in its partition, of its types."""

import uuid

import pytest
from harness.published import published
from harness.shop import orders
from harness.statements import add
from harness.tables import event_table
from sqlalchemy import Float, Uuid

from zeroeventhub import TableFeed
from zeroeventhub.errors import BadCursor, ConfigurationError


def test_event_is_found_by_its_id(engine):
    """An id leads behind its event, letter by letter alone."""
    feed, names = published(engine, id="customer"), ["ada", "Ada", "ada ", "7"]
    add(engine, orders, [{"customer": name, "data": {}} for name in names])
    feed.head()
    for number, name in enumerate(names, 1):
        assert feed.cursor_of(name) == feed.cursor_after(number)
    for unknown in ("ADA", "07", "", "a\0b", "x" * 5000):
        with pytest.raises(BadCursor):
            feed.cursor_of(unknown)


def test_ids_of_numbers_and_uuids_are_found(engine):
    """A number or a UUID is found by its text, and what is no such text is not there."""
    table = event_table("log", position="number", name=Uuid, weight=Float)
    table.metadata.create_all(engine)
    name = uuid.UUID("6f1d9d5e-6c8c-4f0e-9d4b-0d6b1f0a2c3e")
    add(engine, table, {"name": name})
    by_number, by_name = TableFeed(table).bind(engine), TableFeed(table, id="name").bind(engine)
    assert by_number.cursor_of("1") == by_name.cursor_of(str(name)) == by_name.cursor_after(1)
    for feed, unknown in [
        *((by_number, text) for text in ("2", "01", "+1", "one", "9" * 30, f"{2**64 + 1}")),
        *((by_name, text) for text in ("1", "", str(uuid.UUID(int=1)))),
    ]:
        with pytest.raises(BadCursor):
            feed.cursor_of(unknown)
    with pytest.raises(ConfigurationError, match="found by an id"):
        TableFeed(table, id="weight").bind(engine).cursor_of("1")
