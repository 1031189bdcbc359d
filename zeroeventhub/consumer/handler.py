"""The caller's `apply`: call it for a page, and guard its transaction."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.consumer.annotations import (
    Decode,
    Kind,
    Sessions,
    annotations_of,
    decoder_for,
    is_async_function,
    same_event,
    transaction_for,
)
from zeroeventhub.consumer.page import AsyncPendingPage, PendingPage
from zeroeventhub.coroutines import is_cancelled
from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import (
    free_cursors,
    has_rolled_back,
    is_full,
    is_transient,
    not_reached,
)
from zeroeventhub.databases.transactions import COMMITS_EACH, commits_each, driver_commits_each
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable, ZeroEventHubError
from zeroeventhub.protocol import Event
from zeroeventhub.wire.ndjson import PageEvents

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Handler:
    """A caller's `apply`, and how to call it.

    Attributes:
        decode: converts an event to its argument; None if it takes pages.
        data_type: the type that msgspec decodes an event's data as; None if it decodes none.
        together: whether it takes a list of all events of a page.
    """

    apply: Callable[[Any, Any], Any]
    is_async: bool
    kind: Kind
    sessions: Sessions
    decode: Decode | None
    data_type: Any
    together: bool

    @classmethod
    def of(
        cls,
        apply: Callable[..., Any],
        engine: Engine | AsyncEngine,
        sessions: Sessions | None = None,
        models: Mapping[str, Any] = MappingProxyType({}),
    ) -> "Handler":
        """Read the annotations of a function of a transaction and of a page, an event or a list.

        `sessions` makes its sessions; `models` say how to read the data of CloudEvents, by type.

        Raises:
            ConfigurationError: it cannot be called, or takes an argument of an unsupported type.
        """
        is_async = is_async_function(apply)
        if is_async and isinstance(engine, Engine):
            raise ConfigurationError(
                "A Consumer calls an apply that is not async; or use AsyncConsumer."
            )
        wanted, argument = annotations_of(apply)
        kind, session = transaction_for(wanted, engine, is_async=is_async, sessions=sessions)
        if sessions is None:
            sessions = session
            if isinstance(engine, AsyncEngine) and not issubclass(session, AsyncSession):
                sessions = partial(AsyncSession, sync_session_class=session)
        decode, data_type, together = decoder_for(argument, models, is_async=is_async)
        return cls(apply, is_async, kind, sessions, decode, data_type, together)

    def _convert(self, decode: Decode, events: Any) -> Iterable[Any]:
        """Convert events to arguments; `apply` is called once for each."""
        if decode is not same_event:
            whole = self.data_type is not None and isinstance(events, PageEvents)
            values = events.decoded(self.data_type) if whole else None
            # If one does not fit, decode event by event: those before it are applied first.
            # Not by `map`, which ends like any iterator where a model raises StopIteration.
            events = (decode(one) for one in events) if values is None else values
        return [list(events)] if self.together else events

    def failed_at(self, events: Sequence[Event], applied: int | None) -> Event | None:
        """Return the event at which a call of `apply` has raised; None if it may be one of several.

        `applied`: how often `apply` has returned; None if it was not called.
        """
        if applied is None or applied == len(events):
            return None
        decode = self.decode
        if decode is not None and not self.together:
            return events[applied]
        if decode is not None:
            for one in events:
                try:
                    decode(one)
                except Exception:  # noqa: BLE001 - a model of the caller's may raise anything
                    return one
        return events[0] if len(events) == 1 else None

    def call(self, transaction: "Transaction", *content: Any) -> None:
        """Call `apply` in a transaction, for a page made of `content`."""
        apply, decode, argument = self.apply, self.decode, transaction.argument
        if self.is_async:
            driver: Any = transaction.connection.connection.dbapi_connection
            driver.run_async(lambda _: self._call_async(transaction, AsyncPendingPage(*content)))
            return
        page, applied, is_whole = PendingPage(*content), 0, False
        try:
            # SQLAlchemy does not see a commit through the driver, but psycopg refuses it in here.
            with argument.transaction() if self.kind is Kind.DRIVER else nullcontext():
                for item in (page,) if decode is None else self._convert(decode, page.events):
                    result = apply(argument, item)
                    # Checked only for a result, as this runs for every event.
                    if result is not None:
                        _expect_done(result)
                    applied += 1
                is_whole = True
        except Fenced as error:
            raise ConfigurationError(_COMMITTED) from error
        except asyncio.CancelledError as error:
            _pass_cancellation(error)
        finally:
            transaction.applied = applied
        if not is_whole:
            raise ConfigurationError(_UNDONE)

    async def _call_async(self, transaction: "Transaction", page: AsyncPendingPage) -> None:
        apply, decode, argument = self.apply, self.decode, transaction.argument
        applied, is_whole = 0, False
        try:
            async with argument.transaction() if self.kind is Kind.DRIVER else nullcontext():
                for item in (page,) if decode is None else self._convert(decode, page.events):
                    await apply(argument, item)
                    applied += 1
                is_whole = True
        except Fenced as error:
            raise ConfigurationError(_COMMITTED) from error
        except asyncio.CancelledError as error:
            _pass_cancellation(error)
        finally:
            transaction.applied = applied
        if not is_whole:
            raise ConfigurationError(_UNDONE)


def _expect_done(result: Any) -> None:
    """Raise ConfigurationError if what `apply` has returned is its work, which would never run."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise ConfigurationError("apply has returned a generator, which would never run.")
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(
            "apply has returned an awaitable, but is no coroutine function: define it with "
            "`async def`, for an AsyncConsumer."
        )


