"""A feed over a table of the caller's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, overload
from urllib.parse import quote

from sqlalchemy import ColumnElement, Connection, DateTime, Engine, Integer, Table, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.layout import Layout
from zeroeventhub.protocol import (
    CAUGHT_UP,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    LAG,
    SPLITS,
    STOP,
    WAIT,
    FeedInfo,
)
from zeroeventhub.publisher.bound_feed import AsyncBoundFeed, BoundFeed
from zeroeventhub.publisher.checkup import Checkup
from zeroeventhub.publisher.columns import Columns
from zeroeventhub.publisher.count_query import CountQuery
from zeroeventhub.publisher.cursor import Seal
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.id_query import IdQuery
from zeroeventhub.publisher.lag_query import LagQuery
from zeroeventhub.publisher.mapping import CloudEvents, Data, Expression, Mapper, resolve
from zeroeventhub.publisher.near_rows import NearRows
from zeroeventhub.publisher.needed_index import NeededIndex
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.partition_hash import hash_on_connect
from zeroeventhub.publisher.reader import Queries, Reader
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.split_query import SplitQuery
from zeroeventhub.publisher.time_query import TimeQuery
from zeroeventhub.publisher.type_condition import TypeCondition

__all__ = ["TableFeed"]


class TableFeed:
    """Publish a table as a feed.

    Args:
        table: a Table of SQLAlchemy, or an ORM class: yours, unchanged.
        position: the column whose order is the order of events, drawn by the database;
            by default the primary key. With the ordering sequenced, any column that identifies
            an event.
        partition: the column that holds an event's partition, 0 to partitions - 1, or an
            expression such as `partition_expression` makes of a key; None for one partition.
        partitions: how many partitions there are, or a Layout of partitions that have changed;
            see docs/partitions.md.
        data: what an event's data is: one JSON or text column, a list of columns, or SQL
            expressions by name; by default all columns. See docs/json.md for their form.
        type: the column of the event's type.
        key: the column whose equal values keep their order.
        id: the column that identifies the event; by default its position.
        time: the column of the time of the event.
        cloudevents: wrap data in a CloudEvents 1.0 envelope made of these columns. A string
            is the envelope's `source`; True takes the table's name.
        headers: v1 headers by name, each with the column it is taken from.
        ordering: "observed", "gated" or "sequenced" on PostgreSQL, "observed" or "sequenced" on
            MariaDB and MySQL, "single-writer" or "sequenced" on SQLite; by default the first of
            each, which needs nothing in your database. See docs/ordering.md.
        append_only: promise that no row is ever deleted, which SQLite needs to hear for a
            table without AUTOINCREMENT, because it gives the number of a deleted row again.
        mutable: say that rows are changed or deleted after they were written. By default a cursor
            is refused if the event that it stands at is no longer the same, which shows that
            history was lost; of a mutable feed only the numbers can be compared.
        cursor_secret: known to the publisher alone, and the same in all of its processes. A cursor
            holds a digest of the event at which it stands, also of one that its reader may not see;
            with a secret nobody can check by it whether a guess of that event is right. Needed
            where readers may see only a part of the feed, and events can be guessed. With another
            secret, of cursors from before only the numbers are compared.

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
        id: Expression | None = None,  # noqa: A002 - the name that users know
        time: Expression | None = None,
        cloudevents: bool | str = False,
        headers: Mapping[str, Expression] | None = None,
        ordering: str | None = None,
        append_only: bool = False,
        mutable: bool = False,
        cursor_secret: bytes | str | None = None,
    ) -> None:
        found = _table(table)
        self._events = Events(
            found,
            _key(found, position, ordering),
            _partition(found, partition, partitions),
            None if time is None else resolve(found, time),
            append_only,
        )
        self._ordering = ordering
        self._mutable = mutable
        self._type = None if type is None else resolve(found, type)
        self._id = None if id is None else resolve(found, id)
        self._envelope = _envelope(found, cloudevents)
        if isinstance(partitions, Layout):
            self._info, self._ids = partitions.info(), partitions.ids
        else:
            self._info = FeedInfo.of(1 if partitions is None else partitions)
            self._ids = frozenset(partition.id for partition in self._info.partitions)
        self._mapper = Mapper(
            found,
            data=list(found.c) if data is None else data,
            attributes={
                name: column
                for name, column in {"id": id, "type": type, "key": key, "time": time}.items()
                if column is not None
            },
            envelope=self._envelope,
            headers=headers or {},
        )
        self._seal = Seal(self._mapper.recipe, cursor_secret)
        known = (*self._events.key, self._events.partition, self._events.time, self._type, self._id)
        self._used = [*self._mapper.columns, *(each for each in known if each is not None)]

    @overload
    def bind(self, engine: Engine, capacity: Capacity | None = None) -> BoundFeed: ...

    @overload
    def bind(self, engine: AsyncEngine, capacity: Capacity | None = None) -> AsyncBoundFeed: ...

    def bind(
        self, engine: Engine | AsyncEngine, capacity: Capacity | None = None
    ) -> BoundFeed | AsyncBoundFeed:
        """Return the feed that reads the table through an engine of yours.

        The feed checks the table when it is first asked for anything, and raises
        ConfigurationError if the table is not there, lacks what a safe order needs, or has
        events outside of the partitions.

        Args:
            engine: yours.
            capacity: how much the feed takes of it; a Capacity() by default.

        Raises:
            ConfigurationError: events of this database cannot be put in a safe order.
        """
        hash_on_connect(engine)
        capacity = capacity or Capacity()
        reader = self._reader(engine.dialect.name, capacity)
        if isinstance(engine, AsyncEngine):
            return AsyncBoundFeed(reader, engine, capacity)
        return BoundFeed(reader, engine, capacity)

    def _reader(self, dialect: str, capacity: Capacity) -> Reader:
        ordering = self.ordering(dialect)
        source, time = ordering.source, self._events.time
        near, all_near = NearRows(source), NearRows.of_all(source)
        times, ids = (
            self._searched_by(source, time),
            self._searched_by(source, self._id, alike=True),
        )
        rows = RowQuery(near, self._mapper, dialect, joins=True)
        types = self._types(dialect)
        extensions = {CAUGHT_UP, CURSOR_OF_COUNT, LAG, SPLITS, STOP, WAIT}
        if types is not None:
            extensions.add(EVENT_TYPES)
        if isinstance(getattr(time, "type", None), DateTime) or (
            time is None and source.given_at is not None
        ):
            extensions.add(CURSOR_OF_TIME)
        pages = PageQuery(
            rows, self._info.partitions, self._ids, types, page_bytes=capacity.page_bytes
        )
        return Reader(
            replace(self._info, extensions=frozenset(extensions)),
            ordering,
            History(RowQuery(all_near, self._mapper, dialect), self._seal, mutable=self._mutable),
            Queries(
                pages=pages,
                times=TimeQuery(source, all_near, times),
                splits=SplitQuery(near),
                ids=IdQuery(source, ids, types),
                lags=LagQuery(near, time),
                counts=CountQuery(near),
            ),
            Checkup(
                ordering,
                Columns(self._events.table, self._used),
                pages,
                partitions=[partition.id for partition in self._info.partitions],
                near=[each for each in (near, all_near, times, ids) if each is not None],
                indexes=self._indexes(near, all_near, times, ids),
            ),
        )

    @staticmethod
    def _searched_by(
        source: Source, column: ColumnElement[Any] | None, *, alike: bool = False
    ) -> NearRows | None:
        """Find events by a column of theirs, in one partition or in all of them alike."""
        if column is None:
            return None
        if source.events is not None:
            return NearRows(Source(source.events, column, None))
        return NearRows(Source(source.table, column, None if alike else source.partition))

    def _indexes(
        self, near: NearRows, all_near: NearRows, times: NearRows | None, ids: NearRows | None
    ) -> list[NeededIndex]:
        """List the indexes that the feed's queries need, first the one of its pages."""
        needed = [
            NeededIndex(near.source, f"the pages of table {self._events.table.fullname!r}"),
            NeededIndex(all_near.source, "a look at the event of a cursor"),
        ]
        if times is not None and isinstance(times.source.position.type, DateTime):
            more = (near.source.position,) if near.source.events is None else ()
            purpose = "a search for the events of a moment"
            needed.append(NeededIndex(times.source, purpose, more))
        if ids is not None:
            purpose = "a search for an event by its id, as HTTP feeds make it"
            needed.append(NeededIndex(ids.source, purpose))
        return needed

    def _types(self, dialect: str) -> TypeCondition | None:
        """Return what filters events by type, if it can be told from their rows."""
        default = self._envelope.type if self._envelope else ""
        if self._type is None and not default:
            return None
        if self._type is not None and not TypeCondition.understands(self._type):
            return None
        return TypeCondition(self._type, default, dialect)

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of this feed's table, for a database by SQLAlchemy's name for it.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return ordering_for(dialect, self._events, self._ordering)

    def install(self, connection: Connection) -> None:
        """Add to the database what the ordering needs; again, and nothing changes.

        Args:
            connection: in a transaction of yours, with the right to create triggers.
        """
        ddl = self.ordering(connection.dialect.name).ddl(connection)
        _run(connection, (*ddl.install, *ddl.backfill))

    def uninstall(self, connection: Connection) -> None:
        """Remove from the database what the ordering has added; the table's data stays."""
        _run(connection, self.ordering(connection.dialect.name).ddl(connection).uninstall)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        # Nothing in a statement is a parameter, neither behind a colon nor behind a percent sign.
        connection.execute(text(statement.replace(":", r"\:")))


