"""The triggers of MariaDB and MySQL that write the changes of a table to a log."""

from collections.abc import Iterable

from zeroeventhub.databases.capture import Captured, CaptureDdl, literal

_MOMENT = "%Y-%m-%dT%H:%i:%s.%f"

_UTC = (
    "DATE_FORMAT(TIMESTAMPADD(MICROSECOND, UNIX_TIMESTAMP({0}) * 1000000, "
    f"'1970-01-01 00:00:00.000000'), '{_MOMENT}+00:00')"
)
_HEX = "LOWER(HEX({0}))"

_CAPTURED = {
    # Readers may take a number for a binary one, which would not keep the digits.
    "DECIMAL": "CAST({0} AS CHAR)",
    # As the same number of double precision, since FLOAT is written with six digits.
    "FLOAT": "{0} + 0E0",
    "BIT": "{0} + 0",
    "DATETIME": f"DATE_FORMAT({{0}}, '{_MOMENT}')",
    # Without the session's time zone, in which an hour comes twice in autumn.
    "TIMESTAMP": _UTC,
    **dict.fromkeys(("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"), _HEX),
    "NullType": _HEX,  # a geometry, of which SQLAlchemy knows nothing
}
"""How a value becomes part of JSON, by the name of its type; others are as JSON_OBJECT has them."""

_CAPTURE_TRIGGER = "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {body}"


def capture(one: Captured) -> CaptureDdl:
    """Return the triggers; none of the host's can change the row again, as MySQL forbids that."""
    label, prefix = literal(one.label), literal(f"{one.label}/")

    def value(row: str, name: str) -> str:
        form = _CAPTURED.get(type(one.types[name]).__name__, "{0}")
        return form.format(f"{row}.{one.quote(name)}")

    def members(row: str, names: Iterable[str]) -> str:
        return ", ".join(f"{literal(name)}, {value(row, name)}" for name in names)

    def key(row: str) -> str:
        values = ", ".join(value(row, name) for name in one.key)
        text = values if len(one.key) == 1 else f"JSON_ARRAY({values})"
        return f"CONVERT(CONCAT({prefix}, {text}) USING utf8mb4) COLLATE utf8mb4_bin"

    def event(operation: str, before: str | None, after: str | None) -> str:
        row = str(after or before)
        long = f"CONCAT({prefix}, MD5({key(row)}))"
        before, after = (
            "NULL" if each is None else f"JSON_OBJECT({members(each, one.types)})"
            for each in (before, after)
        )
        return (
            f"0, UUID(), IF(CHAR_LENGTH({key(row)}) > {one.longest_key}, {long}, {key(row)}), "
            f"{literal(f'{one.label}.{operation}')}, JSON_OBJECT('table', {label}, "
            f"'operation', '{operation}', 'key', JSON_OBJECT({members(row, one.key)}), "
            f"'before', {before}, 'after', {after}, 'transaction', NULL, "
            "'actor', @zeroeventhub_actor)"
        )

    def insert(operation: str, before: str | None, after: str | None) -> str:
        # Not INSERT … SELECT, which locks the numbers of the log to the end of the statement.
        return f"{one.insert} VALUES ({event(operation, before, after)})"

    inserted, deleted = insert("insert", None, "NEW"), insert("delete", "OLD", None)
    same = f"BINARY {key('OLD')} = BINARY {key('NEW')}"
    update = insert("update", "OLD", "NEW")
    bodies = {
        "insert": inserted,
        "update": f"IF {same} THEN\n{update};\nELSE\n{deleted};\n{inserted};\nEND IF",
        "delete": deleted,
    }
    names = {event: one.own(f"{one.name}_{event}") for event in bodies}
    triggers = tuple(
        _CAPTURE_TRIGGER.format(
            name=names[event], event=event.upper(), table=one.table, body=f"BEGIN\n{body};\nEND"
        )
        for event, body in bodies.items()
    )
    drop = tuple(f"DROP TRIGGER IF EXISTS {name}" for name in names.values())
    order = ", ".join(map(one.quote, one.key))
    row = event("read", None, one.table)
    read = f"{one.insert} SELECT {row} FROM {one.table} ORDER BY {order}"  # noqa: S608 - quoted
    of_schema = literal(one.schema) if one.schema else "DATABASE()"
    return CaptureDdl(
        # Each of the statements that follow the first INSERT commits what came before.
        install=(f"LOCK TABLES {one.table} WRITE, {one.log_table} WRITE", read, *drop, *triggers),
        release=("UNLOCK TABLES",),
        uninstall=drop,
        code=triggers,
        installed="SELECT action_statement "  # noqa: S608 - names are quoted
        f"FROM information_schema.triggers WHERE trigger_schema = {of_schema} "
        f"AND trigger_name LIKE '{one.name}%'",
        listed=[*one.types],
    )
