"""Events that could not be applied, and those of their keys that are held back after them."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from traceback import format_exception, format_exception_only
from typing import Any, Literal

from sqlalchemy import Connection, Row, Select, Update, and_, func, select

from zeroeventhub.consumer.store.tables import Tables
from zeroeventhub.databases import database_of
from zeroeventhub.databases.clock import as_utc
from zeroeventhub.errors import ConfigurationError, Fenced
from zeroeventhub.protocol import Event

__all__ = ["DeadLetter", "DeadLetters", "digest", "escape_text"]


def digest(text: str) -> str:
    """Return what stands for a text of any length and any characters in an index.

    Databases compare text by rules of their own, cut it or refuse it; never this.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def escape_text(text: str) -> str:
    """Escape what PostgreSQL refuses: U+0000, and surrogates that stand alone."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


FAILED = "failed"
HELD = "held"
RETRY = "retry"

_LONGEST = 100_000
"""How many characters of an error or a traceback are kept."""


@dataclass(frozen=True)
class DeadLetter:
    """Hold an event that was set aside.

    Example:
        with engine.connect() as connection:
            for letter in store.dead_letters.letters(connection, "billing"):
                print(letter.id, letter.key, letter.error)

    Attributes:
        id: its number; letters of a key are applied again in the order of theirs.
        consumer: the consumer's name.
        partition: the partition that it came from, or that has taken over from it.
        key: the key of the event; None if it has none.
        event: the event.
        error: what applying it ended in; empty if it was held back.
        traceback: where.
        tries: how often it was applied in vain.
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
    """Keep the dead letters of consumers.

    A letter is due when it was marked for retry or is held back, and no letter of its key comes
    before it. So those that were held back follow by themselves, in order.

    Args:
        tables: where they are kept.
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
        """Set an event aside.

        Args:
            connection: a connection to the store, in the transaction that moves the cursor.
            consumer: the consumer's name.
            partition: where the event comes from.
            event: the event.
            key: the key of the event.
            error: what applying it ended in; None if it is held back.
            tries: how often it was applied.
        """
        row = {
            "consumer": consumer,
            "partition": partition,
            "key": None if key is None else escape_text(key),
            "key_digest": None if key is None else digest(key),
            "event": event.raw.decode(),
            "headers": json.dumps(dict(event.headers)),
            "tries": tries,
            "state": HELD if error is None else FAILED,
            **_described(error),
        }
        connection.execute(self._table.insert().values(row))

    def count(self, connection: Connection, consumer: str) -> dict[int, int]:
        """Return how many letters there are, by partition; one without any is not in it.

        Args:
            connection: a connection to the store.
            consumer: the consumer's name.
        """
        partition = self._table.c.partition
        query = select(partition, func.count()).where(self._table.c.consumer == consumer)
        return {row[0]: row[1] for row in connection.execute(query.group_by(partition))}

    def blocked(self, connection: Connection, consumer: str, keys: Collection[str]) -> set[str]:
        """Return those keys that have letters, for which later events have to wait.

        Args:
            connection: a connection to the store, in the transaction that moves the cursor.
            consumer: the consumer's name.
            keys: the keys of events at hand.
        """
        columns = self._table.c
        by_digest = {digest(key): key for key in keys}
        digests = sorted(by_digest)
        found: set[str] = set()
        for start in range(0, len(digests), 1000):
            query = select(columns.key_digest).where(
                columns.consumer == consumer,
                columns.key_digest.in_(digests[start : start + 1000]),
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
        """Return letters, the oldest first.

        Args:
            connection: a connection to the store.
            consumer: the consumer's name.
            partition: the one to look at; None for all.
            limit: how many letters at most.
        """
        query = self._of(consumer).limit(limit)
        if partition is not None:
            query = query.where(self._table.c.partition == partition)
        return [_letter(row) for row in connection.execute(query)]

    def get(self, connection: Connection, consumer: str, id: int) -> DeadLetter:  # noqa: A002 - its name
        """Return a letter.

        Raises:
            ConfigurationError: there is none of this number.
        """
        row = connection.execute(self._of(consumer).where(self._table.c.id == id)).first()
        if row is None:
            raise ConfigurationError(f"Consumer {consumer!r} has no dead letter {id}.")
        return _letter(row)

    def retry(
        self, connection: Connection, consumer: str, ids: Collection[int] | None = None
    ) -> int:
        """Mark letters that failed, to be applied again by the process that reads the partition.

        Those that are held back after them follow in order. A letter waits for earlier ones of
        its key that have failed too.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            ids: their numbers; None for all.

        Returns:
            How many were marked.
        """
        update = self._update(ids).where(
            self._table.c.consumer == consumer, self._table.c.state == FAILED
        )
        return connection.execute(update.values(state=RETRY)).rowcount

    def discard(
        self, connection: Connection, consumer: str, ids: Collection[int] | None = None
    ) -> int:
        """Forget letters for good. Those that are held back after them are applied then.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            ids: their numbers; None for all.

        Returns:
            How many were forgotten.
        """
        delete = self._table.delete().where(self._table.c.consumer == consumer)
        if ids is not None:
            delete = delete.where(self._table.c.id.in_(sorted(ids)))
        return connection.execute(delete).rowcount

    def due(
        self, connection: Connection, consumer: str, partition: int, *, limit: int
    ) -> list[DeadLetter]:
        """Return letters that are to be applied now, in order, and no two of a key.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            partition: the one that is read.
            limit: how many at most.
        """
        query = self._due(select(self._table), consumer).where(self._table.c.partition == partition)
        query = query.order_by(self._table.c.id).limit(limit)
        return [_letter(row) for row in connection.execute(query)]

    def settle(self, connection: Connection, letter: DeadLetter) -> None:
        """Forget a letter that is applied, in the transaction that applies it.

        Raises:
            Fenced: it is not there any more. Roll back.
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
        """Note that a letter was applied in vain once more.

        Args:
            connection: a connection to the store, in a transaction.
            letter: the letter; nothing is noted of one that was discarded meanwhile.
            error: what applying it ended in.
            tries: how often it was applied in all.
        """
        values = {"state": FAILED, "tries": tries, **_described(error)}
        connection.execute(self._update([letter.id]).values(values))

    def partitions_due(self, connection: Connection, consumer: str) -> frozenset[int]:
        """Return the partitions that have letters which are to be applied again.

        It waits for no lock; rows that other transactions have locked count the next time.
        """
        query = self._due(select(self._table.c.partition).distinct(), consumer)
        return frozenset(connection.scalars(database_of(connection).skip_locked(connection, query)))

    def _due(self, query: Select[Any], consumer: str) -> Select[Any]:
        columns = self._table.c
        earlier = self._table.alias("earlier")
        # A join and no subquery, so that locks are passed over in both.
        same_key = and_(
            earlier.c.consumer == columns.consumer,
            earlier.c.key_digest == columns.key_digest,
            earlier.c.id < columns.id,
        )
        return query.outerjoin_from(self._table, earlier, same_key).where(
            columns.consumer == consumer, columns.state != FAILED, earlier.c.id.is_(None)
        )

    def _of(self, consumer: str) -> Select[Any]:
        columns = self._table.c
        return select(self._table).where(columns.consumer == consumer).order_by(columns.id)

    def _update(self, ids: Collection[int] | None) -> Update:
        update = self._table.update()
        return update if ids is None else update.where(self._table.c.id.in_(sorted(ids)))


def _described(error: BaseException | None) -> dict[str, str]:
    if error is None:
        return {"error": "", "traceback": ""}
    return {
        "error": _short("".join(format_exception_only(error)).strip()),
        "traceback": _short("".join(format_exception(error))),
    }


def _short(text: str) -> str:
    """Keep the beginning and the end of a text that a database might refuse for its length."""
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