def _pass_cancellation(error: asyncio.CancelledError) -> NoReturn:
    """Raise an error that cancels this task; that of another task is the caller's own error."""
    if is_cancelled():
        raise error
    raise HandlerCancelled("apply or its session waited for a task that was cancelled.") from error


_COMMITTED = (
    "apply must not commit the page: its cursor has been moved in the transaction that apply "
    "was given."
)
_UNDONE = (
    "apply has raised psycopg.Rollback outside of a block of its own, which would undo the "
    "page's effects and move the cursor: raise it within `with connection.transaction()`."
)


ABORTED = 3
"""The status by which PostgreSQL's drivers report a transaction that an error has aborted."""

_APPLYING = "zeroeventhub is applying"
"""The key in a connection's `info` while `apply` runs in its transaction."""


class HandlerCancelled(ZeroEventHubError):
    """Raised when a function of the caller's has waited for something that was cancelled."""


class TransactionEnded(ConfigurationError):
    """Raised when `apply` has ended the transaction that moves the cursor."""


_SWALLOWED = (
    "A session of `sessions` suppresses errors when its `with` block ends, so that nothing says "
    "that a page was not applied: let it pass them on."
)


async def transact(
    engine: Engine | AsyncEngine, handler: Handler, act: Callable[["Transaction"], _Result]
) -> _Result:
    """Open a transaction, call a function in it, and commit unless the function raises."""
    kind = handler.kind
    if isinstance(engine, Engine):
        if kind is Kind.SESSION:
            with handler.sessions() as session:
                session.bind = session.bind or engine
                with session.begin():
                    return act(_begun(session, session))
            raise ConfigurationError(_SWALLOWED)
        with engine.begin() as connection:
            is_driver = kind is Kind.DRIVER
            argument = connection.connection.driver_connection if is_driver else connection
            return act(Transaction(connection, connection, argument))
    is_connected = False

    def act_in(own: Session) -> _Result:
        nonlocal is_connected
        own.connection()
        is_connected = True
        return act(_begun(own, argument))

    try:
        if kind is Kind.SESSION:
            async with handler.sessions() as session:
                inner = session.sync_session
                inner.bind = inner.bind or engine.sync_engine
                async with session.begin():
                    argument = session if handler.is_async else inner
                    result: _Result = await session.run_sync(act_in)
                    return result
            raise ConfigurationError(_SWALLOWED)
        async with engine.begin() as outer:
            is_connected = True
            argument = outer
            if kind is Kind.DRIVER:
                argument = (await outer.get_raw_connection()).driver_connection
            return await outer.run_sync(
                lambda inner: act(
                    Transaction(inner, inner, argument if handler.is_async else inner)
                )
            )
    except OSError as error:
        if is_connected:  # it is an error of `apply`
            raise
        raise not_reached(error) from error
    except asyncio.CancelledError as error:
        free_cursors(error)
        _pass_cancellation(error)


