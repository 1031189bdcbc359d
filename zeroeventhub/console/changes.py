"""Changes to consumers: what each will do, in numbers, and the audit log of what was done."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from sqlalchemy import Column, Connection, DateTime, MetaData, String, Table, select
from sqlalchemy.schema import CreateTable

from zeroeventhub.console.consumers import ConsoleStore, SeenConsumer
from zeroeventhub.console.events import moment_in
from zeroeventhub.consumer.lag import TWICE, Move, about_moves, consequence, find_moves
from zeroeventhub.consumer.steps import Place
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store.dead_letters import FAILED, HELD, DeadLetter
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import (
    Moment,
    as_utc,
    exact,
    long_text,
    row_number,
    table_exists,
)
from zeroeventhub.errors import BadRequest, FeedError
from zeroeventhub.protocol import FIRST, NAME_LENGTH

MOST_LETTERS = 1_000
"""Dead letters that one change concerns at most."""

MOST_SHOWN = 200
"""Entries of an audit log that are shown, the last ones."""

_UNCOUNTED = ", as no feed of this console knows the cursors"

_log = logging.getLogger("zeroeventhub.console")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that a person is asked to confirm."""

    action: str  # "retry", "discard", "seek", "reset" or "skip"
    consumer: str
    text: str  # what will happen, in sentences with numbers
    moves: Sequence[Move] = ()  # the cursors that are set
    ids: Sequence[int] = ()  # the dead letters that are retried or discarded

    @property
    def digest(self) -> str:
        """Identify what is done, so that nothing else is done than what was confirmed."""
        done = [self.action, self.consumer, [*self.ids]]
        done += [[move.partition, move.cursor] for move in self.moves]
        return blake2b(json.dumps(done).encode(), digest_size=16).hexdigest()


async def plan(
    consumer: SeenConsumer,
    action: str,
    *,
    partition: int | None,
    time: str,
    zone: str,
    ids: Sequence[int],
) -> Change:
    """Return a change with what it will do; change nothing.

    Args:
        consumer: the consumer to change.
        action: what to do.
        partition: the only one to move; None for all.
        time: the moment to move to.
        zone: how many minutes the browser's clock is ahead of UTC.
        ids: the dead letters to change; none for all.

    Raises:
        BadRequest: there is nothing to change, or no such change.
    """
    if action in {"retry", "discard"}:
        return await _plan_letters(consumer, action, ids)
    store, name, cursors, reader = consumer.store, consumer.name, consumer.cursors, consumer.reader
    if partition not in {None, *cursors}:
        raise BadRequest(f"Consumer {name!r} has no cursor in partition {partition}.")
    chosen = [*cursors] if partition is None else [partition]
    if action == "reset":
        client = None if reader is None else reader.client
        moves = await find_moves(client, cursors, dict.fromkeys(chosen, FIRST))
        counts = await store.look(store.store.dead_letters.count, name)
        held = sum(count for number, count in counts.items() if number in chosen)
        text = (
            f"Consumer {name!r} starts again; partitions: {len(chosen):,}. Its inbox and its dead "
            f"letters there are deleted: {held:,}. {consequence(moves, TWICE, _UNCOUNTED)}"
        )
        return Change(action="reset", consumer=name, text=text, moves=moves)
    if reader is None:
        raise BadRequest("No feed of this console knows the consumer's cursors.")
    if action == "seek":
        moment = moment_in(time, zone)
        if partition is None:
            # Not those of the cursors, of which the feed may have replaced or dropped some.
            chosen = [one.id for one in (await reader.client.discover()).partitions]
        after = {number: await reader.client.cursor_at(moment, number) for number in chosen}
        about = f"goes on at {moment:%Y-%m-%d %H:%M:%S} UTC; partitions: {len(chosen):,}"
    elif action == "skip" and partition is not None:
        here = Place(cursors[partition])
        if await store.look(store.store.lanes.progress, name, partition, here):
            raise BadRequest(
                "Lanes have applied a part of the next page, perhaps also its first event: set "
                "aside what fails, by Failures(then='set-aside')."
            )
        page = await reader.client.fetch(partition, cursors[partition], limit=1)
        if not page.events:
            raise BadRequest("There is no event to skip: the consumer has read all of them.")
        after = {partition: page.cursor}
        about = f"leaves out the next event of partition {partition}"
    else:
        raise BadRequest("There is no such change.")
    moves = await find_moves(reader.client, cursors, after)
    holdings = await store.look(store.store.holdings, name)
    text = f"Consumer {name!r} {about}. {about_moves(moves, holdings, _UNCOUNTED)}"
    return Change(action=action, consumer=name, text=text, moves=moves)