def _table(table: Table | type[Any]) -> Table:
    mapped = inspect(table, raiseerr=False)
    found = getattr(mapped, "local_table", mapped)
    if not isinstance(found, Table):
        raise ConfigurationError(f"{table!r} is neither a Table nor a class mapped to one.")
    return found


def _key(
    table: Table, position: Expression | None, ordering: str | None
) -> tuple[ColumnElement[Any], ...]:
    """Find the column of positions, or the key of rows whose positions the ordering gives."""
    key = tuple(table.primary_key.columns)
    if position is not None:
        column = table.c.get(getattr(resolve(table, position), "key", ""))
        if column is None:
            raise ConfigurationError(f"The position is a column of the table; {position} is not.")
        key = (column,)
    if ordering == "sequenced":
        if not key:
            raise ConfigurationError(
                f"Table {table.name!r} has no primary key by which its events could be told apart."
            )
        return key
    if len(key) != 1:
        raise ConfigurationError(
            f"Table {table.name!r} has no primary key of one column: say which column is the "
            "position."
        )
    if not isinstance(key[0].type, Integer):
        raise ConfigurationError(
            f"The position is a column of whole numbers that the database draws; {key[0]} is not: "
            "choose another, or the ordering sequenced, which gives positions of its own."
        )
    return key


def _partition(
    table: Table, partition: Expression | None, partitions: int | Layout | None
) -> ColumnElement[Any] | None:
    if (partition is None) != (partitions is None):
        raise ConfigurationError(
            "A partition column and the number of partitions go together: give both or neither."
        )
    if partition is None:
        return None
    column = resolve(table, partition)
    if not isinstance(column.type, Integer):
        raise ConfigurationError(
            f"A partition is a whole number from 0; {partition} has the SQL type {column.type!r}."
        )
    return column


def _envelope(table: Table, cloudevents: bool | str) -> CloudEvents | None:
    if not cloudevents:
        return None
    source = cloudevents if isinstance(cloudevents, str) else f"/{quote(table.name)}"
    return CloudEvents(source=source, type=str(table.name))
