"""Dead letters: events that could not be applied, and later events of their keys."""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from traceback import format_exception, format_exception_only
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, or_, select, true

from zeroeventhub.consumer.observer import note_place, place_in
from zeroeventhub.consumer.store.tables import Tables, is_row
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import as_utc, portions
from zeroeventhub.errors import ConfigurationError, Fenced
from zeroeventhub.protocol import Event


def digest(text: str) -> str:
    """Return a fixed-length index key for a text.

    Databases compare, cut or refuse some texts by rules of their own, but no digest.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def escape_text(text: str) -> str:
    """Escape what PostgreSQL refuses: U+0000, and unpaired surrogates."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


FAILED = "failed"
HELD = "held"
RETRY = "retry"

_LONGEST = 100_000
"""How many characters of an error or a traceback are stored."""


@dataclass(frozen=True)
class DeadLetter:
    """An event that was set aside.

    Example:
        with engine.connect() as connection:
            for letter in store.dead_letters.letters(connection, "billing"):
                print(letter.id, letter.key, letter.error)

    Attributes:
        id: its number; letters of a key are applied again in the order of their numbers.
        consumer: the consumer's name.
        partition: the partition that it came from, or that has taken over from it.
        key: the key of the event; None if it has none.
        event: the event.
        error: the error that applying it ended in; empty if it was held back.
        traceback: the traceback of that error.
        tries: how often it was applied without success.
        state: "failed"; "held" back until an earlier letter of its key is applied; "retry" if
            it is to be applied again.
        created_at: when it was set aside, in UTC.
    """

    id: int
    consumer: str
    partition: int
    key: str | None
    event: Event
    error: str
    traceback: str
    tries: int
    state: Literal["failed", "held", "retry"]
    created_at: datetime


