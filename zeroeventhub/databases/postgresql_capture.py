"""The triggers of PostgreSQL that write the changes of a table to a log."""

from dataclasses import replace
from itertools import zip_longest

from sqlalchemy import Connection, text

from zeroeventhub.databases.port import Captured, CaptureDdl, literal

# A row becomes JSON with all columns that it has at the moment. Decimals become text, as their
# digits would not survive a reader that takes them for binary numbers, and bytes lose their prefix.
# A domain is printed as the type that it is of, also through other domains.
_CAPTURED_ROW = """CREATE OR REPLACE FUNCTION {row}(one jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $capture$
    SELECT one || coalesce(jsonb_object_agg(
        attname, CASE typoutput WHEN 'byteaout'::regproc THEN substr(one ->> attname, 3)
            ELSE one ->> attname END
    ), '{{}}') FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = {table_label}::regclass AND attnum > 0 AND NOT attisdropped
        AND typoutput IN ('byteaout'::regproc, 'numeric_out'::regproc)
$capture$"""

_CAPTURE_INSERT = """{insert} SELECT 0, gen_random_uuid(),
            CASE WHEN length(key) > {longest_key} THEN {prefix} || md5(key) ELSE key END,
            {label} || '.' || operation, jsonb_build_object(
                'table', {label}, 'operation', operation, 'key', jsonb_build_object({members}),
                'before', before, 'after', after, 'transaction', pg_current_xact_id()::text,
                'actor', nullif(current_setting('zeroeventhub.actor', true), ''))
        FROM (
            SELECT before, after, coalesce(after, before) AS row_of,
                {prefix} || {key_text} AS key, {operation} AS operation
            FROM ({change}) AS change
        ) AS named"""

_CAPTURE_ALL = """CREATE OR REPLACE FUNCTION {all}(what text) RETURNS void
LANGUAGE plpgsql {settings} AS $capture$
BEGIN
        {insert_all};
END
$capture$"""

# It runs with its owner's rights, so that writers of the table need none for the log.
_CAPTURE = """CREATE OR REPLACE FUNCTION {name}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER {settings} AS $capture$
DECLARE
    old_row jsonb;
    new_row jsonb;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        -- The statement empties the table of rows that an older snapshot does not show.
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'TRUNCATE of a table whose changes are captured needs READ COMMITTED';
        END IF;
        PERFORM {all}('delete');
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        old_row := {row}(to_jsonb(OLD));
        {insert_old};
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_row := {row}(to_jsonb(NEW));
        IF old_row IS NULL OR {old_key} <> {new_key} THEN
        {insert_new};
        END IF;
    END IF;
    RETURN NULL;
END
$capture$"""

_TRIGGER = "CREATE TRIGGER {} {} ON {} FOR EACH {} EXECUTE FUNCTION {}()"

_CHECK_ISOLATION = """DO $capture$ BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the installation needs READ COMMITTED, to see all that is committed';
    END IF;
END $capture$"""


# That in which the connection finds a table now, or would create it.
_SCHEMA = text("""SELECT coalesce((SELECT nspname
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = to_regclass(:name)), current_schema())""")

_UNSUITED = text("""SELECT
    EXISTS (SELECT FROM pg_index WHERE indrelid = table_id AND indisprimary AND NOT indimmediate),
    EXISTS (SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent
        WHERE inhparent = table_id AND relkind <> 'p')
    FROM (SELECT CAST(CAST(:name AS regclass) AS oid) AS table_id) AS found""")

# A search_path of pg_catalog finds no operator of an extension. In a B-tree, 3 is equality.
_EQUALITY = text("""SELECT nspname, oprname
    FROM pg_index CROSS JOIN unnest(indclass) WITH ORDINALITY AS class (id, number)
    JOIN pg_opclass ON pg_opclass.oid = class.id
    JOIN pg_amop ON amopfamily = opcfamily AND amopstrategy = 3
        AND amoplefttype = opcintype AND amoprighttype = opcintype
    JOIN pg_operator ON pg_operator.oid = amopopr
    JOIN pg_namespace ON pg_namespace.oid = oprnamespace
    WHERE indrelid = CAST(CAST(:name AS regclass) AS oid) AND indisprimary AND opcmethod = 403
    ORDER BY number""")


