"""Change logs of ordinary tables: triggers write each change of a row to a log."""

from collections.abc import Iterator

from sqlalchemy import Connection, MetaData, Table, inspect, text
from sqlalchemy.exc import NoSuchTableError

from zeroeventhub.databases import database_of
from zeroeventhub.databases.port import Captured, CaptureDdl
from zeroeventhub.databases.statements import quoted, run
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.log import EventLog
from zeroeventhub.event_log.log_table import writing
from zeroeventhub.new_events import LONGEST_NAME
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.ordering.port import digest


class Capture:
    """Write each change of some tables to a log, by triggers.

    Example:
        changes = EventLog(MetaData(), "changes")
        with engine.begin() as connection:
            changes.table.create(connection)
            Capture(changes, "orders").install(connection)

    Args:
        log: the log, with one partition, whose table exists when the triggers are installed.
        tables: the names of the tables, each with a primary key; schema.table if needed.

    Raises:
        ConfigurationError: the log has several partitions, or two tables have one name.
    """

    def __init__(self, log: EventLog, *tables: str) -> None:
        if len(log.layout.info().partitions) != 1:
            raise ConfigurationError(
                "Triggers write to the only partition of a log: let it have one partition."
            )
        names = [table.rpartition(".")[2] for table in tables]
        if len({*names}) < len(names):
            raise ConfigurationError(
                "Rows of tables of one name, in two schemas, would have the same keys in a log: "
                "give each of these tables a log of its own."
            )
        self._log = log.table
        self._tables = tables

    def install(self, connection: Connection) -> None:
        """Create the triggers, and write the rows that are there to the log; may be called again.

        No row changes between the two. Call it again after each migration that adds, renames or
        drops columns, or on SQLite adds a unique index: the log then has each row again, with its
        columns of now.

        Args:
            connection: in a transaction that you commit, with the right to create triggers. On
                MariaDB and MySQL, each statement commits what came before.

        Raises:
            ConfigurationError: a table cannot be captured, or the connection commits each
                statement by itself.
        """
        writing(connection, self._log)
        for ddl in self.ddl(connection).values():
            try:
                run(connection, ddl.install)
            finally:
                run(connection, ddl.release)

    def uninstall(self, connection: Connection) -> None:
        """Remove the triggers; the log keeps its events.

        Args:
            connection: in a transaction that you commit, with the right to drop triggers.
        """
        for ddl in self.ddl(connection, removing=True).values():
            run(connection, ddl.uninstall)

    def check(self, connection: Connection) -> list[Finding]:
        """Return for each table whether its triggers are there, and know its columns."""
        found = []
        for table, ddl in self.ddl(connection).items():
            code = {*connection.scalars(text(ddl.installed))}
            quote = quoted(connection.dialect)
            missing = [one for one in ddl.listed if not any(quote(one) in each for each in code)]
            if not code:
                sentence = f"The changes of {table!r} are not captured"
            elif missing:
                sentence = f"The triggers of {table!r} do not know {', '.join(missing)}"
            elif len(code) < len(ddl.code) or not all(
                any(each in statement for statement in ddl.code) for each in code
            ):
                sentence = f"The triggers of {table!r} are of other columns or an older version"
            else:
                sentence = f"The changes of {table!r} are captured."
                found.append(Finding("ok", "capture", sentence))
                continue
            sentence += f": run what `zeroeventhub ddl --capture {table}` prints."
            found.append(Finding("error", "capture", sentence))
        return found

    def ddl(self, connection: Connection, *, removing: bool = False) -> dict[str, CaptureDdl]:
        """Return the statements for each table, by its name.

        Args:
            connection: to the database of the tables.
            removing: only those of removal are asked for, also of tables that have changed so that
                they cannot be captured any longer.

        Raises:
            ConfigurationError: a table cannot be captured.
        """
        database = database_of(connection)
        captured = self._captured(connection, removing=removing)
        found = {
            table: database.capture(connection, one)
            for table, one in zip(self._tables, captured, strict=True)
        }
        for ddl in found.values():
            if ddl.refused and not removing:
                raise ConfigurationError(ddl.refused)
        return found

    def _captured(self, connection: Connection, *, removing: bool) -> Iterator[Captured]:
        look, database = inspect(connection), database_of(connection)
        quote = quoted(connection.dialect)
        for full in self._tables:
            given, _, name = full.rpartition(".")
            schema = connection.schema_for_object(Table(name, MetaData(), schema=given or None))
            if full == self._log.fullname and not removing:
                raise ConfigurationError(
                    f"Table {full!r} is the log itself: each of its events would be a change that "
                    "has an event."
                )
            try:
                types = {one["name"]: one["type"] for one in look.get_columns(name, schema)}
            except NoSuchTableError:
                raise ConfigurationError(f"There is no table {full!r} in this database.") from None
            key = look.get_pk_constraint(name, schema)["constrained_columns"]
            if not key:
                raise ConfigurationError(
                    f"Table {full!r} has no primary key, by which the log would know its rows."
                )
            for foreign in look.get_foreign_keys(name, schema):
                rules = {*foreign.get("options", {}).values()} - {"NO ACTION", "RESTRICT"}
                if rules and not removing and not database.cascades_fire_triggers:
                    raise ConfigurationError(
                        f"Foreign key {foreign['name']!r} of {full!r} has the rule "
                        f"{min(rules)}, by which {database.title(connection.dialect)} changes rows "
                        "without firing triggers: let it be RESTRICT, and change these rows in the "
                        "transaction itself."
                    )
            yield Captured(
                label=name,
                schema=schema,
                log=self._log.name,
                log_schema=connection.schema_for_object(self._log),
                name=f"zeroeventhub_capture_{digest(f'{self._log.fullname}/{full}')[:12]}",
                types=types,
                key=key,
                longest_key=LONGEST_NAME,
                quote=quote,
            )
