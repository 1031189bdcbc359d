"""A table whose rows are updated is no table of events, and `check` says so."""

import pytest
from harness.shop import metadata, orders, place
from harness.statements import execute
from sqlalchemy import Column, DateTime, Integer, MetaData, Table, func, text

from zeroeventhub import TableFeed

FUNCTION = """CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RETURN NEW; END $$"""
TRIGGERS = {
    "postgresql": "CREATE TRIGGER touch BEFORE UPDATE ON orders EXECUTE FUNCTION touch()",
    "sqlite": "CREATE TRIGGER touch AFTER UPDATE ON orders BEGIN SELECT 1; END",
    "mysql": "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.kind = 'x'",
    "mariadb": "CREATE TRIGGER touch BEFORE UPDATE ON orders FOR EACH ROW SET NEW.kind = 'x'",
}


def warnings(feed):
    """Return what a feed's check warns of, but for indexes."""
    return [one.sentence for one in feed.check() if one.subject == "updates"]


@pytest.mark.parametrize("ordering", [None, "sequenced"], ids=["by default", "sequenced"])
def test_trigger_on_updates_is_a_warning(engine, ordering):
    """A trigger of the owner's for updates says that rows change; those of a feed do not."""
    metadata.create_all(engine)
    source = TableFeed(orders, data="data", ordering=ordering)
    with engine.begin() as connection:
        source.install(connection)
        place(connection, 1)
    assert warnings(source.bind(engine)) == []
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(FUNCTION)
        connection.exec_driver_sql(TRIGGERS[engine.dialect.name])
    (sentence,) = warnings(source.bind(engine))
    assert "'touch'" in sentence
    assert "an update reaches no consumer" in sentence
    assert warnings(TableFeed(orders, data="data", mutable=True).bind(engine)) == []


def test_statistics_of_updates_are_a_warning(postgresql):
    """PostgreSQL counts the rows that were updated."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        place(connection, 3)
        connection.execute(text("UPDATE orders SET kind = 'other'"))
    execute(postgresql, "SELECT pg_stat_force_next_flush()", "SELECT 1")
    execute(postgresql, "SELECT 1")
    postgresql.dispose()
    (sentence,) = warnings(TableFeed(orders, data="data").bind(postgresql))
    assert "3 updated rows" in sentence


def test_column_of_updates_is_a_warning(sqlite):
    """A model that notes when a row was updated is one of rows that change."""
    key = Column("id", Integer, primary_key=True)
    changed = Column("changed", DateTime, onupdate=func.now())
    table = Table("customers", MetaData(), key, changed, sqlite_autoincrement=True)
    table.create(sqlite)
    (sentence,) = warnings(TableFeed(table).bind(sqlite))
    assert "'changed'" in sentence
