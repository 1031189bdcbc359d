"""Rows of a partition next to a position, and the statements of the indexes that they need."""

import re
from dataclasses import replace

import pytest
from harness.shop import metadata, orders, write
from sqlalchemy import MetaData, inspect, select

from zeroeventhub.publisher.keyset import HIGHEST, LIMIT, NearRows, NeededIndex, parameter
from zeroeventhub.publisher.ordering import Source

SOURCE = Source(orders, orders.c.id, orders.c.part)


@pytest.fixture
def connection(any_engine):
    """A connection to ten orders, the ones with odd positions in partition 0."""
    metadata.create_all(any_engine)
    write(any_engine, 10, partitions=2)
    with any_engine.connect() as connection:
        yield connection


def test_rows_next_to_a_position_are_found(connection):
    """The first row lies above a position and not above another, the last one at it or below."""
    near = NearRows(SOURCE)
    assert near.first(connection, 0, 3, 9) == 5
    assert near.first(connection, 0, 9, 10) is None
    assert near.last(connection, 0, 8) == 7
    assert near.last(connection, 1, 1) is None


@pytest.mark.parametrize(("partition", "above"), [(0, [5, 7]), (None, [4, 5])])
def test_rows_come_in_order(connection, partition, above):
    """Rows of one partition or of all come in the order of their positions, from either side."""
    near = NearRows(SOURCE if partition is not None else replace(SOURCE, partition=None))
    query, hint = select(orders.c.id), near.hint(connection)
    values = {"partition": partition, "low": 3, "limit": 2}
    upwards = near.above(query, hint, parameter("low"), HIGHEST).limit(LIMIT)
    assert connection.scalars(upwards, values).all() == above
    downwards = near.below(query, hint, parameter("low")).limit(LIMIT)
    assert connection.scalars(downwards, values).all() == ([3, 1] if partition == 0 else [3, 2])


def test_missing_index_is_created_by_its_statement(any_engine, connection):
    """An index that is needed is there or not, and the statement for it creates all its columns."""
    assert NeededIndex(SOURCE, "pages").is_there(connection)
    needed = NeededIndex(replace(SOURCE, position=orders.c.placed), "a moment", (orders.c.id,))
    assert not needed.is_there(connection)
    statement = needed.create(connection)
    connection.rollback()
    with any_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
        own.exec_driver_sql(statement)
    created = {
        one["name"]: one["column_names"] for one in inspect(any_engine).get_indexes("orders")
    }
    assert created["orders_by_part_placed_id"] == ["part", "placed", "id"]


def test_indexes_of_a_table_of_a_long_name_have_names_of_their_own(sqlite):
    """The names of indexes differ where that of the table leaves no room for their columns."""
    table = orders.to_metadata(MetaData(), name="x" * 60)
    named = set()
    with sqlite.connect() as connection:
        for column in (table.c.id, table.c.placed):
            statement = NeededIndex(Source(table, column, table.c.part), "pages").create(connection)
            named.add(re.search(r"INDEX (\w+) ON", statement)[1])
    assert [*map(len, named)] == [60, 60]
