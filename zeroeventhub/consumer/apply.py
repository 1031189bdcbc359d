"""Apply pages and dead letters, each in a transaction that also holds the cursor.

One transaction writes the cursor, the inbox, the dead letters and the effects. It moves the cursor
first: a second process of the same consumer waits for that row's lock, and is then fenced.

Sync and async consumers share what happens inside a transaction: SQLAlchemy runs sync functions
over async connections.
"""

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias
from zlib import crc32

from sqlalchemy import Connection, Engine

from zeroeventhub.consumer.concurrency import Concurrency
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.handler import (
    Handler,
    Transaction,
    TransactionEnded,
    transact,
    watch_commits,
)
from zeroeventhub.consumer.observer import note_place, place_of
from zeroeventhub.consumer.page import DecodeHint, without_duplicates
from zeroeventhub.consumer.steps import Advance, Deliver, Place, Redeliver
from zeroeventhub.consumer.store.applied import LaneProgress
from zeroeventhub.consumer.store.dead_letters import DeadLetter
from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import store_error
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable, TooManyDeadLetters
from zeroeventhub.protocol import FIRST, Event
from zeroeventhub.wire.ndjson import restore_data

_log = logging.getLogger("zeroeventhub.consumer")


_Step: TypeAlias = Deliver | Advance | Redeliver

_Work: TypeAlias = tuple[Sequence[Event], Callable[[Transaction], Any]]
"""The events that a transaction applies, if any, and what is done in it."""


@dataclass
class Tally:
    """What a transaction did with its events.

    Attributes:
        duplicates: how many it dropped because the inbox had them.
        letters: the events that it set aside, each with its error; None if it was held back.
    """

    events: int
    duplicates: int = 0
    letters: list[tuple[Event, Exception | None]] = field(default_factory=list)