def capture(connection: Connection, one: Captured) -> CaptureDdl:
    """Return the triggers, of which each reads the row that is there by now, and their functions.

    The functions look no name up by the search_path, which belongs to the writers.
    """
    one = replace(
        one,
        schema=one.schema or connection.scalar(_SCHEMA, {"name": one.table}),
        log_schema=one.log_schema or connection.scalar(_SCHEMA, {"name": one.log_table}),
    )
    is_deferrable, is_inherited = connection.execute(_UNSUITED, {"name": one.table}).one()
    refused = None
    if is_deferrable:
        refused = (
            f"The primary key of {one.label!r} is DEFERRABLE, so that writers of one key do not "
            "wait for each other: the log may have their changes in another order."
        )
    if is_inherited:
        refused = (
            f"Other tables inherit from {one.label!r}: changes of their rows fire none of its "
            "triggers."
        )
    name, row, every = (one.own(one.name + end) for end in ("", "_row", "_all"))
    label, prefix = literal(one.label), literal(f"{one.label}/")
    words = {
        "insert": one.insert,
        "longest_key": one.longest_key,
        "prefix": prefix,
        "label": label,
        "members": ", ".join(f"{literal(key)}, row_of -> {literal(key)}" for key in one.key),
        "key_text": _key_text(one, "coalesce(after, before)"),
    }

    def insert(operation: str, change: str) -> str:
        return _CAPTURE_INSERT.format(**words, operation=operation, change=change)

    equal = [
        "=" if schema == "pg_catalog" else f"OPERATOR({one.quote(schema)}.{sign})"
        for schema, sign in connection.execute(_EQUALITY, {"name": one.table})
    ]

    def same_key(old: str) -> str:
        keys = zip_longest(map(one.quote, one.key), equal, fillvalue="=")
        return " AND ".join(f"now.{name} {equals} {old}.{name}" for name, equals in keys)

    def now(variable: str, old: str) -> str:
        same = f"{_key_text(one, 'row_of')} = {_key_text(one, variable)}"
        found = f"SELECT {row}(to_jsonb(now.*)) AS row_of FROM {one.table} AS now "  # noqa: S608 - quoted
        found += f"WHERE {same_key(old)} OFFSET 0"
        return f"(SELECT row_of FROM ({found}) AS found WHERE {same} LIMIT 1)"  # noqa: S608 - quoted

    of_all = (
        "SELECT CASE what WHEN 'delete' THEN row_of END AS before, "  # noqa: S608 - quoted names
        "CASE what WHEN 'read' THEN row_of END AS after FROM "
        f"(SELECT {row}(to_jsonb(one.*)) AS row_of FROM {one.table} AS one "
        f"ORDER BY {', '.join(f'one.{one.quote(key)}' for key in one.key)}) AS every_row"
    )
    parts = {
        "name": name,
        "row": row,
        "all": every,
        "table_label": literal(one.table),
        # A policy that would hide rows makes the statement fail.
        "settings": "SET search_path = pg_catalog, pg_temp SET row_security = off "
        "SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'iso_8601' "
        "SET bytea_output = 'hex' SET extra_float_digits = 1",
        "insert_all": insert("what", of_all),
        "insert_old": insert(
            "CASE WHEN after IS NULL THEN 'delete' ELSE 'update' END",
            f"SELECT old_row AS before, {now('old_row', 'OLD')} AS after",
        ),
        "insert_new": insert(
            "'insert'", f"SELECT NULL::jsonb AS before, {now('new_row', 'NEW')} AS after"
        )
        + " WHERE after IS NOT NULL",
        "old_key": _key_text(one, "old_row"),
        "new_key": _key_text(one, "new_row"),
    }
    code = _CAPTURE.format(**parts)
    rows, truncated = one.quote(one.name), one.quote(f"{one.name}_truncate")
    drop = tuple(f"DROP TRIGGER IF EXISTS {each} ON {one.table}" for each in (rows, truncated))
    return CaptureDdl(
        install=(
            _CHECK_ISOLATION,
            _CAPTURED_ROW.format(**parts),
            _CAPTURE_ALL.format(**parts),
            code,
            # Anyone could have a table of their own fire it, and delete all rows in the log.
            f"REVOKE EXECUTE ON FUNCTION {name}() FROM PUBLIC",
            *drop,  # from here on, the transaction keeps writers out
            _TRIGGER.format(rows, "AFTER INSERT OR UPDATE OR DELETE", one.table, "ROW", name),
            _TRIGGER.format(truncated, "BEFORE TRUNCATE", one.table, "STATEMENT", name),
            f"SELECT {every}('read')",
        ),
        uninstall=(
            *drop,
            f"DROP FUNCTION IF EXISTS {name}()",
            f"DROP FUNCTION IF EXISTS {every}(text)",
            f"DROP FUNCTION IF EXISTS {row}(jsonb)",
        ),
        code=(code,),
        # A function that PUBLIC may run is of an older version.
        installed="SELECT CASE WHEN has_function_privilege('public', tgfoid, 'EXECUTE') "  # noqa: S608 - names are quoted
        "THEN 'public ' ELSE '' END || prosrc FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
        f"WHERE tgrelid = {literal(one.table)}::regclass AND tgname IN ({literal(one.name)}, "
        f"{literal(f'{one.name}_truncate')}) AND tgenabled IN ('O', 'A') "
        "GROUP BY tgfoid, prosrc HAVING count(*) = 2",
        listed=one.key,
        refused=refused,
    )


def _key_text(one: Captured, row: str) -> str:
    """Return the SQL of a row's key as text, of the row as JSON."""
    if len(one.key) == 1:
        return f"({row} ->> {literal(one.key[0])})"
    values = ", ".join(f"{row} -> {literal(key)}" for key in one.key)
    return f"jsonb_build_array({values})::text"
