"""The ordering sequenced: positions that are given after the commit, in a side table.

A trigger inserts the key of every new row into an outbox. Readers of the feed give positions to
committed events, one reader at a time. An event thus gets its number when every reader can see it,
and every event with a position is settled. Any key works, and no open writer delays a reader.
This module names the tables; each database has its own way to fill them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Float,
    Identity,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
    inspect,
    select,
    text,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.statements import creation, fine_moment, row_number, unique_columns
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering.port import Events, Horizon, Ordering, Source, digest, quoted

BACKLOG = 5000
"""How many events get a position in one transaction, at most."""


class SideTables:
    """Name the tables of a feed's positions.

    Their schema is by default that of the events; `types` are those of the events' columns in the
    database, by name, and `options` those of the events' table that its texts depend on.
    """

    def __init__(
        self,
        events: Events,
        schema: str | None = None,
        types: Mapping[str, TypeEngine[Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._events = events.table
        self.key = [f"key_{number}" for number in range(1, len(events.key) + 1)]
        self.copied = {name: column.name for name, column in zip(self.key, events.key, strict=True)}
        if events.partition is not None:
            if not isinstance(events.partition, Column):
                raise ConfigurationError(
                    f"The ordering sequenced copies the partition of an event: {events.partition} "
                    "has to be a column; a generated one will do."
                )
            self.copied["partition"] = events.partition.name
        # Events from before the feed get positions in the order of their numbers or times.
        self.order = [column.name for column in events.key]
        numbered = len(events.key) == 1 and isinstance(events.key[0].type, Integer)
        if not numbered and isinstance(events.time, Column):
            self.order.insert(0, events.time.name)
        # The digest distinguishes feeds over one table, also if the database cuts long names.
        self.digest = digest("/".join([events.table.name, *self.copied.values()]))[:12]
        kinds = types or {column.name: column.type for column in events.table.c}
        metadata = MetaData()

        def table(name: str, *items: SchemaItem) -> Table:
            return Table(
                self.name(name),
                metadata,
                *items,
                schema=events.table.schema if schema is None else schema,
                sqlite_autoincrement=True,
                mysql_engine="InnoDB",
                mariadb_engine="InnoDB",
                **(options or {}),
            )

        def copies() -> list[Column[Any]]:
            return [
                Column(name, kinds[original], nullable=False, autoincrement=False)
                for name, original in self.copied.items()
            ]

        self.positions = table(
            "positions",
            Column("position", row_number(), primary_key=True, autoincrement=False),
            *copies(),
            Column("at", fine_moment(), nullable=False),
            UniqueConstraint(*self.key),
        )
        if "partition" in self.copied:
            # Pages need this index; as a constraint, every database creates it with the table.
            self.positions.append_constraint(UniqueConstraint("partition", "position"))
        self.outbox = table(
            "outbox",
            Column("number", BigInteger, Identity(always=False), primary_key=True),
            *copies(),
        )
        self.state = table(
            "state",
            Column("id", SmallInteger, primary_key=True, autoincrement=False),
            Column("last", BigInteger, nullable=False),
            Column("at", fine_moment(), nullable=False),
        )

    def name(self, kind: str) -> str:
        """Return the name of one of the feed's tables, functions or triggers."""
        return f"zeroeventhub_{kind}_{self.digest}"

    def create(self, connection: Connection, *tables: Table) -> list[str]:
        """Return the statements that create the missing ones of some tables."""
        return [creation(connection.dialect, table) for table in tables]

    def words(self, quote: Callable[..., str], schema: str | None) -> dict[str, str]:
        """Return the values for the placeholders that the statements of databases share."""
        originals = [quote(original) for original in self.copied.values()]
        keys = [f"{name} = event.{quote(self.copied[name])}" for name in self.key]
        order = [f"event.{quote(name)}" for name in self.order]
        return {
            **{
                kind: quote(schema, self.name(kind))
                for kind in ("positions", "outbox", "state", "note", "sequence", "installed")
            },
            "events": quote(schema, self._events.name),
            "trigger": self.name("note"),
            "key": ", ".join(self.key),
            "copies": ", ".join(self.copied),
            "new": ", ".join(f"NEW.{original}" for original in originals),
            "originals": ", ".join(f"event.{original}" for original in originals),
            "known": " AND ".join(f"known.{same}" for same in keys),
            "order": ", ".join(order),
            "descending": ", ".join(f"{column} DESC" for column in order),
        }