class DeadLetters:
    """Store the dead letters of consumers; all methods run in the caller's transaction.

    A letter is due when it was marked for retry or is held back, and no letter of its key comes
    before it. So letters that were held back follow by themselves, in order.
    """

    def __init__(self, tables: Tables) -> None:
        self._table = tables.dead_letters

    def add(
        self,
        connection: Connection,
        consumer: str,
        partition: int,
        event: Event,
        *,
        key: str | None,
        error: BaseException | None,
        tries: int,
    ) -> None:
        """Set an event aside; `error` is None if it is held back."""
        row = {
            "consumer": consumer,
            "partition": partition,
            "key": None if key is None else escape_text(key),
            "key_digest": None if key is None else digest(key),
            "event": event.raw.decode(),
            "headers": json.dumps(dict(event.headers)),
            "tries": tries,
            "state": HELD if error is None else FAILED,
            **_error_columns(error),
        }
        connection.execute(self._table.insert().values(row))

    def count(self, connection: Connection, consumer: str) -> dict[int, int]:
        """Return the number of letters by partition, without partitions that have none."""
        partition = self._table.c.partition
        query = select(partition, func.count()).where(self._table.c.consumer == consumer)
        return {row[0]: row[1] for row in connection.execute(query.group_by(partition))}

    def counts(self, connection: Connection) -> dict[str, dict[int, int]]:
        """Return the number of letters of all consumers that have any, by partition."""
        columns = self._table.c
        key = (columns.consumer, columns.partition)
        found: dict[str, dict[int, int]] = {}
        for consumer, partition, count in connection.execute(
            select(*key, func.count()).group_by(*key)
        ):
            found.setdefault(consumer, {})[partition] = count
        return found

    def blocked(self, connection: Connection, consumer: str, keys: Collection[str]) -> set[str]:
        """Return the keys that have letters: later events of these keys have to wait."""
        columns = self._table.c
        by_digest = {digest(key): key for key in keys}
        found: set[str] = set()
        for some in portions(sorted(by_digest)):
            query = select(columns.key_digest).where(
                columns.consumer == consumer, columns.key_digest.in_(some)
            )
            found.update(by_digest[number] for number in connection.scalars(query))
        return found

    def letters(
        self,
        connection: Connection,
        consumer: str,
        *,
        partition: int | None = None,
        limit: int | None = None,
    ) -> list[DeadLetter]:
        """Return letters, the oldest first; of all partitions if `partition` is None."""
        query = self._of(consumer).limit(limit)
        if partition is not None:
            query = query.where(self._table.c.partition == partition)
        return [_letter(row) for row in connection.execute(query)]

    def get(self, connection: Connection, consumer: str, id: int) -> DeadLetter:  # noqa: A002 - its name
        """Return a letter.

        Raises:
            ConfigurationError: the consumer has no letter of this number.
        """
        row = connection.execute(self._of(consumer).where(self._table.c.id == id)).first()
        if row is None:
            raise ConfigurationError(f"Consumer {consumer!r} has no dead letter {id}.")
        return _letter(row)

    def retry(
        self, connection: Connection, consumer: str, ids: Collection[int] | None = None
    ) -> int:
        """Mark failed letters for retry, all if `ids` is None; return how many were marked.

        The process that reads the partition applies them, after earlier letters of their keys and
        before the letters that were held back after them.
        """
        columns = self._table.c
        failed = self._table.update().where(columns.consumer == consumer, columns.state == FAILED)
        marked = failed.values(state=RETRY)
        return sum(connection.execute(marked.where(some)).rowcount for some in self._of_ids(ids))

    def discard(
        self, connection: Connection, consumer: str, ids: Collection[int] | None = None
    ) -> int:
        """Delete letters, all if `ids` is None; return how many were deleted.

        Letters that were held back after them are applied then.
        """
        delete = self._table.delete().where(self._table.c.consumer == consumer)
        return sum(connection.execute(delete.where(some)).rowcount for some in self._of_ids(ids))

    def due(
        self, connection: Connection, consumer: str, partition: int, *, limit: int
    ) -> list[DeadLetter]:
        """Return letters of a partition to apply now, in order, at most one of each key."""
        columns, earlier = self._table.c, self._table.alias("earlier")
        # One look into an index for each letter: a join would read all earlier letters of its key.
        first = (
            select(earlier.c.id)
            .where(
                earlier.c.consumer == columns.consumer, earlier.c.key_digest == columns.key_digest
            )
            .order_by(earlier.c.id)
            .limit(1)
        )
        is_first = or_(columns.key_digest.is_(None), columns.id == first.scalar_subquery())
        query = select(self._table).where(
            is_row(self._table, consumer, partition), columns.state != FAILED, is_first
        )
        query = query.order_by(columns.id).limit(limit)
        return [_letter(row) for row in connection.execute(query)]

    def settle(self, connection: Connection, letter: DeadLetter) -> None:
        """Delete a letter in the transaction that applies it.

        Raises:
            Fenced: it was discarded or applied meanwhile. Roll back.
        """
        delete = self._table.delete().where(self._table.c.id == letter.id)
        if connection.execute(delete).rowcount != 1:
            raise Fenced(
                f"Dead letter {letter.id} of consumer {letter.consumer!r} was discarded or applied "
                "meanwhile; roll back."
            )

    def failed_again(
        self, connection: Connection, letter: DeadLetter, error: BaseException, tries: int
    ) -> None:
        """Store another failure of a letter, unless it was discarded meanwhile."""
        if place := place_in(letter.error):
            note_place(error, place)
        values = {"state": FAILED, "tries": tries, **_error_columns(error)}
        update = self._table.update().where(self._table.c.id == letter.id)
        connection.execute(update.values(values))

    def partitions_due(self, connection: Connection, consumer: str) -> frozenset[int]:
        """Return the partitions that have letters to apply again.

        Rows that another transaction has locked are skipped until the next call.
        """
        columns, skip = self._table.c, partial(database_of(connection).skip_locked, connection)
        # All at once, as each has to be found. Those without a key are the first of their own.
        other = self._table.alias("other")
        alone = case((other.c.key_digest.is_(None), other.c.id))
        first = select(func.min(other.c.id)).where(other.c.consumer == consumer)
        first = skip(first.group_by(other.c.key_digest, alone))
        query = (
            select(columns.partition)
            .distinct()
            .where(columns.consumer == consumer, columns.state != FAILED, columns.id.in_(first))
        )
        return frozenset(connection.scalars(skip(query)))

    def _of(self, consumer: str) -> Select[Any]:
        columns = self._table.c
        return select(self._table).where(columns.consumer == consumer).order_by(columns.id)

    def _of_ids(self, ids: Collection[int] | None) -> Iterator[ColumnElement[bool]]:
        """Yield a condition for each statement."""
        if ids is None:
            yield true()
        else:
            yield from map(self._table.c.id.in_, portions(sorted(ids)))


def error_text(error: BaseException) -> str:
    """Return the type of an error and what it says, as it is stored."""
    return _shorten("".join(format_exception_only(error)).strip())


def _error_columns(error: BaseException | None) -> dict[str, str]:
    if error is None:
        return {"error": "", "traceback": ""}
    return {"error": error_text(error), "traceback": _shorten("".join(format_exception(error)))}


def _shorten(text: str) -> str:
    """Keep the beginning and the end of a text that is too long for some databases."""
    half = _LONGEST // 2
    shown = text if len(text) <= _LONGEST else f"{text[:half]}\n…\n{text[-half:]}"
    return escape_text(shown)


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        row.id,
        row.consumer,
        row.partition,
        row.key,
        Event(row.event.encode(), json.loads(row.headers)),
        row.error,
        row.traceback,
        row.tries,
        row.state,
        as_utc(row.created_at),
    )
