"""The triggers of PostgreSQL that write the changes of a table to a log."""

from dataclasses import replace

from sqlalchemy import Connection

from zeroeventhub.databases.capture import Captured, CaptureDdl, literal

# A row becomes JSON with all columns that it has at the moment. Decimals become text, as their
# digits would not survive a reader that takes them for binary numbers, and bytes lose their prefix.
_CAPTURED_ROW = """CREATE OR REPLACE FUNCTION {row}(one jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $capture$
    SELECT one || coalesce(jsonb_object_agg(
        attname, CASE kind WHEN 'bytea'::regtype THEN substr(one ->> attname, 3)
            ELSE one ->> attname END
    ), '{{}}') FROM (
        SELECT attname, CASE typtype WHEN 'd' THEN typbasetype ELSE atttypid END::regtype AS kind
        FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
        WHERE attrelid = {table_label}::regclass AND attnum > 0 AND NOT attisdropped
    ) AS typed WHERE kind IN ('bytea'::regtype, 'numeric'::regtype)
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

_NOW = """SELECT {row}(to_jsonb(now)) AS row_of FROM {table} AS now WHERE {same} OFFSET 0"""

_CHECK_ISOLATION = """DO $capture$ BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the installation needs READ COMMITTED, to see all that is committed';
    END IF;
END $capture$"""


def capture(connection: Connection, one: Captured) -> CaptureDdl:
    """Return the triggers, of which each reads the row that is there by now, and their functions.

    The functions look no name up by the search_path, which belongs to the writers.
    """
    default = connection.dialect.default_schema_name
    one = replace(one, schema=one.schema or default, log_schema=one.log_schema or default)
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

    def now(variable: str, old: str) -> str:
        found = _NOW.format(row=row, table=one.table, same=one.same_key("now", old))
        same = f"{_key_text(one, 'row_of')} = {_key_text(one, variable)}"
        return f"(SELECT row_of FROM ({found}) AS found WHERE {same} LIMIT 1)"  # noqa: S608 - quoted

    of_all = (
        "SELECT CASE what WHEN 'delete' THEN row_of END AS before, "  # noqa: S608 - quoted names
        "CASE what WHEN 'read' THEN row_of END AS after FROM "
        f"(SELECT {row}(to_jsonb(one)) AS row_of FROM {one.table} AS one "
        f"ORDER BY {', '.join(f'one.{one.quote(key)}' for key in one.key)}) AS every_row"
    )
    parts = {
        "name": name,
        "row": row,
        "all": every,
        "table_label": literal(one.table),
        "settings": "SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' "
        "SET intervalstyle = 'iso_8601' SET bytea_output = 'hex' SET extra_float_digits = 1",
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
        installed="SELECT prosrc "  # noqa: S608 - names are quoted
        "FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
        f"WHERE tgrelid = {literal(one.table)}::regclass AND tgname = {literal(one.name)} "
        "AND tgenabled <> 'D'",
        listed=one.key,
    )


def _key_text(one: Captured, row: str) -> str:
    """Return the SQL of a row's key as text, of the row as JSON."""
    if len(one.key) == 1:
        return f"({row} ->> {literal(one.key[0])})"
    values = ", ".join(f"{row} -> {literal(key)}" for key in one.key)
    return f"jsonb_build_array({values})::text"
