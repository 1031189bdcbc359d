"""The key by which an event is told from every other, as the database declares it."""

from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.types import TypeEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Events

__all__ = ["check_key", "column_types"]

_KEY_OF_SQLITE = text("SELECT name, upper(type) AS type FROM pragma_table_info(:table) WHERE pk")


def check_key(connection: Connection, events: Events) -> None:
    """Refuse a table that may hold two events of one key, or one of none.

    Raises:
        ConfigurationError: there is no such table, it is a view, or its key is not unique.
    """
    table, schema = events.table, connection.schema_for_object(events.table)
    look = inspect(connection)
    if not look.has_table(table.name, schema=schema):
        raise ConfigurationError(f"There is no table {table.fullname!r}.")
    if table.name in look.get_view_names(schema=schema):
        raise ConfigurationError(
            f"{table.fullname!r} is a view, in which no trigger sees new rows: publish its table."
        )
    key = {column.name for column in events.key}
    unique: list[Any] = [look.get_pk_constraint(table.name, schema=schema)["constrained_columns"]]
    unique += [found["column_names"] for found in look.get_unique_constraints(table.name, schema)]
    unique += [
        found["column_names"]
        for found in look.get_indexes(table.name, schema)
        if found["unique"]
        # An index over some of the rows says nothing about the others.
        and not any(name.endswith("_where") for name in found.get("dialect_options", {}))
    ]
    nullable = {column["name"] for column in _columns(connection, events) if column["nullable"]}
    if connection.dialect.name == "sqlite":
        row_id = connection.execute(_KEY_OF_SQLITE, {"table": table.name}).all()
        if [column.type for column in row_id] == ["INTEGER"]:
            nullable -= {row_id[0].name}  # an alias of the row id, whatever the declaration says
    if not any(set(columns) == key for columns in unique) or key & nullable:
        raise ConfigurationError(
            f"{', '.join(map(str, events.key))} may be NULL or stand in two rows: make it the "
            "primary key, or NOT NULL and UNIQUE."
        )


def column_types(connection: Connection, events: Events) -> dict[str, TypeEngine[Any]]:
    """Return the types of a table's columns by name, as the database has them."""
    return {column["name"]: column["type"] for column in _columns(connection, events)}


def _columns(connection: Connection, events: Events) -> Any:
    schema = connection.schema_for_object(events.table)
    return inspect(connection).get_columns(events.table.name, schema=schema)
