"""MariaDB and MySQL without a trigger, a column or a lock: watch who is writing.

Every statement that inserts takes a metadata lock on the table before it draws a number, and
keeps it until its transaction has ended and its rows are visible. A transaction prepared by XA
may outlive its connection and, on MariaDB, its lock: each of those counts as a writer of every
table. So: read the last number drawn, then the holders of such locks, then the prepared
transactions. Once all of these have ended, everything up to the number is decided.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub.databases.mysql import is_mariadb, is_node, is_read_only
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering import port
from zeroeventhub.publisher.ordering.port import Blocker, Events, Horizon, Ordering
from zeroeventhub.publisher.ordering.side_tables import check_key
from zeroeventhub.publisher.ordering.writer_tracker import PREPARED, WriterTracker

OLDEST = {True: (10, 5), False: (8, 0, 13)}
"""The first versions of MariaDB (True) and of MySQL (False) that list prepared transactions
reliably and keep the last AUTO_INCREMENT number over a restart."""

# The excluded modes are those of connections that only read, or that alter the table: a connection
# that holds no other one does not insert. MySQL also identifies each lock of a connection, so that
# a connection which writes again and again does not hold the horizon back.
_WRITERS = {
    True: """
        SELECT DISTINCT THREAD_ID AS id, THREAD_ID AS name
        FROM information_schema.METADATA_LOCK_INFO
        WHERE LOCK_MODE NOT IN (
            'MDL_SHARED', 'MDL_SHARED_HIGH_PRIO', 'MDL_SHARED_READ', 'MDL_SHARED_READ_ONLY',
            'MDL_SHARED_UPGRADABLE', 'MDL_SHARED_NO_WRITE', 'MDL_INTENTION_EXCLUSIVE'
        ) AND TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name""",
    False: """
        SELECT DISTINCT OWNER_THREAD_ID AS id,
            CONCAT(OWNER_THREAD_ID, '/', OWNER_EVENT_ID) AS name
        FROM performance_schema.metadata_locks
        WHERE OBJECT_TYPE = 'TABLE' AND LOCK_STATUS = 'GRANTED' AND LOCK_TYPE NOT IN (
            'SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY',
            'SHARED_UPGRADABLE', 'SHARED_NO_WRITE', 'INTENTION_EXCLUSIVE'
        ) AND OBJECT_SCHEMA = COALESCE(:schema, DATABASE()) AND OBJECT_NAME = :name""",
}
# Identifies a server among those that replicate from each other, and since when it runs: after a
# crash it may draw numbers again.
_SERVER = """
    SELECT CONCAT(@@hostname, '/', @@port, '/', @@server_id, '/', UNIX_TIMESTAMP() - VARIABLE_VALUE)
    FROM {}.global_status WHERE VARIABLE_NAME = 'Uptime'"""
_SERVERS = {
    True: text(_SERVER.format("information_schema")),
    False: text(_SERVER.format("performance_schema")),
}

_SHOWS_WRITERS = {
    True: """
        SELECT COUNT(*) FROM information_schema.PLUGINS
        WHERE PLUGIN_NAME = 'METADATA_LOCK_INFO' AND PLUGIN_STATUS = 'ACTIVE'""",
    # The server counts locks that it had no room to instrument as lost.
    False: """
        SELECT COUNT(*) FROM performance_schema.setup_instruments
        WHERE NAME = 'wait/lock/metadata/sql/mdl' AND ENABLED = 'YES' AND (
            SELECT VARIABLE_VALUE FROM performance_schema.global_status
            WHERE VARIABLE_NAME = 'Performance_schema_metadata_lock_lost'
        ) = 0""",
}
_SHOW_WRITERS = {
    True: "INSTALL SONAME 'metadata_lock_info'",
    False: "start it with performance_schema=ON, the instrument wait/lock/metadata/sql/mdl, and "
    "performance_schema_max_metadata_locks large enough",
}
_DRAWS = text("""
    SELECT COUNT(*) FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name
        AND COLUMN_NAME = :column AND EXTRA LIKE '%auto_increment%'
