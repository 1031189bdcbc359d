"""Deliver pages: one transaction for the effects and the cursor, and for each lane before it."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub._follow import Advance, Deliver, Redeliver
from zeroeventhub.consumer.applying.application import Application
from zeroeventhub.consumer.applying.decisions import Action, Call, Decisions, Do
from zeroeventhub.consumer.applying.pending_page import AsyncPendingPage, PendingPage
from zeroeventhub.consumer.applying.rounds import Result, Round, Rounds, Work
from zeroeventhub.consumer.applying.transaction import AsyncTransaction, Transaction
from zeroeventhub.consumer.driving import drive, drive_async
from zeroeventhub.consumer.options import Options
from zeroeventhub.cursors.transience import reaching_store
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event, Page

__all__ = ["AsyncDeliveries", "Deliveries"]


class _Deliveries:
    """What the sync and the async deliveries are made from.

    Attributes:
        inbox: whether events are remembered, to drop those that come twice. Where the caller has
            left that to what the feed promises, it is to be set when the feed has said so.
    """

    def __init__(
        self,
        options: Options,
        apply: Callable[..., Any],
        sessions: Callable[[], Any] | None = None,
    ) -> None:
        self._options = options
        self._application = Application.of(apply, options.store.engine, sessions)
        self._decisions = Decisions(options, inbox=bool(options.inbox))
        self._rounds = Rounds(options, self._decisions)
        # In SQLite one writes at a time anyway.
        alone = options.store.engine.dialect.name == "sqlite"
        self._beside = 1 if alone else options.lanes

    @property
    def inbox(self) -> bool:
        return self._decisions.inbox

    @inbox.setter
    def inbox(self, inbox: bool) -> None:
        self._decisions.inbox = inbox

    def _applying(self, work: Work) -> AbstractContextManager[None]:
        if not work.events:
            return nullcontext()
        observer = self._options.observer
        return observer.applying(self._options.name, work.step.partition, work.events)

    def _sub_step(self, work: Work, events: Sequence[Event]) -> Deliver:
        """Make a delivery of some events only."""
        step = work.step
        if isinstance(step, Deliver):
            return replace(step, page=replace(step.page, events=events))
        return Deliver(step.partition, step.place, Page(events, step.place.cursor))


class Deliveries(_Deliveries):
    """Apply pages and dead letters, each in a transaction that also holds the cursor.

    Called from several threads at once, for different partitions. A page takes as many connections
    of the store's engine as there are lanes.

    Args:
        options: how the consumer applies.
        apply: the caller's function.
        sessions: makes sessions of the ORM, if the caller has said how.

    Attributes:
        inbox: whether events are remembered, to drop those that come twice. Where the caller has
            left that to what the feed promises, it is to be set when the feed has said so.

    Raises:
        ConfigurationError: `apply` wants what cannot be given.
    """

    def deliver(self, step: Deliver) -> None:
        """Apply a page and move the cursor.

        Raises:
            Fenced: the cursor has moved; nothing was applied.
            StoreUnavailable: the database did not answer, or asked to try again. Whether anything
                was applied is not known.
            Exception: what `apply` raised. Nothing was applied, but for whole lanes.
        """
        drive(self._rounds.deliver(step), self._carry_out)

    def advance(self, step: Advance) -> None:
        """Move the cursor over no events.

        Raises:
            Fenced: the cursor has moved.
            StoreUnavailable: as for `deliver`.
        """
        drive(self._rounds.advance(step), self._carry_out)

    def redeliver(self, step: Redeliver) -> None:
        """Apply dead letters again that were marked for it; those that fail are written down.

        Raises:
            Fenced: the cursor has moved.
            StoreUnavailable: as for `deliver`.
        """
        drive(self._rounds.redeliver(step), self._carry_out)

    def _carry_out(self, works: Round) -> list[Result]:
        if len(works) == 1 or self._beside == 1:
            return [self._outcome(work) for work in works]
        with ThreadPoolExecutor(self._beside, "zeroeventhub-lane") as lanes:
            # Each in a context of its own, as it was here: traces are kept in it.
            futures = [lanes.submit(copy_context().run, self._outcome, work) for work in works]
        return [future.result() for future in futures]

    def _outcome(self, work: Work) -> Result:
        try:
            return self._transact(work)
        except Exception as error:  # noqa: BLE001 - judged where the others are known
            return error

    def _transact(self, work: Work) -> Any:
        application = self._application
        opened = Transaction.opened(self._engine, application.kind, application.sessions)
        with self._applying(work), reaching_store(), opened as transaction:
            return drive(work.actions(), partial(self._act, work, transaction))

    def _act(self, work: Work, transaction: Transaction, action: Action) -> Any:
        if isinstance(action, Do):
            return transaction.do(action.function)
        page = PendingPage.of(self._options, self._sub_step(work, action.events))

        def apply(given: Any) -> None:
            self._application.call(given, page)

        act = transaction.call if isinstance(action, Call) else transaction.attempt
        return act(apply)

    @property
    def _engine(self) -> Engine:
        engine = self._options.store.engine
        if not isinstance(engine, Engine):
            raise ConfigurationError("A Consumer's store has a sync Engine; or use AsyncConsumer.")
        return engine


class AsyncDeliveries(_Deliveries):
    """Apply pages and dead letters asynchronously; see Deliveries."""

    async def deliver(self, step: Deliver) -> None:
        """Apply a page and move the cursor; see `Deliveries.deliver`."""
        await drive_async(self._rounds.deliver(step), self._carry_out)

    async def advance(self, step: Advance) -> None:
        """Move the cursor over no events; see `Deliveries.advance`."""
        await drive_async(self._rounds.advance(step), self._carry_out)

    async def redeliver(self, step: Redeliver) -> None:
        """Apply dead letters again that were marked for it; see `Deliveries.redeliver`."""
        await drive_async(self._rounds.redeliver(step), self._carry_out)

    async def _carry_out(self, works: Round) -> list[Result]:
        if len(works) == 1 or self._beside == 1:
            return [await self._outcome(work) for work in works]
        free = asyncio.Semaphore(self._beside)
        async with asyncio.TaskGroup() as lanes:
            tasks = [lanes.create_task(self._outcome(work, free)) for work in works]
        return [task.result() for task in tasks]

    async def _outcome(self, work: Work, free: asyncio.Semaphore | None = None) -> Result:
        try:
            async with free or nullcontext():
                return await self._transact(work)
        except Exception as error:  # noqa: BLE001 - judged where the others are known
            return error

    async def _transact(self, work: Work) -> Any:
        application = self._application
        opened = AsyncTransaction.opened(self._engine, application.kind, application.sessions)
        with self._applying(work), reaching_store():
            async with opened as transaction:
                return await drive_async(work.actions(), partial(self._act, work, transaction))

    async def _act(self, work: Work, transaction: AsyncTransaction, action: Action) -> Any:
        if isinstance(action, Do):
            return await transaction.do(action.function)
        step, application = self._sub_step(work, action.events), self._application

        async def apply() -> None:
            if application.is_async:
                page = AsyncPendingPage.of(self._options, step)
                await application.call_async(transaction.given, page)
            else:
                await transaction.handle.run_sync(
                    application.call, PendingPage.of(self._options, step)
                )

        act = transaction.call if isinstance(action, Call) else transaction.attempt
        return await act(apply)

    @property
    def _engine(self) -> AsyncEngine:
        engine = self._options.store.engine
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(
                "An AsyncConsumer's store has an AsyncEngine; or use Consumer."
            )
        return engine