@dataclass
class Transaction:
    """An open transaction, in which `apply` runs between a savepoint and its release.

    Releasing the savepoint fails if `apply` has ended the transaction. While the savepoint exists,
    SQLAlchemy refuses to commit the transaction.

    Attributes:
        argument: the first argument of `apply`.
        was_refused: whether `apply` has tried to commit.
        applied: how often the last call's `apply` has returned; None before a call.
    """

    handle: Connection | Session
    connection: Connection
    argument: Any
    was_refused: bool = False
    applied: int | None = None

    def call(self, apply: Callable[[], object], *, catch: bool = False) -> Exception | None:
        """Call `apply`; if it raises, undo its writes.

        If `catch`, return its error instead of raising it, unless it is transient, ends the
        transaction, or says that the database is full.

        Raises:
            Exception: what `apply` raised; roll the transaction back.
            ConfigurationError: `apply` has ended the transaction.
        """
        connection, info = self.connection, self.connection.info
        self.was_refused = False
        keep: Callable[[], object]
        undo: Callable[[], object]
        if isinstance(self.handle, Session):
            nested = self.handle.begin_nested()
            keep, undo = nested.commit, nested.rollback
        else:
            # Without SQLAlchemy, which would compile these statements each time.
            cursor = connection.connection.cursor()
            cursor.execute("SAVEPOINT zeroeventhub_page")
            keep = partial(cursor.execute, "RELEASE SAVEPOINT zeroeventhub_page")
            undo = partial(cursor.execute, "ROLLBACK TO SAVEPOINT zeroeventhub_page")
        # Not before, as a task may be cancelled in the savepoint: the pool keeps what is in `info`.
        info[_APPLYING] = self
        try:
            apply()
            self._end(keep, keeps=True)
        except Exception as error:
            is_ended = isinstance(error, TransactionEnded | StoreUnavailable)
            if is_ended or is_transient(error) or has_rolled_back(error) or is_full(error):
                raise
            if catch:
                self._check_open()
            if self._is_open:
                self._end(undo, keeps=False)
            if not catch:
                raise
            return error
        finally:
            info.pop(_APPLYING, None)
        return None

    def _end(self, end: Callable[[], object], *, keeps: bool) -> None:
        """Release the savepoint, which keeps the writes of `apply`, or roll back to it."""
        dialect = self.connection.dialect
        if keeps:
            if self.was_refused or not self.handle.in_transaction():
                self._check_open()
            if isinstance(self.handle, Session):
                self.handle.flush()
            driver = self.connection.connection.driver_connection
            status = getattr(getattr(driver, "info", None), "transaction_status", None)
            if status == ABORTED and database_of(self.connection).aborts_on_error:
                raise ConfigurationError(
                    "apply has caught an error of the database, but PostgreSQL has aborted the "
                    "transaction: do not catch the error, or catch it around a savepoint."
                )
        try:
            end()
        except (DBAPIError, InvalidRequestError, dialect.loaded_dbapi.Error) as error:
            if is_transient(error):
                raise
            raise TransactionEnded(
                "The transaction that apply was given has ended before apply did, so that cursor "
                "and effects may have come apart: let apply neither commit nor roll back, let it "
                "pass errors of the database on, and run no statements that commit by themselves, "
                "such as CREATE TABLE or TRUNCATE on MariaDB and MySQL."
            ) from error

    @property
    def _is_open(self) -> bool:
        return self.handle.in_transaction() and not self.was_refused

    def _check_open(self) -> None:
        """Raise ConfigurationError if `apply` has rolled the whole transaction back."""
        if not self._is_open:
            raise ConfigurationError(
                "apply has rolled back the transaction that moves the cursor, or has tried to "
                "commit it: to undo a part of it, use a savepoint (begin_nested)."
            )


def _begun(session: Session, argument: Any) -> Transaction:
    """Return the transaction of a session of the caller's, which may have another engine.

    Raises:
        ConfigurationError: it commits each statement by itself; nothing was written yet.
    """
    connection = session.connection()
    if connection.engine not in _watched:
        if commits_each(connection) or driver_commits_each(connection):
            raise ConfigurationError(COMMITS_EACH)
        _watch(connection)
        watch_commits(connection.engine)
    return Transaction(session, connection, argument)


_watched: WeakSet[Engine] = WeakSet()
"""The engines whose commits are watched."""


def watch_commits(engine: Engine) -> None:
    """Watch the commits of an engine from now on."""
    if engine not in _watched:
        _watched.add(engine)
        _watch(engine)


def _watch(handle: Engine | Connection) -> None:
    event.listen(handle, "commit", _refuse_to_commit)
    event.listen(handle, "prepare_twophase", _refuse_to_commit)


def _refuse_to_commit(connection: Connection, *prepared: object) -> None:
    """Keep `apply` from committing, also in two phases, of which the first has an id."""
    transaction: Transaction | None = connection.info.get(_APPLYING)
    if transaction is None:
        return
    transaction.was_refused = True
    if not prepared:
        # SQLAlchemy counts the refused commit as done, and would return an open transaction to the
        # pool.
        transaction.connection.connection.rollback()
    raise ConfigurationError(
        "apply must not commit the transaction it was given: it is committed after apply, with the "
        "cursor."
    )
