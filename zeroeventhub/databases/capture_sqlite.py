"""The triggers of SQLite that write the changes of a table to a log."""

import json
from collections.abc import Iterable

from sqlalchemy import JSON, Connection, Float, Numeric, text

from zeroeventhub.databases.capture import Captured, CaptureDdl, literal
from zeroeventhub.errors import ConfigurationError

_UNIQUE = text("""SELECT list.name, info.name AS column_name
    FROM pragma_index_list(:table) AS list, pragma_index_info(list.name) AS info
    WHERE list."unique" AND list.origin <> 'pk' ORDER BY list.seq, info.seqno""")

# SQLite has types of values, not of columns. 17 digits say which number of double precision it is.
_CAPTURED_VALUE = """CASE typeof({0}) WHEN 'blob' THEN json_quote(lower(hex({0}))) \
WHEN 'real' THEN {1} ELSE {2} END"""
_REAL = """CASE WHEN {0} - {0} = 0 THEN printf('%!.17g', {0}) \
WHEN {0} > 0 THEN '"Infinity"' ELSE '"-Infinity"' END"""
_QUOTED = "json_quote({0})"
_DECIMAL = "json_quote(CAST({0} AS TEXT))"
_JSON = "CASE WHEN json_valid({0}) THEN json({0}) ELSE json_quote({0}) END"

_ID = "SELECT 0, lower(hex(randomblob(16)))"
_NULL_KEY = "a row whose primary key is NULL cannot be captured"


def _value(one: Captured, row: str, name: str) -> str:
    """Return the SQL of the JSON of a row's value."""
    kind, column = one.types[name], f"{row}.{one.quote(name)}"
    is_decimal = isinstance(kind, Numeric) and not isinstance(kind, Float)
    real = _DECIMAL if is_decimal else _REAL
    other = _DECIMAL if is_decimal else _JSON if isinstance(kind, JSON) else _QUOTED
    return _CAPTURED_VALUE.format(column, real.format(column), other.format(column))


def _document(one: Captured, row: str, names: Iterable[str]) -> str:
    """Return the SQL of the JSON object of some values of a row."""
    # Joined, as a function takes no more than 127 arguments.
    pairs = (f"{literal(json.dumps(name) + ':')} || {_value(one, row, name)}" for name in names)
    return "('{' || " + " || ',' || ".join(pairs) + " || '}')"


def _key(one: Captured, row: str) -> str:
    """Return the SQL of the key of a row's events."""
    prefix = literal(f"{one.label}/")
    if len(one.key) > 1:
        values = " || ',' || ".join(_value(one, row, name) for name in one.key)
        return f"{prefix} || '[' || {values} || ']'"
    column = f"{row}.{one.quote(one.key[0])}"
    return (
        f"{prefix} || CASE typeof({column}) WHEN 'blob' THEN lower(hex({column})) ELSE {column} END"
    )


