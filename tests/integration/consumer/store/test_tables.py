"""The tables of a store: created, declared in a schema, and checked."""

from uuid import uuid4

import pytest
from harness.engines import connected
from harness.statements import execute
from harness.stores import NAME, beside, call, cursor, load, move, new_store, outcome
from sqlalchemy import MetaData, column, event, inspect, table, text

from zeroeventhub import CursorStore, cursor_tables
from zeroeventhub.errors import ConfigurationError


def test_tables_are_created_by_many_at_once(database_url):
    """Processes that start at the same moment do not trip over each other."""

    def create():
        with connected(database_url) as engine:
            new_store(engine)

    assert [outcome(future) for future in [beside(create) for _ in range(8)]] == [None] * 8


def test_tables_may_lie_in_a_schema(postgresql):
    """A store with tables of its own looks for them where they were declared, and works there."""
    execute(postgresql, "CREATE SCHEMA mine")
    store = CursorStore(postgresql, tables=cursor_tables(MetaData(), schema="mine"))
    with postgresql.begin() as connection, pytest.raises(ConfigurationError, match="no table mine"):
        store.check_tables(connection)
    with postgresql.begin() as connection:
        store.create_tables(connection)
    move(store, 0, load(store, 0), "a")
    assert cursor(store, 0) == "a"
    assert inspect(postgresql).get_table_names() == []


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mariadb"])
def test_tables_may_lie_where_the_engine_translates_their_schema(request, place):
    """A store of a tenant's engine finds all its tables in the schema of the tenant."""
    base, schema = request.getfixturevalue(place), f"tenant_{uuid4().hex}"
    if place == "sqlite":
        event.listen(base, "connect", lambda own, _: own.execute(f"ATTACH ':memory:' AS {schema}"))
    else:
        execute(base, f"CREATE SCHEMA {schema}")
    try:
        store = new_store(base.execution_options(schema_translate_map={None: schema}))
        place, error = load(store, 0), ValueError("no")
        call(store, store.record_failure, 0, place, error=error, tries=1, pause=None)
        assert call(store, store.standings)[0].error == "ValueError: no"
        assert call(store, store.forget)["failures"] == 1
        assert inspect(base).get_table_names() == []
    finally:
        if base.dialect.name == "mariadb":
            execute(base, f"DROP SCHEMA {schema}")


def test_store_of_an_older_version_lacks_only_failures(store):
    """Without the table of failures a store works, names the table, and has no error to show."""
    execute(store.engine, "DROP TABLE zeroeventhub_failures")
    place = load(store, 0, start="a")
    call(store, lambda connection, _: store.check_tables(connection))
    with pytest.raises(ConfigurationError, match="no table zeroeventhub_failures"):
        call(store, store.record_failure, 0, place, error=ValueError("no"), tries=1, pause=None)
    move(store, 0, place, "b")
    call(store, store.rename, "invoices")
    (found,) = call(store, store.standings, name="invoices")
    assert (found.cursor, found.error, found.halted_at) == ("b", None, None)
    assert call(store, store.forget, name="invoices")["cursors"] == 1
    new_store(store.engine)
    place, error = load(store, 0), ValueError("no")
    call(store, store.record_failure, 0, place, error=error, tries=1, pause=None)
    assert call(store, store.standings)[0].error == "ValueError: no"


def test_table_of_an_older_version_is_named(engine):
    """A table of cursors without epochs is refused by what it lacks, and keeps its cursors."""
    store, quote = CursorStore(engine), engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        connection.execute(
            text(
                f"CREATE TABLE zeroeventhub_cursors (consumer VARCHAR(200), {quote('partition')} "
                f"INTEGER, {quote('cursor')} TEXT, updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
            )
        )
        old = table("zeroeventhub_cursors", *map(column, ["consumer", "partition", "cursor"]))
        connection.execute(old.insert().values([NAME, 0, "a"]))
    with engine.begin() as connection, pytest.raises(ConfigurationError) as refusal:
        store.create_tables(connection)
    added = str(refusal.value).partition("add the columns ")[2].partition(";")[0].split(", ")
    with engine.begin() as connection:
        for one in added:
            connection.execute(text(f"ALTER TABLE zeroeventhub_cursors ADD COLUMN {one}"))
        store.create_tables(connection)
    place = load(store, 0)
    assert (place.cursor, place.epoch) == ("a", 0)