class PageTransactions:
    """Apply pages and dead letters, each in a transaction that also holds the cursor.

    Several threads may call it at once, for different partitions. A page uses one connection of
    the store's engine for each lane. `marked` has the partitions with dead letters that the
    operator marked for retry.

    Attributes:
        hint: the type or table that pages are converted to, once known.
        inbox: whether to drop events that were applied before. If the caller leaves that to the
            feed's promise, the runner sets it after discovery.
        is_compacted: whether the feed is, which the runner sets after discovery. Its pages are not
            divided into lanes: these count the events after a cursor, which may be fewer when they
            are read again.
        methods: by the class of a step, the method that carries it out.

    Raises:
        ConfigurationError: `apply` requests an argument that this consumer cannot pass.
    """

    def __init__(
        self,
        config: Config,
        concurrency: Concurrency,
        apply: Callable[..., Any],
        sessions: Callable[[], Any] | None,
        marked: set[int],
    ) -> None:
        self._config = config
        self._concurrency = concurrency
        self._marked = marked
        self._name = config.name
        self._store = config.store
        self._letters = config.store.dead_letters
        engine: Any = config.store.engine
        self._engine = engine
        watch_commits(engine if isinstance(engine, Engine) else engine.sync_engine)
        self._handler = Handler.of(apply, config.store.engine, sessions, config.models)
        self.hint = DecodeHint(self._handler.data_type)
        self.inbox = bool(config.inbox)
        self.is_compacted = False
        self._at_once = 1 if database_of(engine).single_writer else config.lanes
        self._progress: dict[int, tuple[Place, LaneProgress | None]] = {}
        self._failures: dict[int, tuple[Place, int]] = {}
        # By partition, the numbers of the next dead letters, which all lanes of a page take.
        self._counts: dict[int, Iterator[int]] = {}
        self._ended: str | None = None
        self._warned = False
        self.methods: dict[type[Any], Callable[[Any], Coroutine[Any, Any, None]]] = {
            Deliver: self._deliver,
            Advance: self._advance,
            Redeliver: self._redeliver,
        }

    # Which transactions to run.

    async def _deliver(self, step: Deliver) -> None:
        """Apply a page, and move the cursor to its end.

        Raises:
            Fenced: the cursor has moved; nothing was applied.
            StoreUnavailable: the database did not answer, or reported a transient error. The page
                may or may not have been applied.
            Exception: what `apply` raised. Nothing was applied, except for whole lanes.
        """
        if self._ended is not None:
            raise TransactionEnded(self._ended)
        self._counts.pop(step.partition, None)
        place, progress = self._progress.pop(step.partition, (None, None))
        if place != step.place:
            progress = await self._look_up(step)
        events, cursor = step.page.events, step.page.cursor
        move: Callable[[Connection], None] = partial(
            self._store.advance,
            consumer=self._name,
            partition=step.partition,
            place=step.place,
            new=cursor,
        )
        if progress is not None and self.is_compacted:
            raise ConfigurationError(
                f"Lanes have applied a part of the page after cursor {step.place.cursor!r} of "
                f"partition {step.partition}, and the feed is compacted since, so that nothing "
                "tells which part: set the cursor there again with `zeroeventhub cursors set`, "
                "and the whole page is applied again."
            )
        is_divided = self._config.lanes > 1 and not self.is_compacted
        # At FIRST, a trim between two readings would change what the counts of lanes count.
        if progress is not None or (is_divided and step.place.cursor != FIRST):
            events, left = await self._deliver_in_lanes(step, progress)
            move = partial(self._move_cursor, step, cursor, left)
            progress = left if left is not None and left.done else None
        await self._run_all(step, [(events, partial(self._apply, step, events, move))])
        self._progress[step.partition] = Place(cursor, step.place.epoch), progress

    async def _deliver_in_lanes(
        self, step: Deliver, progress: LaneProgress | None
    ) -> tuple[Sequence[Event], LaneProgress | None]:
        """Apply a page lane by lane, each in a transaction that also stores the lane's progress.

        Return the events that are to be applied where the cursor is moved, which comes last, and
        the progress of lanes beyond it; None if no lane has begun. A crash in between neither loses
        events nor repeats them.
        """
        config, events = self._config, step.page.events
        lanes = config.lanes if progress is None else progress.lanes
        done = {} if progress is None else progress.done
        parts = divide(events, config.key, lanes=lanes, done=done)
        rest: Sequence[Event] = ()
        if len(parts) > 1:
            works: list[_Work] = []
            for lane, mine in parts.items():
                fence = partial(
                    config.store.lanes.advance,
                    consumer=self._name,
                    partition=step.partition,
                    place=step.place,
                    lane=lane,
                    lanes=lanes,
                    before=done.get(lane, 0),
                    after=len(events),
                )
                works.append((mine, partial(self._apply, step, mine, fence)))
            await self._run_all(step, works)
        elif parts:
            # A page of one lane is applied in the transaction that moves the cursor.
            (rest,) = parts.values()
        # A page that is read again may be shorter than it was.
        ahead = {lane: count - len(events) for lane, count in done.items() if count > len(events)}
        has_begun = progress is not None or len(parts) > 1
        return rest, LaneProgress(lanes, ahead) if has_begun else None

    async def _advance(self, step: Advance) -> None:
        """Move the cursor past no events; lanes beyond it keep their progress."""
        place, progress = self._progress.pop(step.partition, (None, None))
        if place != step.place:
            progress = await self._look_up(step)
        await self._in_store(step, partial(self._move_cursor, step, step.new, progress))
        self._progress[step.partition] = Place(step.new, step.place.epoch), progress

    async def _redeliver(self, step: Redeliver) -> None:
        """Apply again the next dead letter of a partition that the operator marked for retry.

        Another failure is stored in the letter. The partition is marked until none is left.
        """
        due = await self._in_store(step, partial(self._due, step))
        if not due:
            self._marked.discard(step.partition)
            return
        (letter,) = due
        redo = partial(self._redo, step, letter)
        result = await self._do(step, ((letter.event,), redo))
        if isinstance(result, Fenced | StoreUnavailable | TransactionEnded):
            raise self._most_important(step, [result])
        if isinstance(result, Exception):
            # The rollback has undone the record of the failure.
            await self._in_store(step, partial(self._fail_again, step, letter, result))
        elif result:
            self._config.observer.committed(self._name, step.partition, 1)

    async def _look_up(self, step: Deliver | Advance) -> LaneProgress | None:
        """Read the lanes' progress, once, as only the holder of the lease moves it."""
        where = self._name, step.partition, step.place
        progress: LaneProgress | None = await self._in_store(
            step, lambda connection: self._store.lanes.progress(connection, *where)
        )
        return progress

    async def _in_store(self, step: _Step, act: Callable[[Connection], Any]) -> Any:
        """Run a function that applies no events, in a transaction; return its result."""
        return (await self._run_all(step, [((), lambda each: act(each.connection))]))[0]

    async def _run_all(self, step: _Step, works: Sequence[_Work]) -> Sequence[Any]:
        """Run works, in parallel; return their results, or raise the most important error."""
        if len(works) == 1:
            results = [await self._do(step, works[0])]
        else:
            do = partial(self._do, step)
            results = await self._concurrency.all(do, works, self._at_once)
        observer, errors = self._config.observer, []
        for result in results:
            if isinstance(result, Exception):
                errors.append(result)
            elif isinstance(result, Tally):
                if result.duplicates or result.letters:
                    self._report(step, result)
                if result.events:
                    applied = result.events - result.duplicates - len(result.letters)
                    observer.committed(self._name, step.partition, applied)
        if errors:
            error = self._most_important(step, errors)
            try:
                raise error
            finally:
                # The error's traceback refers to this frame. If the frame referred to the error,
                # that cycle would keep the page in memory.
                del error, errors, result, results
        return results

    def _most_important(self, step: Any, errors: Sequence[Exception]) -> Exception:
        """Choose the most important error, and report those that a handler raised."""
        for kind in (Fenced, StoreUnavailable):
            for error in errors:
                if isinstance(error, kind):
                    if kind is Fenced:
                        self._config.log.fenced(step.partition, error)
                    return error
        place, failures = self._failures.get(step.partition, (None, 0))
        failures = failures + 1 if place == step.place else 1
        self._failures[step.partition] = step.place, failures
        for error in errors:
            if isinstance(error, TransactionEnded):
                self._ended = str(error)
            self._config.observer.failed(self._name, step.partition, error, failures)
        return errors[0]

    def _report(self, step: Any, tally: Tally) -> None:
        """Report which committed events were not applied."""
        observer, where = self._config.observer, (self._name, step.partition)
        if tally.duplicates:
            observer.duplicate(*where, tally.duplicates)
        if tally.letters:
            failed = sum(error is not None for _, error in tally.letters)
            observer.set_aside(*where, failed, len(tally.letters) - failed)
            for event, error in tally.letters:
                place = place_of(event, step.page.events, step.place.cursor)
                _log.error(
                    "%s is a dead letter: %s.",
                    f"{place[0].upper()}{place[1:]}",
                    f"applying it raised {type(error).__name__}"
                    if error
                    else "it was held back after another one of its key",
                    extra={"consumer": self._name, "partition": step.partition},
                )

    async def _do(self, step: _Step, work: _Work) -> Any:
        """Run a work in a transaction; return its result, or the Exception that it ended in."""
        events, act = work
        try:
            where = (self._name, step.partition, events)
            with self._config.observer.applying(*where) if events else nullcontext():
                try:
                    return await transact(self._engine, self._handler, act)
                except Exception as error:  # noqa: BLE001 - judged, and raised
                    raise store_error(error)  # noqa: B904 - it has its cause
        except Exception as error:  # noqa: BLE001 - judged with those of the other works
            restore_data(events)
            return error
        restore_data(events)  # type: ignore[unreachable] # for mypy, no observer suppresses errors
        return ConfigurationError(
            "The observer's `applying` suppresses errors, so that nothing says that a page was not "
            "applied: let it pass them on."
        )

    # What a work does in its transaction.

    def _move_cursor(
        self,
        step: Deliver | Advance,
        cursor: str,
        left: LaneProgress | None,
        connection: Connection,
    ) -> None:
        """Move a cursor; of the progress of lanes, if they have begun, keep what is left beyond."""
        where, place, lanes = (self._name, step.partition), step.place, self._store.lanes
        self._store.advance(connection, *where, place, cursor)
        if left is not None:
            lanes.clear(connection, *where)
            place = Place(cursor, place.epoch)
            for lane, done in left.done.items():
                lanes.advance(
                    connection, *where, place, lane=lane, lanes=left.lanes, before=0, after=done
                )

    def _apply(
        self,
        step: Deliver,
        events: Sequence[Event],
        fence: Callable[[Connection], None],
        transaction: Transaction,
    ) -> Tally:
        """Apply some events of a page, after a fence moves the cursor or lane past them."""
        tally = Tally(len(events))
        connection = transaction.connection
        if not self._config.synchronous_commit:
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
        fence(connection)
        if not events:
            return tally
        if self.inbox:
            warn = None if self._config.inbox else self._warn_of_missing_id
            events = without_duplicates(connection, self._config, step.partition, events, warn)
            tally.duplicates = tally.events - len(events)
        held_keys: set[str] = set()
        if self._config.failures.hold_back and events:
            keys = {key for event in events if (key := self._config.key(event)) is not None}
            held_keys |= self._letters.blocked(connection, self._name, keys)
        if step.set_aside or held_keys:
            events = self._hold_back(transaction, step, events, held_keys, tally)
        if events:
            content = (
                step.partition,
                events,
                step.page.cursor,
                step.place,
                self._config,
                self.hint,
                step.ahead,
                self.inbox,
            )
            try:
                transaction.call(partial(self._handler.call, transaction, *content))
            except Exception as error:
                event = self._handler.failed_at(events, transaction.applied)
                if event is not None:
                    note_place(error, place_of(event, step.page.events, step.place.cursor))
                raise
            if self.hint.data_type is None:
                self.hint.learn(events)
        return tally

    def _redo(self, step: Redeliver, letter: DeadLetter, transaction: Transaction) -> bool:
        """Apply the event of a dead letter again; return whether it succeeded."""
        connection = transaction.connection
        place = step.place
        self._store.advance(connection, self._name, step.partition, place, place.cursor)
        if [one.id for one in self._due(step, connection)] != [letter.id]:
            return False
        error = self._try_event(transaction, step, letter.event, letter.tries)
        if error is not None:
            tries = letter.tries + self._config.failures.tries
            self._letters.failed_again(connection, letter, error, tries)
            return False
        self._letters.settle(connection, letter)
        return True

    def _fail_again(
        self, step: Redeliver, letter: DeadLetter, error: Exception, connection: Connection
    ) -> None:
        """Store that the event of a dead letter has failed again, at its commit."""
        self._config.observer.failed(self._name, step.partition, error, letter.tries + 1)
        place = step.place
        self._store.advance(connection, self._name, step.partition, place, place.cursor)
        self._letters.failed_again(connection, letter, error, letter.tries + 1)

    def _due(self, step: Redeliver, connection: Connection) -> list[DeadLetter]:
        """Find the next dead letter that was marked for retry."""
        return self._letters.due(connection, self._name, step.partition, limit=1)

    def _hold_back(
        self,
        transaction: Transaction,
        step: Deliver,
        events: Sequence[Event],
        held_keys: set[str],
        tally: Tally,
    ) -> list[Event]:
        """Hold back events that follow a dead letter of their key; return those to apply together.

        If failing events are set aside, apply each event separately and return none.
        """
        together = []
        failures, connection = self._config.failures, transaction.connection
        for event in events:
            key = self._config.key(event)
            error = None
            if key is None or key not in held_keys:
                if not step.set_aside:
                    together.append(event)
                    continue
                error = self._try_event(transaction, step, event, 0)
                if error is None:
                    continue
                if key is not None and failures.hold_back:
                    held_keys.add(key)
            if step.partition not in self._counts:
                known = self._letters.count(connection, self._name).get(step.partition, 0)
                self._counts.setdefault(step.partition, count(known + 1))
            if next(self._counts[step.partition]) > failures.at_most:
                raise TooManyDeadLetters(
                    f"The partition has {failures.at_most} dead letters, as many as "
                    "Failures.at_most allows: have them retried or discarded, and start again."
                )
            tries = 0 if error is None else failures.tries
            where = (connection, self._name, step.partition)
            self._letters.add(*where, event, key=key, error=error, tries=tries)
            tally.letters.append((event, error))
        return together

    def _try_event(
        self, transaction: Transaction, step: Deliver | Redeliver, event: Event, before: int
    ) -> Exception | None:
        """Try to apply an event up to `Failures.tries` times; return the last error."""
        cursor = step.page.cursor if isinstance(step, Deliver) else step.place.cursor
        page = (step.partition, (event,), cursor, step.place)
        content = (*page, self._config, self.hint, None, self.inbox)
        error: Exception | None = None
        for attempt in range(before + 1, before + 1 + self._config.failures.tries):
            error = transaction.call(partial(self._handler.call, transaction, *content), catch=True)
            if error is None:
                return None
            restore_data((event,))
            if isinstance(step, Deliver):
                note_place(error, place_of(event, step.page.events, step.place.cursor))
            self._config.observer.failed(self._name, step.partition, error, attempt)
        return error

    def _warn_of_missing_id(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "The feed may publish events twice, and has events without an id: the consumer %r "
                "applies them as often as they come. Give it `identity`, a function that returns "
                "the id of an event, or inbox=False.",
                self._name,
            )


def divide(
    events: Sequence[Event],
    key: Callable[[Event], str | None],
    *,
    lanes: int,
    done: Mapping[int, int],
) -> dict[int, tuple[Event, ...]]:
    """Divide a page by the keys of its events; return the events to apply by lane.

    `done` is the number of events after the cursor that are decided already, by lane.
    """
    todo: dict[int, list[Event]] = {}
    for number, event in enumerate(events):
        name = key(event) if lanes > 1 else None
        # For one number of lanes, the same in every process.
        lane = 0 if name is None else crc32(name.encode("utf-8", "surrogatepass")) % lanes
        if number >= done.get(lane, 0):
            todo.setdefault(lane, []).append(event)
    return {lane: tuple(mine) for lane, mine in sorted(todo.items())}