def capture(connection: Connection, one: Captured) -> CaptureDdl:
    """Return the triggers.

    REPLACE deletes rows without firing their triggers, as a rule. A row of the same key needs none;
    one that had the same value in another unique index is noted before the change, and the event of
    its deletion is written after it.

    Raises:
        ConfigurationError: the table or the log is named with a schema.
    """
    if one.schema or one.log_schema:
        raise ConfigurationError(
            "On SQLite, a trigger writes to no other file than its own: name table and log "
            "without a schema, on a connection to that file."
        )
    replaced = one.quote(f"{one.name}_replaced")
    opening = literal(f'{{"table":{json.dumps(one.label)},"operation":"')

    def data(operation: str, row: str, before: str, after: str) -> str:
        return (
            f"""{opening} || {operation} || '","key":' || {_document(one, row, one.key)} || """
            f"""',"before":' || {before} || ',"after":' || {after} || """
            """',"transaction":null,"actor":null}'"""
        )

    def insert(operation: str, row: str, before: str, after: str) -> str:
        kind = f"{literal(f'{one.label}.')} || {operation}"
        return (
            f"{one.insert} {_ID}, {_key(one, row)}, {kind}, {data(operation, row, before, after)}"
        )

    there = f"now.{one.quote(one.key[0])} IS NOT NULL"
    row_now = f"CASE WHEN {there} THEN {_document(one, 'now', one.types)} ELSE 'null' END"

    def changed(row: str, operation: str, before: str, condition: str) -> str:
        """Return the statement that says what has become of the row that had or has a key."""
        joined = f"{one.same_key('now', row)} AND {_key(one, 'now')} = {_key(one, row)}"
        return (
            f"{insert(operation, row, before, row_now)} "
            f"FROM (SELECT 1) LEFT JOIN {one.table} AS now ON {joined} WHERE {condition};"
        )

    old = changed(
        "OLD",
        f"CASE WHEN {there} THEN 'update' ELSE 'delete' END",
        _document(one, "OLD", one.types),
        "1",
    )
    new = changed("NEW", "'insert'", "'null'", there)
    moved = changed(
        "NEW", "'insert'", "'null'", f"{there} AND {_key(one, 'OLD')} <> {_key(one, 'NEW')}"
    )
    is_null = " OR ".join(f"NEW.{one.quote(name)} IS NULL" for name in one.key)
    refused = f"SELECT RAISE(ABORT, {literal(_NULL_KEY)}) WHERE {is_null};"
    bodies = {
        "AFTER INSERT": [refused, new],
        "AFTER UPDATE": [refused, old, moved],
        "AFTER DELETE": [old],
    }
    indexes: dict[str, list[str]] = {}
    for index, column in connection.execute(_UNIQUE, {"table": one.label}):
        # NULL for an expression, for which any row might have to go.
        equal = "1" if column is None else "known.{0} = NEW.{0}".format(one.quote(column))
        indexes.setdefault(index, []).append(equal)
    side: tuple[str, ...] = ()
    if indexes:
        numbers = [f"key_{number}" for number in range(len(one.key))]
        side = (f"CREATE TABLE {replaced} (key, data, {', '.join(numbers)})",)
        equal = " OR ".join(" AND ".join(columns) for columns in indexes.values())
        gone = data("'delete'", "known", _document(one, "known", one.types), "'null'")
        keys = ", ".join(f"known.{one.quote(name)}" for name in one.key)
        note = (
            f"DELETE FROM {replaced};\n    "  # noqa: S608 - names are quoted
            f"INSERT INTO {replaced} SELECT {_key(one, 'known')}, {gone}, {keys} "
            f"FROM {one.table} AS known WHERE ({equal})"
        )
        same = " AND ".join(
            f"now.{one.quote(name)} = noted.{number}"
            for name, number in zip(one.key, numbers, strict=True)
        )
        write = (
            f"{one.insert} {_ID}, noted.key, "  # noqa: S608 - names are quoted
            f"{literal(f'{one.label}.delete')}, noted.data "
            f"FROM {replaced} AS noted "
            f"WHERE NOT EXISTS (SELECT 1 FROM {one.table} AS now WHERE {same});"
        )
        bodies["AFTER INSERT"].insert(0, write)
        bodies["AFTER UPDATE"].insert(0, write)
        bodies["BEFORE INSERT"] = [f"{note};"]
        bodies["BEFORE UPDATE"] = [f"{note} AND {_key(one, 'known')} <> {_key(one, 'OLD')};"]
    names = {event: one.quote(f"{one.name}_{event.replace(' ', '_').lower()}") for event in bodies}
    triggers = tuple(
        f"CREATE TRIGGER {names[event]} {event} ON {one.table} FOR EACH ROW BEGIN\n    "
        + "\n    ".join(body)
        + "\nEND"
        for event, body in bodies.items()
    )
    drop = (
        *(
            f"DROP TRIGGER IF EXISTS {one.quote(f'{one.name}_{when}_{event}')}"
            for when in ("before", "after")
            for event in ("insert", "update", "delete")
        ),
        f"DROP TABLE IF EXISTS {replaced}",
    )
    read = insert("'read'", "one", "'null'", _document(one, "one", one.types))
    order = ", ".join(f"one.{one.quote(name)}" for name in one.key)
    return CaptureDdl(
        # The first statement keeps other writers out.
        install=(f"{read} FROM {one.table} AS one ORDER BY {order}", *drop, *side, *triggers),
        uninstall=drop,
        code=triggers,
        installed="SELECT sql FROM sqlite_master WHERE type = 'trigger' "  # noqa: S608 - the same
        f"AND name LIKE '{one.name}%'",
        listed=[*one.types],
    )