class SideTableOrdering(Ordering):
    """Order a table by positions in a side table.

    Attributes:
        call: the SQL command that calls the routine which gives positions to the events of an
            outbox; None if the database has no outbox, as a trigger gives the positions.
    """

    unrestorable = (
        "With this ordering, rows get new positions when they are inserted, so a table cannot "
        "be restored: publish its archive alone, or restore a backup of the database."
    )
    call: str | None = None
    quote: Callable[..., str] = staticmethod(quoted)
    lateral = False

    def __init__(self, events: Events) -> None:
        self._events = events
        self._tables = SideTables(events)
        self._is_replica = False
        self._is_node = False  # of a cluster whose nodes all give positions
        positions = self._tables.positions.c
        self.source = Source(
            self._tables.positions,
            positions.position,
            None if events.partition is None else positions.partition,
            given_at=positions.at,
            events=events.table,
            key=dict(zip(self._tables.key, events.key, strict=True)),
            waiting=self._tables.outbox if self.call else None,
            lateral=self.lateral,
        )

    def step(self, connection: Connection) -> str | None:
        """Return the call that gives positions to committed events."""
        if self.call is None or self._is_replica:
            return None
        routine = self.quote(self._events.schema(connection), self._tables.name("sequence"))
        return f"{self.call} {routine}({BACKLOG})"

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last position given.

        Raises:
            Unavailable: no event has a position yet.
        """
        last: int | None = connection.scalar(select(self._tables.state.c.last))
        if last is None:
            raise Unavailable(
                "The events from before the feed have no positions yet: run the second part of "
                "what `zeroeventhub ddl` prints.",
                retry_after=1,
            )
        # A cursor from the primary, or from another node, may be ahead of this server.
        may_lag = self._is_replica or self._is_node
        return Horizon(settled=last, highest=HIGHEST_POSITION if may_lag else last)

    def _no_trigger_error(self) -> ConfigurationError:
        """Return the error for a table without a trigger, or with that of another version."""
        return ConfigurationError(
            f"Table {self._events.table.fullname!r} has no trigger of this version that notes its "
            "new rows: install it, by the statements that `zeroeventhub ddl --ordering sequenced` "
            "prints. If the table or a column of its key was renamed, rename it back, as new "
            "positions fit no consumer's cursor."
        )

    def _typed_tables(self, connection: Connection, schema: str | None) -> SideTables:
        """Return the tables with columns of the types that the event's have in the database."""
        types = {column["name"]: column["type"] for column in _columns(connection, self._events)}
        if missing := {*self._tables.copied.values()} - types.keys():
            raise ConfigurationError(
                f"Table {self._events.table.fullname!r} has no column {min(missing)!r}."
            )
        table, of_events = self._events.table.name, self._events.schema(connection)
        # What MariaDB and MySQL leave out of the types of columns.
        options = {
            name: value
            for name, value in inspect(connection).get_table_options(table, of_events).items()
            if name.endswith(("charset", "collate"))
        }
        return SideTables(self._events, schema, types, options)


_KEY_OF_SQLITE = text("SELECT name, upper(type) AS type FROM pragma_table_info(:table) WHERE pk")


def check_key(connection: Connection, events: Events) -> None:
    """Refuse a table that may hold two events of one key, or an event without a key."""
    events.check_table(connection)
    table = events.table
    key = {column.name for column in events.key}
    columns = _columns(connection, events)
    nullable = {column["name"] for column in columns if column["nullable"]}
    is_sqlite = connection.dialect.name == "sqlite"  # whose REAL is of double precision
    for column in columns:
        is_single = isinstance(column["type"], Float) and not isinstance(column["type"], Double)
        if column["name"] in key and is_single and not is_sqlite:
            raise ConfigurationError(
                f"{column['name']!r} holds numbers of single precision, by which a trim would not "
                "find the rows that it deletes: let them be of double precision."
            )
    if is_sqlite:
        row_id = connection.execute(_KEY_OF_SQLITE, {"table": table.name}).all()
        if [column.type for column in row_id] == ["INTEGER"]:
            nullable -= {row_id[0].name}  # an alias of the row id, whatever the declaration says
    if key not in unique_columns(connection, table) or key & nullable:
        raise ConfigurationError(
            f"{', '.join(map(str, events.key))} may be NULL or the same in two rows: make it the "
            "primary key, or NOT NULL and UNIQUE."
        )


def _columns(connection: Connection, events: Events) -> Any:
    return inspect(connection).get_columns(events.table.name, schema=events.schema(connection))