""")
# Not in a comment: those of columns have no line ends, and that of the table follows a quote.
_NEXT = re.compile(r"^\) ENGINE=\w+ (?:[^']*?\bAUTO_INCREMENT=(\d+))?", re.MULTILINE)

_BLOCKERS = {
    True: f"""
        SELECT process.ID AS id, process.USER AS user, '' AS application,
            TIMESTAMPDIFF(MICROSECOND, COALESCE(own.trx_started, NOW(6)), NOW(6)) / 1e6 AS age,
            process.TIME_MS / 1e3 AS query_age
        FROM ({_WRITERS[True]}) AS holder
        JOIN information_schema.PROCESSLIST AS process ON process.ID = holder.id
        LEFT JOIN information_schema.INNODB_TRX AS own ON own.trx_mysql_thread_id = process.ID
        ORDER BY age DESC""",  # noqa: S608 - nothing of it comes from outside
    False: f"""
        SELECT thread.PROCESSLIST_ID AS id, thread.PROCESSLIST_USER AS user,
            COALESCE(attribute.ATTR_VALUE, '') AS application,
            TIMESTAMPDIFF(MICROSECOND, COALESCE(own.trx_started, NOW(6)), NOW(6)) / 1e6 AS age,
            thread.PROCESSLIST_TIME AS query_age
        FROM ({_WRITERS[False]}) AS holder
        JOIN performance_schema.threads AS thread ON thread.THREAD_ID = holder.id
        LEFT JOIN performance_schema.session_connect_attrs AS attribute
            ON attribute.PROCESSLIST_ID = thread.PROCESSLIST_ID
            AND attribute.ATTR_NAME = 'program_name'
        LEFT JOIN information_schema.INNODB_TRX AS own
            ON own.trx_mysql_thread_id = thread.PROCESSLIST_ID
        ORDER BY age DESC""",  # noqa: S608 - nothing of it comes from outside
}


class Observed(Ordering):
    """Order a table of MariaDB or MySQL by its AUTO_INCREMENT column."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._tracker = WriterTracker()

    def check(self, connection: Connection) -> None:
        """Refuse a server that does not show its writers, and a column it does not number."""
        events, mariadb = self._events, is_mariadb(connection)
        check_table(connection, events, OLDEST)
        with name_missing_rights("SELECT ON performance_schema.*"):
            shown = connection.scalar(text(_SHOWS_WRITERS[mariadb]))
        if not shown:
            raise ConfigurationError(
                f"This server does not show who is writing: {_SHOW_WRITERS[mariadb]}, or choose "
                "the ordering sequenced."
            )
        if not connection.scalar(_DRAWS, self._table_name(connection, column=events.position.name)):
            raise ConfigurationError(
                f"{events.position} is not AUTO_INCREMENT: its order is not the order of writing. "
                "Declare it so, or choose the ordering sequenced, if its rows never change."
            )
        if is_read_only(connection):
            raise ConfigurationError(
                "This server is read-only, as replicas are, and cannot tell who is writing on its "
                "primary: let the feed read from the primary."
            )
        if is_node(connection):
            raise ConfigurationError(
                "This server is a node of a Galera cluster and does not know who is writing on "
                "the other nodes: choose the ordering sequenced."
            )
        self._read_prepared(connection)
        events.check_lowest(connection)
        if (number := self._last_numbers(connection)[0]) > HIGHEST_POSITION:
            raise ConfigurationError(
                f"{events.position} has drawn {number}; the positions of a feed end at "
                f"{HIGHEST_POSITION}, and no cursor could have a higher one."
            )

    def horizon(self, connection: Connection) -> Horizon:
        """Observe the writers once, and return the highest number known to be decided."""
        began, origin = self._tracker.begin(), _server_name(connection)
        number, kept = self._last_numbers(connection)
        query = text(_WRITERS[is_mariadb(connection)])
        holders = connection.execute(query, self._table_name(connection)).all()
        # In this order: a writer that becomes prepared after the first query is in the second.
        prepared = self._read_prepared(connection)
        writers = frozenset(
            [*(str(holder.name) for holder in holders), *(f"{PREPARED}{name}" for name in prepared)]
        )
        return self._tracker.horizon(began, origin, number, writers, kept)

    def continue_after(self, connection: Connection, position: int) -> None:
        """Set AUTO_INCREMENT, which commits the transaction."""
        name = quoted(self._events.schema(connection), self._events.table.name)
        connection.execute(text(f"ALTER TABLE {name} AUTO_INCREMENT = {position + 1}"))

    def blockers(self, connection: Connection) -> list[Blocker]:
        """Name the writers of the table, and every prepared transaction."""
        query = text(_BLOCKERS[is_mariadb(connection)])
        rows = connection.execute(query, self._table_name(connection))
        open_ = [
            Blocker(
                row.id,
                row.user or "",
                row.application,
                timedelta(seconds=float(row.age)),
                timedelta(seconds=float(row.query_age or 0)),
            )
            for row in rows
        ]
        prepared = self._read_prepared(connection)
        return open_ + [Blocker(None, "", name, timedelta(), None) for name in prepared]

    def _last_numbers(self, connection: Connection) -> tuple[int, int]:
        """Read the last number drawn, and the one up to which none is drawn again.

        They come from the engine, as information_schema may be out of date.
        """
        name = quoted(self._events.schema(connection), self._events.table.name)
        declared = connection.execute(text(f"SHOW CREATE TABLE {name}")).one()[1]
        found = _NEXT.search(declared)
        if found is None:
            raise ConfigurationError(
                "The session's sql_mode hides the next number of the table: leave NO_TABLE_OPTIONS "
                "and the modes of other databases out of it."
            )
        drawn = int(found[1]) - 1 if found[1] else 0
        if "PARTITION BY" not in declared[found.end() :]:
            return drawn, drawn
        # A statement draws numbers ahead of its rows, and a partitioned table takes back those that
        # it did not use: others may draw them later. No number below a committed one is taken back.
        highest = connection.scalar(select(func.max(self._events.position))) or 0
        return drawn, min(drawn, highest)

    def _read_prepared(self, connection: Connection) -> list[str]:
        """Read the names of all transactions that are prepared and have not ended."""
        with name_missing_rights("XA_RECOVER_ADMIN ON *.*"):
            names = [row[3] for row in connection.execute(text("XA RECOVER"))]
        return [
            name if isinstance(name, str) else name.decode(errors="backslashreplace")
            for name in names
        ]

    def _table_name(self, connection: Connection, **more: str) -> dict[str, str | None]:
        events = self._events
        return {"schema": events.schema(connection), "name": events.table.name, **more}