async def _plan_letters(consumer: SeenConsumer, action: str, chosen: Sequence[int]) -> Change:
    """Return a change of dead letters; only those that failed can be retried."""
    store, name = consumer.store, consumer.name

    def find(connection: Connection) -> tuple[list[DeadLetter], int]:
        letters = store.store.dead_letters
        if chosen:
            return [letters.get(connection, name, one) for one in chosen], 0
        count = sum(letters.count(connection, name).values())
        found = letters.letters(connection, name, limit=MOST_LETTERS)
        return found, max(0, count - len(found))

    found, left = await store.look(find)
    if action == "discard":
        ids = [one.id for one in found]
        text = f"Events of consumer {name!r} that never take effect: {len(ids):,}."
    else:
        ids = [one.id for one in found if one.state == FAILED]
        held = sum(one.state == HELD for one in found)
        text = (
            f"Dead letters of consumer {name!r} that are applied again, as soon as it "
            f"runs: {len(ids):,}. After each follow those that are held back for its key."
            + (f" Of those that were chosen, so many are held back: {held:,}." if held else "")
        )
    rest = (
        f" At once only the oldest {MOST_LETTERS:,} are changed; {left:,} more stay."
        if left
        else ""
    )
    if not ids:
        raise BadRequest(f"There is no dead letter for that.{rest}")
    return Change(action=action, consumer=name, text=text + rest, ids=ids)


class Moved(FeedError):
    """Say that a change would do something else than was confirmed."""

    status = 409
    problem = "moved"


async def carry_out(store: ConsoleStore, change: Change, principal: str, *, confirmed: str) -> int:
    """Make a change and its entry in the audit log, in one transaction; return the entry's number.

    `confirmed` is the digest that the change had when this principal confirmed it.

    Raises:
        Moved: the change is not the one that was confirmed any more.
    """
    if change.digest != confirmed:
        raise Moved("Something has moved since you were asked: look again at what happens.")
    audit, name = _audit_table(store.store), change.consumer

    def create(connection: Connection) -> None:
        # Once it is there, its user need not be allowed to create tables.
        if not table_exists(connection, audit):
            database_of(connection).lock_creation(connection)
            connection.execute(CreateTable(audit, if_not_exists=True))

    def write(connection: Connection) -> int:
        _write(connection, store.store, change)
        details = {"text": change.text, "ids": [*change.ids]}
        details["moves"] = [asdict(move) for move in change.moves]
        entry = {
            "principal": principal,
            "consumer": name,
            "action": change.action,
            "details": json.dumps(details),
        }
        (number,) = connection.execute(audit.insert().values(entry)).inserted_primary_key or (0,)
        return int(number)

    # Apart, as MariaDB and MySQL commit at it.
    await store.change(create)
    number = await store.change(write)
    fields = {"consumer": name, "principal": principal, "action": change.action}
    words = " ".join(f"{key}={value!r}" for key, value in fields.items())
    _log.info("A consumer was changed: %s", words, extra=fields)
    return number


def _write(connection: Connection, store: CursorStore, change: Change) -> None:
    letters, name = store.dead_letters, change.consumer
    if change.action == "retry":
        letters.retry(connection, name, change.ids)
    elif change.action == "discard":
        letters.discard(connection, name, change.ids)
    elif change.action == "reset":
        store.reset(connection, name, [move.partition for move in change.moves])
    else:
        for move in change.moves:
            if change.action == "skip":
                # A locking read: a process may commit the event just now.
                place = store.load(connection, name, move.partition)
                if place.cursor != move.before:
                    raise Moved("The consumer has moved since: look again at what is next.")
                store.advance(connection, name, move.partition, place, move.cursor)
                store.lanes.expect_none(connection, name, move.partition, place)
            store.set(connection, name, move.partition, move.cursor)


async def audit_entries(store: ConsoleStore) -> list[dict[str, Any]]:
    """Return the last entries of a store's audit log, the newest first."""
    audit = _audit_table(store.store)

    def ask(connection: Connection) -> list[dict[str, Any]]:
        if not table_exists(connection, audit):
            return []
        query = select(audit).order_by(audit.c.id.desc()).limit(MOST_SHOWN)
        return [
            {**row, "at": as_utc(row["at"]), "details": json.loads(row["details"])}
            for row in connection.execute(query).mappings()
        ]

    return await store.look(ask)


def _audit_table(store: CursorStore) -> Table:
    """Return the table of what consoles have changed, beside those of the store."""
    return Table(
        "zeroeventhub_audit",
        MetaData(),
        Column("id", row_number(), primary_key=True),
        Column("at", DateTime(timezone=True), nullable=False, default=Moment()),
        Column("principal", exact(String(256)), nullable=False),
        Column("consumer", exact(String(NAME_LENGTH)), nullable=False),
        Column("action", String(10), nullable=False),
        Column("details", long_text(), nullable=False),
        schema=store.tables.cursors.schema,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
