"""The statements of the indexes that a feed needs."""

import re
from dataclasses import replace

from harness.shop import metadata, orders
from sqlalchemy import MetaData, inspect

from zeroeventhub.publisher.keyset import NeededIndex
from zeroeventhub.publisher.ordering import Source

SOURCE = Source(orders, orders.c.id, orders.c.part)


def test_missing_index_is_created_by_its_statement(any_engine):
    """An index that is needed is there or not, and the statement for it creates all its columns."""
    metadata.create_all(any_engine)
    needed = NeededIndex(replace(SOURCE, position=orders.c.placed), "a moment", (orders.c.id,))
    with any_engine.connect() as connection:
        assert NeededIndex(SOURCE, "pages").is_there(connection)
        assert not needed.is_there(connection)
        statement = needed.create(connection)
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
