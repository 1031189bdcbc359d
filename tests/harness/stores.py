"""Short ways to a store: each call in a transaction of its own."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

from sqlalchemy import Engine, delete, update

from harness.statements import execute, scalars
from harness.waiting import DEADLINE, until
from zeroeventhub import CursorStore
from zeroeventhub.databases.error_codes import is_transient

NAME = "billing"

LOCK_WAITS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mariadb": "SELECT variable_value + 0 FROM information_schema.global_status "
    "WHERE variable_name = 'Innodb_row_lock_current_waits'",
}
"""How many transactions wait for a lock; SQLite does not tell."""


def new_store(engine: Engine) -> CursorStore:
    """Make a store whose tables are there."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
    return store


def empty_store(engine: Engine) -> CursorStore:
    """Make a store whose tables are there and hold nothing, in a database that tests share."""
    store = new_store(engine)
    execute(engine, *(delete(table) for table in store.tables.all()))
    return store


def at(store: CursorStore, level: str) -> CursorStore:
    """Return the same store at another level of isolation."""
    return CursorStore(store.engine.execution_options(isolation_level=level))


def call(store, method, *arguments, name=NAME, **named):
    """Call a method of the store, or of one of its parts, for a consumer."""
    with store.engine.begin() as connection:
        return method(connection, name, *arguments, **named)


def load(store, partition, **options):
    """Return a consumer's place, without a lease."""
    return call(store, store.load, partition, **options)


def enter(store, partition, owner, after=None):
    """Return a consumer's place, by right of a lease."""
    return call(store, store.enter, partition, owner, after=after)


def cursor(store, partition):
    """Return where a consumer stands."""
    return load(store, partition).cursor


def move(store, partition, place, new):
    """Move a cursor."""
    call(store, store.advance, partition, place, new)


def end(store, partition, place):
    """Write down that a partition was read to its end."""
    call(store, store.end, partition, place)


def inherit(store, heirs, remaining=None):
    """Hand cursors over to heirs; the partitions that remain are those, unless told otherwise."""
    call(store, store.inherit, heirs, heirs if remaining is None else remaining)


def advance(store, place, lane, before, after, *, lanes=2, partition=0):
    """Let a lane come further."""
    method = store.lanes.advance
    call(store, method, partition, place, lane=lane, lanes=lanes, before=before, after=after)


def progress(store, place, partition=0):
    """Return among how many lanes a page is divided, and how far each has come; None if none."""
    found = call(store, store.lanes.progress, partition, place)
    return found and (found.lanes, found.done)


def claim(store, owner, wanted, *, seconds=30.0, share=True):
    """Claim partitions."""
    return call(store, store.leases.claim, owner, wanted, seconds=seconds, share=share)


def release(store, owner, partitions):
    """Give leases back."""
    call(store, store.leases.release, owner, partitions)


def leave(store, owner):
    """Give all leases back, and share no longer."""
    call(store, store.leases.leave, owner)


def reset(store):
    """Start a consumer again."""
    call(store, store.reset)


def unseen(store, ids, partition=0, **options):
    """Note ids of events, and return those that are new."""
    return call(store, store.inbox.unseen, partition, ids, **options)


def fail(store, place, error, tries, *, partition=0, pause=None):
    """Store the error of a try; by default of the last one, at which a partition halts."""
    call(store, store.record_failure, partition, place, error=error, tries=tries, pause=pause)


def expire(store, *owners):
    """Let the time pass for which some processes hold leases and are members."""
    tables = (store.tables.leases, store.tables.members)
    theirs = [update(table).where(table.c.owner.in_(owners)) for table in tables]
    execute(store.engine, *(rows.values(expires_at=1.0) for rows in theirs))


def beside(action: Callable[..., Any], *arguments: Any) -> Future:
    """Do something in a thread, beside what the test does; ask for its result with `outcome`."""
    future: Future = Future()

    def act():
        try:
            future.set_result(action(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            future.set_exception(error)

    Thread(target=act, daemon=True).start()
    return future


def outcome(future: Future) -> Any:
    """Return what was returned or raised beside the test."""
    return future.exception(DEADLINE) or future.result()


@contextmanager
def kept_waiting(store, action, *arguments):
    """Take locks in the block, and see that an action waits for its transaction, which commits."""
    with store.engine.connect() as connection:
        results: list[Any] = []
        yield connection, results
        future = beside(action, *arguments)
        if waits := LOCK_WAITS.get(store.engine.dialect.name):
            until(lambda: any(scalars(store.engine, waits)), "somebody waits for a lock")
        assert not future.done(), "It has not waited."
        connection.commit()
    results.append(outcome(future))


def is_refused_for_now(result: Any) -> bool:
    """Tell whether a result is an error after which the same transaction may succeed."""
    return isinstance(result, Exception) and is_transient(result)
