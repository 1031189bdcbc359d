"""The cursor behind an event of an id: found by an index, in its partition, of its types."""

import uuid

import pytest
from harness.published import TWO, published
from harness.shop import orders, place
from sqlalchemy import Column, Float, Integer, MetaData, Table, Uuid, insert

from zeroeventhub import TableFeed, TypeFilter
from zeroeventhub.errors import BadCursor, ConfigurationError


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_event_is_found_by_its_id(engine, ordering):
    """An id leads behind its event, in its own partition and letter by letter alone."""
    feed = published(engine, id="customer", type="kind", ordering=ordering, **TWO)
    with engine.begin() as connection:
        for number, customer in enumerate(["ada", "Ada", "ada ", "7"]):
            row = {"customer": customer, "kind": "paid", "part": number % 2, "data": {"n": number}}
            connection.execute(insert(orders), row)
    feed.head()
    for number, customer in enumerate(["ada", "Ada", "ada ", "7"]):
        assert feed.cursor_of(customer, number % 2) == feed.cursor_after(number + 1)
        with pytest.raises(BadCursor):
            feed.cursor_of(customer, 1 - number % 2)
    for unknown in ("ADA", "07", "", "a\0b", "x" * 5000):
        with pytest.raises(BadCursor):
            feed.cursor_of(unknown, 0)
    assert feed.cursor_of("ada", 0, types=TypeFilter(frozenset({"PAID"}))) == feed.cursor_after(1)
    with pytest.raises(BadCursor):
        feed.cursor_of("ada", 0, types=TypeFilter(frozenset({"placed"})))


def test_event_above_the_horizon_is_not_found(postgresql):
    """An event that no page shows yet has no cursor."""
    feed = published(postgresql)
    feed.head()
    with postgresql.connect() as slow:
        place(slow, 1)
        with postgresql.begin() as connection:
            place(connection, 1)
        with pytest.raises(BadCursor):
            feed.cursor_of("2")
        slow.commit()
    assert feed.cursor_of("2") == feed.cursor_after(2)


def test_ids_of_numbers_and_uuids_are_found(engine):
    """A number or a UUID is found by its text, and what is no such text is not there."""
    table = Table(
        "log",
        MetaData(),
        Column("number", Integer, primary_key=True),
        Column("name", Uuid),
        Column("weight", Float),
        sqlite_autoincrement=True,
    )
    table.metadata.create_all(engine)
    name = uuid.UUID("6f1d9d5e-6c8c-4f0e-9d4b-0d6b1f0a2c3e")
    with engine.begin() as connection:
        connection.execute(insert(table), {"name": name})
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
