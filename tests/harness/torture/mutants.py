"""Orderings with one thing wrong: torture that does not catch each of them proves nothing."""

import random
import time
from collections.abc import Callable

from sqlalchemy import Engine, event

HASTE = 0.03  # seconds at most between locks that are read too early and the number
LOCKS = ("pg_locks WHERE", "METADATA_LOCK_INFO", "metadata_locks")
NUMBER = ("last_value", "SHOW CREATE TABLE")

Spoil = Callable[[Engine], None]
"""Lets the statements of an engine do something else."""


def rewritten(*changes: tuple[str, str], before: str = "") -> Spoil:
    """Change parts of statements; run a statement of one's own before all."""

    def spoil(engine: Engine) -> None:
        if before:
            with engine.begin() as connection:
                connection.exec_driver_sql(before)

        @event.listens_for(engine, "before_cursor_execute", retval=True)
        def rewrite(_connection, _cursor, statement, parameters, *_more):
            for old, new in changes:
                statement = statement.replace(old, new)
            return statement, parameters

    return spoil


def locks_first(engine: Engine) -> None:
    """Read the locks some time before the number, and not behind it."""
    known: list = []

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def swap(connection, cursor, statement, parameters, *_more):
        if any(word in statement for word in LOCKS):
            known[:] = [(statement, parameters)]
            if "early" in connection.info:
                found = connection.info.pop("early")
                rows = " UNION ALL ".join(f"SELECT {name!r}, {name!r} AS name" for name in found)
                return rows or "SELECT 1, 1 AS name FROM (SELECT 1) AS nothing WHERE 1 = 0", None
        elif known and any(word in statement for word in NUMBER):
            cursor.execute(*known[0])
            connection.info["early"] = [row[0] for row in cursor.fetchall()]
            time.sleep(random.random() * HASTE)
        return statement, parameters


_NO_LOCKS = rewritten(("FROM pg_locks WHERE", "FROM pg_locks WHERE false AND"))
_BACKWARDS = rewritten(
    (".id\n LIMIT", ".id DESC\n LIMIT"), (".position\n LIMIT", ".position DESC\n LIMIT")
)

MUTANTS: dict[tuple[str, str, str], Spoil] = {
    ("postgresql", "observed", "locks read before the number"): locks_first,
    ("postgresql", "observed", "writers ignored"): _NO_LOCKS,
    ("postgresql", "gated", "locks read before the number"): locks_first,
    ("postgresql", "gated", "marks ignored"): _NO_LOCKS,
    # Positions come from a sequence, and everybody gives them to rows that are free.
    ("postgresql", "sequenced", "by everybody at once"): rewritten(
        (" FOR UPDATE SKIP LOCKED", ""),
        ("ORDER BY number LIMIT amount", "ORDER BY number LIMIT amount FOR UPDATE SKIP LOCKED"),
        ("state.last + row_number() OVER (ORDER BY number)", "nextval('public.mutant')"),
        (
            "state.last := state.last + moved",
            """state.last := pg_sequence_last_value('public.mutant'::regclass);
            PERFORM pg_sleep(random() * 0.03)""",
        ),
        before="CREATE SEQUENCE IF NOT EXISTS mutant",
    ),
    ("postgresql", "sequenced", "low mark that waits for no writer"): rewritten(
        ("virtualtransaction = ANY (state.holders)", "false"),
        ("state.low + 1000", "state.low"),
    ),
    ("mariadb", "observed", "locks read before the number"): locks_first,
    ("mariadb", "observed", "prepared transactions forgotten"): rewritten(
        ("XA RECOVER", "SELECT 1, 2, 3, 4 FROM DUAL WHERE FALSE")
    ),
    ("mariadb", "sequenced", "by everybody at once"): rewritten(("FOR UPDATE SKIP LOCKED", "")),
    ("sqlite", "single-writer", "pages read backwards"): _BACKWARDS,
    ("sqlite", "sequenced", "pages read backwards"): _BACKWARDS,
}
"""What is wrong, by the database and the ordering."""
