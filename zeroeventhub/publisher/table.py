"""A feed over a table of the caller's."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import (
    Connection,
    Engine,
    Table,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.partitions import Layout
from zeroeventhub.publisher.assembly import build
from zeroeventhub.publisher.bound_feed import AsyncBoundFeed, BoundFeed
from zeroeventhub.publisher.compacting import Compaction
from zeroeventhub.publisher.cursor import Seal
from zeroeventhub.publisher.mapping import Data, Expression, Mapper, resolve
from zeroeventhub.publisher.options import (
    Definition,
    attributes_of,
    envelope_of,
    info_of,
    key_of,
    partition_of,
    table_of,
)
from zeroeventhub.publisher.ordering import Events, Ordering
from zeroeventhub.publisher.partition_hash import hash_on_connect
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention
from zeroeventhub.settings import Capacity

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

__all__ = [
    "TableFeed",
]


class TableFeed:
    """Publish a table as a feed.

    Example:
        feed = TableFeed(orders, data="data", type="kind", partition="part", partitions=4)
        app = Starlette(routes=feed_routes("/orders", feed, engine))
        page = feed.bind(engine).read(0, FIRST, 100)

    Args:
        table: a Table of SQLAlchemy, or an ORM class: yours, unchanged.
        position: the column whose order is the order of events, drawn by the database;
            by default the primary key. With the ordering sequenced, any column that identifies
            an event.
        partition: the column that holds an event's partition, 0 to partitions - 1, or an
            expression such as `partition_expression` makes of a key; None for one partition.
        partitions: how many partitions there are, or a Layout of partitions that have changed;
            see docs/partitions.md. With None, and a partition column, the feed has as many as its
            table: it looks when it is first asked and then once a minute, and when an event of a
            new partition is found it has that partition too, and another token.
        data: what an event's data is: one JSON or text column, a list of columns, or SQL
            expressions by name; by default all columns. See docs/json.md for their form.
        type: the column of the event's type.
        key: the column whose equal values keep their order.
        version: the column of an event's number within its key, unique together with the key.
            Events with one are not trimmed.
        key_history: let readers ask for the events of one key; see docs/keys.md.
        id: the column that identifies the event; by default its position.
        time: the column of the time of the event.
        cloudevents: wrap data in a CloudEvents 1.0 envelope made of these columns. A string
            is the envelope's `source`; True takes the table's name.
        attributes: more attributes of that envelope by name, each with the column it is taken from:
            `subject`, `dataschema`, `traceparent`, or one of an extension. An event where it is
            NULL or empty has none.
        headers: v1 headers by name, each with the column it is taken from.
        ordering: "observed", "gated" or "sequenced" on PostgreSQL, "observed" or "sequenced" on
            MariaDB and MySQL, "single-writer" or "sequenced" on SQLite; by default the first of
            each, which needs nothing in your database. See docs/ordering.md.
        append_only: promise that no row is ever deleted, which SQLite needs to hear for a
            table without AUTOINCREMENT, because it gives the number of a deleted row again.
        mutable: say that rows are changed or deleted after they were written. By default a cursor
            is refused if the event that it stands at is no longer the same, which shows that
            history was lost; of a mutable feed only the numbers can be compared.
        cursor_secret: 16 bytes or more, known to the publisher alone, and the same in all of its
            processes. A cursor holds a digest of the event at which it stands, also of one that its
            reader may not see; with a secret no reader can check by it whether a guess of that
            event is right. Needed where readers may see only a part of the feed, and events can be
            guessed. With another secret, of cursors from before only the numbers are compared.
        retention: the table that holds what has been trimmed of the feed, so that readers that come
            too late get 410, and no other reader does; see docs/retention.md.
        progress: the table that holds how far consumers have come that register it, so that
            trimming waits for them.
        compaction: keep the last event of each key, and let those before it go, whenever the bound
            feed's `compact` is called; see docs/retention.md.
        archive: where its history is sealed to and read from once it is trimmed, so that no reader
            comes too late; see docs/archive.md.

    Raises:
        ConfigurationError: a column does not exist, its type has no JSON form, or the secret is
            too short.
    """

    def __init__(
        self,
        table: Table | type[Any],
        *,
        position: Expression | None = None,
        partition: Expression | None = None,
        partitions: int | Layout | None = None,
        data: Data | None = None,
        type: Expression | None = None,  # noqa: A002 - the name that users know
        key: Expression | None = None,
        version: Expression | None = None,
        key_history: bool = False,
        id: Expression | None = None,  # noqa: A002 - the name that users know
        time: Expression | None = None,
        cloudevents: bool | str = False,
        attributes: Mapping[str, Expression] | None = None,
        headers: Mapping[str, Expression] | None = None,
        ordering: str | None = None,
        append_only: bool = False,
        mutable: bool = False,
        cursor_secret: bytes | str | None = None,
        retention: Retention | None = None,
        progress: Progress | None = None,
        archive: "Archive | None" = None,
        compaction: Compaction | None = None,
    ) -> None:
        found = table_of(table)
        named = {"id": id, "type": type, "key": key, "time": time}
        given = {
            name: resolve(found, column) for name, column in named.items() if column is not None
        }
        envelope = envelope_of(found, cloudevents)
        mapper = Mapper(
            found,
            data=list(found.c) if data is None else data,
            attributes=given | attributes_of(attributes, envelope),
            envelope=envelope,
            headers=headers or {},
        )
        position_key = key_of(found, position, ordering)
        column = partition_of(found, partition, partitions)
        self._defined = Definition(
            events=Events(found, position_key, column, given.get("time"), append_only),
            ordering_name=ordering,
            partitions=partitions,
            info=info_of(partitions),
            mapper=mapper,
            envelope=envelope,
            attributes=given,
            version=None if version is None else resolve(found, version),
            shows_keys=key_history,
            seal=Seal(mapper.recipe, cursor_secret),
            is_mutable=mutable,
            retention=retention,
            progress=progress,
            archive=archive,
            compaction=compaction,
        )

    @overload
    def bind(self, engine: Engine, capacity: Capacity | None = None) -> BoundFeed: ...

    @overload
    def bind(self, engine: AsyncEngine, capacity: Capacity | None = None) -> AsyncBoundFeed: ...

    def bind(
        self, engine: Engine | AsyncEngine, capacity: Capacity | None = None
    ) -> BoundFeed | AsyncBoundFeed:
        """Return the feed that reads the table through an engine of yours.

        The feed checks the table when it is first asked for anything, and raises
        ConfigurationError if the table is not there or lacks what a safe order needs. An event in
        a partition that the feed does not have is an ERROR in the log, once a minute; the other
        partitions are read on, and nothing is trimmed, compacted or sealed until it is moved.

        Args:
            engine: yours.
            capacity: how much the feed takes of it; a Capacity() by default.

        Raises:
            ConfigurationError: events of this database cannot be put in a safe order.
        """
        hash_on_connect(engine)
        return build(self._defined, engine, capacity or Capacity())

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of this feed's table, for a database by SQLAlchemy's name for it.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return self._defined.ordering(dialect)

    def has_mark(self, connection: Connection) -> bool:
        """Tell whether the database says what has been trimmed of the feed."""
        marks = self._defined.marks(self.ordering(connection.dialect.name).source)
        return marks is not None and marks.are_there(connection)

    def install(self, connection: Connection) -> None:
        """Add to the database what the ordering and retention need; again, and nothing changes.

        Args:
            connection: in a transaction of yours, with the right to create triggers.
        """
        ordering = self.ordering(connection.dialect.name)
        ddl = ordering.ddl(connection)
        _run(connection, (*ddl.install, *ddl.backfill))
        if (marks := self._defined.marks(ordering.source)) is not None:
            marks.install(connection)
        if self._defined.progress is not None:
            self._defined.progress.create_tables(connection)

    def thin(self, connection: Connection, until: int) -> None:
        """Say that events may be missing one by one, in the transaction that deletes them.

        Cursors that stand at them stay good. Pages of events up to there are no longer said to stay
        as they are; what was said before, caches may go by.

        Args:
            connection: in a transaction of yours.
            until: the highest position of an event that is deleted.

        Raises:
            ConfigurationError: the feed has no `retention`, or no row there.
        """
        marks = self._defined.marks(self.ordering(connection.dialect.name).source)
        if marks is None:
            raise ConfigurationError("A feed that loses events needs a Retention, which says so.")
        marks.check(connection)
        marks.thin(connection, until)

    def uninstall(self, connection: Connection) -> None:
        """Remove from the database what the ordering has added; the table's data stays.

        What was trimmed stays known: the positions of a feed go on above it.
        """
        _run(connection, self.ordering(connection.dialect.name).ddl(connection).uninstall)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        # Nothing in a statement is a parameter, neither after a colon nor after a percent sign.
        connection.execute(text(statement.replace(":", r"\:")))
