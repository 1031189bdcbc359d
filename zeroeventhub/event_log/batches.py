"""Append the batches that writers send to a log, and count those of each producer."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, select, update
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import feed_error, is_unfit, translate_store_errors
from zeroeventhub.databases.statements import exact
from zeroeventhub.errors import (
    BadRequest,
    ConfigurationError,
    Forbidden,
    OutOfSequence,
    StoreUnavailable,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.event_log.log_table import DuplicateKey, insert_row, writing
from zeroeventhub.new_events import LONGEST_NAME, Batch, NewEvent
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import Appended

_PRINCIPAL_LENGTH = 256

_UNFIT = "The log's database cannot store a value of an event."


class BatchAppender:
    """Append batches to a log, and store the last sequence of each producer beside it.

    `append`, with or without a savepoint, and `find` are the log's methods; the table of producers
    is added to its metadata.
    """

    def __init__(
        self,
        table: Table,
        metadata: MetaData,
        layout: Layout,
        *,
        append: Callable[..., list[Appended]],
        find: Callable[[Connection, Sequence[NewEvent]], list[Appended]],
    ) -> None:
        self._append = append
        self._find = find
        self._layout = layout
        self._producers = Table(
            f"{table.name}_producers",
            metadata,
            Column("principal", exact(String(_PRINCIPAL_LENGTH)), primary_key=True),
            Column("producer", exact(String(LONGEST_NAME)), primary_key=True),
            Column("sequence", BigInteger, nullable=False),
            schema=table.schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    def append(
        self, connection: Connection, batches: Sequence[Batch], seconds: float
    ) -> list[list[Appended] | ZeroEventHubError]:
        """Append batches in one transaction, or each in its own if that fails; see `Appender`."""
        writing(connection, self._producers)  # what the publisher did wrong is no writer's fault
        if len(batches) > 1:
            try:
                return [*self._commit(connection, batches, seconds)]
            except (ZeroEventHubError, SQLAlchemyError) as error:
                if connection.invalidated:
                    lost = "The connection to the log's database was lost."
                    raise Unavailable(lost, retry_after=1) from error
        found: list[list[Appended] | ZeroEventHubError] = []
        for batch in batches:
            try:
                found += self._commit(connection, [batch], seconds)
            except ConfigurationError as error:
                found.append(BadRequest(str(error)))
            except StoreUnavailable as error:
                found.append(Unavailable(str(error), retry_after=1))
            except ZeroEventHubError as error:
                found.append(error)
            except SQLAlchemyError as error:
                found.append(BadRequest(_UNFIT) if is_unfit(error) else feed_error(error))
        return found

    def sequence(self, connection: Connection, producer: str, principal: str) -> int:
        """Return the sequence of a producer's last batch; 0 for an unknown producer."""
        columns = self._producers.c
        query = select(columns.sequence).where(
            columns.principal == principal, columns.producer == producer
        )
        return connection.scalar(query) or 0

    def _commit(
        self, connection: Connection, batches: Sequence[Batch], seconds: float
    ) -> list[list[Appended]]:
        """Append batches in one transaction, and commit it."""
        for batch in batches:  # first, as a conflict tells the version of a key
            self._expect_rights(batch)
        try:
            return self._try_commit(connection, batches, seconds, with_savepoint=False)
        except DuplicateKey:  # few writers repeat a batch, so that only they pay for savepoints
            return self._try_commit(connection, batches, seconds, with_savepoint=True)

    def _try_commit(
        self,
        connection: Connection,
        batches: Sequence[Batch],
        seconds: float,
        *,
        with_savepoint: bool,
    ) -> list[list[Appended]]:
        connection.rollback()  # what reset the last timeout has begun a transaction
        timeout = database_of(connection).lock_timeout(connection, seconds)
        append = partial(self._append, connection, with_savepoint=with_savepoint)
        with translate_store_errors("The database of the log"), timeout:
            try:
                # The events of batches that need no decision come in one statement.
                joined = [one for batch in batches if batch.is_plain for one in batch.events]
                places, found = iter(append(joined)), []
                for batch in batches:
                    if batch.is_plain:
                        found.append([*islice(places, len(batch.events))])
                    elif batch.producer is None or self._advance(connection, batch.producer, batch):
                        found.append(append(batch.events))
                    else:  # it is the last one of its producer again
                        found.append(self._find(connection, batch.events))
                connection.commit()
            except BaseException:
                connection.rollback()
                raise
        return found

    def _advance(self, connection: Connection, producer: str, batch: Batch) -> bool:
        """Store a batch's sequence, and lock it; return False if it is the stored one already."""
        columns, sequence = self._producers.c, batch.sequence or 0
        mine = [columns.principal == batch.principal, columns.producer == producer]
        next_one = update(self._producers).where(*mine, columns.sequence == sequence - 1)
        if connection.execute(next_one.values(sequence=sequence)).rowcount == 1:
            return True
        if sequence == 1:
            row = {"principal": batch.principal, "producer": producer, "sequence": 1}
            try:
                insert_row(connection, self._producers, row)
            except DuplicateKey:
                pass
            else:
                return True
        stored = self.sequence(connection, producer, batch.principal)
        if stored == sequence:
            return False
        reason = "was repeated too late" if sequence < stored else "came before the one before it"
        raise OutOfSequence(
            f"Batch {sequence} of producer {producer!r} {reason}: the last one is {stored}.",
            sequence=stored,
        )

    def _expect_rights(self, batch: Batch) -> None:
        """Refuse a batch with an event in a partition that its writer may not append to."""
        if batch.partitions is None:
            return
        for one in batch.events:
            partition = self._layout.partition_of(one.id if one.key is None else one.key)
            if partition not in batch.partitions:
                raise Forbidden(
                    f"The event {one.id!r} belongs into partition {partition}, which you may not "
                    "append to."
                )
