"""Land events in a table, as they came: one row an event, numbered as they arrive."""

from collections.abc import Sequence

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import CreateTable

from zeroeventhub.cloud_event import event_id, event_key, event_time, event_type
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.landing.bulk_insert import insert_columns
from zeroeventhub.protocol import Event

__all__ = ["LandingTable"]


class LandingTable:
    """Keep the events of a feed in a table of this shape.

    The columns are partition, arrival (1, 2, 3 … within the partition), id, type, time, key and
    data. The four before data are taken from events that are CloudEvents, and NULL in others.

    Args:
        name: the table's name, with its schema and a dot before it if it has one.
    """

    def __init__(self, name: str) -> None:
        schema, _, table = name.rpartition(".")
        self.table = Table(
            table,
            MetaData(),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            # A number that only one transaction at a time can give: it has moved the cursor.
            Column("arrival", BigInteger, primary_key=True, autoincrement=False),
            Column("id", Text),
            Column("type", Text),
            # MariaDB and MySQL keep whole seconds unless told otherwise.
            Column(
                "time",
                DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb"),
            ),
            Column("key", Text),
            Column("data", JSON().with_variant(JSONB(), "postgresql"), nullable=False),
            schema=schema or None,
        )

    def exists(self, connection: Connection) -> bool:
        """Tell whether there is a table of this name."""
        return inspect(connection).has_table(self.table.name, schema=self.table.schema)

    def create(self, connection: Connection) -> None:
        """Create the table, or check that the one that is there has its columns.

        Raises:
            ConfigurationError: a table of this name is there, of another shape.
        """
        connection.execute(CreateTable(self.table, if_not_exists=True))
        inspector = inspect(connection)
        there = {
            found["name"]
            for found in inspector.get_columns(self.table.name, schema=self.table.schema)
        }
        if missing := [column.name for column in self.table.c if column.name not in there]:
            raise ConfigurationError(
                f"Table {self.table.fullname!r} is there already and has no column "
                f"{', '.join(missing)}: choose another name."
            )

    def land(self, connection: Connection, partition: int, events: Sequence[Event]) -> None:
        """Insert events behind those that have arrived in their partition.

        Args:
            connection: in a transaction that has moved the partition's cursor already, which
                keeps every other process of this consumer waiting.
            partition: where the events come from.
            events: in their order.
        """
        columns = self.table.c
        arrived = connection.scalar(
            select(func.max(columns.arrival)).where(columns.partition == partition)
        )
        insert_columns(
            connection,
            self.table,
            {
                "partition": [partition] * len(events),
                "arrival": range((arrived or 0) + 1, (arrived or 0) + len(events) + 1),
                "id": [event_id(event) for event in events],
                "type": [event_type(event) for event in events],
                "time": [event_time(event) for event in events],
                "key": [event_key(event) for event in events],
                "data": [event.raw.decode() for event in events],
            },
        )