_KEPT_AS = "zeroeventhub_server"
"""The key under which a connection's `info` stores the name of its server."""


def _server_name(connection: Connection) -> str:
    """Return the name of a connection's server, queried once per connection."""
    if _KEPT_AS not in connection.info:
        query = _SERVERS[is_mariadb(connection)]
        connection.info[_KEPT_AS] = str(connection.scalar(query))
    return str(connection.info[_KEPT_AS])


_ENGINE = text("""
    SELECT ENGINE AS engine FROM information_schema.TABLES
    WHERE TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name
""")


# Texts come in the character set of the connection, with question marks for what it lacks.
_LOST = text("""
    SELECT COLUMN_NAME AS name, @@character_set_results AS charset FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name
        AND @@character_set_results NOT IN ('utf8mb4', 'binary') AND (
            CHARACTER_SET_NAME IN ('utf8mb4', 'utf16', 'utf16le', 'utf32')
            OR CHARACTER_SET_NAME <> 'ascii'
            AND @@character_set_results NOT IN ('utf8', 'utf8mb3', CHARACTER_SET_NAME)
        )
    LIMIT 1
""")


def check_table(
    connection: Connection, events: Events, oldest: dict[bool, tuple[int, ...]]
) -> None:
    """Refuse an old server, lost characters, and a table without transactions or a key.

    `oldest` has the oldest supported version of MariaDB (True) and of MySQL (False).
    """
    dialect: Any = connection.dialect
    version, needed = dialect.server_version_info, oldest[is_mariadb(connection)]
    if version < needed:
        raise ConfigurationError(
            f"This ordering needs {'MariaDB' if is_mariadb(connection) else 'MySQL'} "
            f"{'.'.join(map(str, needed))} or later; this is {'.'.join(map(str, version))}."
        )
    fullname = events.table.fullname
    named = {"schema": events.schema(connection), "name": events.table.name}
    if (found := connection.execute(_ENGINE, named).first()) is None:
        # Found here, as a query of the table itself fails if its name ends in a space.
        raise ConfigurationError(f"There is no table {fullname!r}.")
    if found.engine not in {"InnoDB", None}:  # None for a view
        raise ConfigurationError(
            f"{fullname!r} is not a table of InnoDB but {found.engine}, which has no "
            f"transactions: ALTER TABLE {fullname} ENGINE = InnoDB."
        )
    if (lost := connection.execute(_LOST, named).first()) is not None:
        raise ConfigurationError(
            f"This connection reads texts in the character set {lost.charset}, which lacks "
            f"characters that column {lost.name!r} may hold: add charset=utf8mb4 to the engine's "
            "URL."
        )
    check_key(connection, events)


@contextmanager
def name_missing_rights(rights: str) -> Iterator[None]:
    """Replace an error of the server for missing rights by one that names the rights."""
    try:
        yield
    except DBAPIError as error:
        if error_number(error) not in {1142, 1227, 1401}:  # to a table, an action, XA RECOVER
            raise
        raise ConfigurationError(
            f"The feed's user may not see who is writing: GRANT {rights} TO it, or choose the "
            "ordering sequenced."
        ) from error


def error_number(error: DBAPIError) -> int | None:
    """Return the server's number of an error, from any driver."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


quoted = partial(port.quoted, quote="`")
