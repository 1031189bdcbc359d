"""What is decided about a page between its transactions, without I/O.

A page is applied in one transaction. In lanes, each lane has a transaction of its own, which
writes down how far it is, and a last one moves the cursor: a crash in between neither loses
events nor repeats them.
"""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection

from zeroeventhub._follow import Advance, Deliver, Place, Redeliver
from zeroeventhub.cloud_event import event_id
from zeroeventhub.consumer.applying.decisions import Action, Decisions, Do, Tally
from zeroeventhub.consumer.applying.lanes import Part, divide
from zeroeventhub.consumer.applying.savepoint import TransactionEnded
from zeroeventhub.consumer.options import Options
from zeroeventhub.cursors.lanes import LaneProgress
from zeroeventhub.errors import Fenced, StoreUnavailable
from zeroeventhub.protocol import Event

__all__ = ["Result", "Round", "Rounds", "Work"]

_log = logging.getLogger("zeroeventhub.consumer")

LETTERS_AT_ONCE = 1000
"""Dead letters that are applied again before pages get their turn."""


@dataclass(frozen=True)
class Work:
    """Hold what is to be done in a transaction of its own.

    Attributes:
        step: what it belongs to.
        events: the events that it applies; none where it only reads or writes what is kept.
        actions: decides what is done; the result is what it returns.
    """

    step: Deliver | Advance | Redeliver
    events: Sequence[Event]
    actions: Callable[[], Generator[Action, Any, Any]]


Result: TypeAlias = Any
"""What a work's actions return, or the Exception that its transaction ended in."""

Round: TypeAlias = Sequence[Work]
"""Works that may be done beside each other; the result is a list of Results."""


class Rounds:
    """Decide which transactions a step is made of.

    Args:
        options: how the consumer applies.
        decisions: decide what is done in each.
    """

    def __init__(self, options: Options, decisions: Decisions) -> None:
        self._options = options
        self._decisions = decisions
        self._progress: dict[int, tuple[Place, LaneProgress | None]] = {}
        self._failures: dict[int, tuple[Place, int]] = {}
        self._ended: str | None = None

    def deliver(self, step: Deliver) -> Generator[Round, Sequence[Result], None]:
        """Have a page applied, and move the cursor behind it."""
        if self._ended is not None:
            raise TransactionEnded(self._ended)
        progress = yield from self._load_progress(step)
        lanes = self._options.lanes if progress is None else progress.lanes
        division = divide(
            step.page.events,
            self._options.key,
            lanes=lanes,
            done={} if progress is None else progress.done,
        )
        events: Sequence[Event] = ()
        if len(division.parts) == 1:
            events = division.parts[0].events
        elif division.parts:
            yield from self._all([self._lane(step, part, lanes) for part in division.parts])
        in_lanes = progress is not None or len(division.parts) > 1
        cursor, ahead = step.page.cursor, division.ahead
        finish = partial(self._finish, step, cursor, lanes if in_lanes else None, ahead)
        yield from self._all(
            [Work(step, events, partial(self._decisions.decide, step, events, finish))]
        )
        self._keep_progress(step, cursor, LaneProgress(lanes, dict(ahead)) if ahead else None)

    def advance(self, step: Advance) -> Generator[Round, Sequence[Result], None]:
        """Move the cursor over no events; lanes that have gone beyond it keep their progress."""
        progress = yield from self._load_progress(step)
        lanes, done = (None, {}) if progress is None else (progress.lanes, progress.done)
        finish = partial(self._finish, step, step.new, lanes, done)
        yield from self._all([Work(step, (), partial(_only, Do(finish)))])
        self._keep_progress(step, step.new, progress)

    def redeliver(self, step: Redeliver) -> Generator[Round, Sequence[Result], None]:
        """Have dead letters of a partition applied again that were marked for it."""
        find = self._decisions.due(step)
        for _ in range(LETTERS_AT_ONCE):
            (due,) = yield from self._all([Work(step, (), partial(_only, find))])
            if not due:
                return
            (letter,) = due
            redo = partial(self._decisions.redo, step, letter)
            (result,) = yield [Work(step, (letter.event,), redo)]
            if isinstance(result, Fenced | StoreUnavailable | TransactionEnded):
                raise result
            if isinstance(result, Exception):
                # The transaction could not be committed: what it wrote down is gone with it.
                fail = partial(self._decisions.fail_again, step, letter, result)
                yield from self._all([Work(step, (), fail)])
            elif result is not None:
                self._tell(step, result)

    def _load_progress(
        self, step: Deliver | Advance
    ) -> Generator[Round, Sequence[Result], LaneProgress | None]:
        """Find out how far lanes have gone; nobody but this process can know better."""
        progress: LaneProgress | None
        place, progress = self._progress.pop(step.partition, (None, None))
        if place == step.place:
            return progress
        store, name = self._options.store, self._options.name
        ask = Do(
            lambda connection: store.lanes.progress(connection, name, step.partition, step.place)
        )
        (progress,) = yield from self._all([Work(step, (), partial(_only, ask))])
        return progress

    def _keep_progress(
        self, step: Deliver | Advance, cursor: str, progress: LaneProgress | None
    ) -> None:
        self._progress[step.partition] = Place(cursor, step.place.epoch), progress

    def _lane(self, step: Deliver, part: Part, lanes: int) -> Work:
        """Apply the events of a lane, and write down that it is at the page's end."""

        def fence(connection: Connection) -> None:
            self._options.store.lanes.advance(
                connection,
                self._options.name,
                step.partition,
                step.place,
                lane=part.lane,
                lanes=lanes,
                before=part.done,
                after=len(step.page.events),
            )

        return Work(step, part.events, partial(self._decisions.decide, step, part.events, fence))

    def _finish(
        self,
        step: Deliver | Advance,
        cursor: str,
        lanes: int | None,
        ahead: Mapping[int, int],
        connection: Connection,
    ) -> None:
        """Move the cursor, from which lanes count then that have gone beyond it."""
        store, name = self._options.store, self._options.name
        self._decisions.move(step.partition, step.place, cursor, connection)
        if lanes is None:
            return
        store.lanes.clear(connection, name, step.partition)
        place = Place(cursor, step.place.epoch)
        for lane, done in ahead.items():
            store.lanes.advance(
                connection,
                name,
                step.partition,
                place,
                lane=lane,
                lanes=lanes,
                before=0,
                after=done,
            )

    def _all(self, works: Round) -> Generator[Round, Sequence[Result], Sequence[Any]]:
        """Have works done; return what came of them, or raise the error that counts most."""
        results = yield works
        errors = []
        for work, result in zip(works, results, strict=True):
            if isinstance(result, Exception):
                errors.append(result)
            elif isinstance(result, Tally):
                self._tell(work.step, result)
        if errors:
            error = self._worst(works[0].step, errors)
            try:
                raise error
            finally:
                # What is raised knows this frame, which must not know it: nobody would forget the
                # page.
                del error, errors, result, results
        return results

    def _worst(self, step: Any, errors: Sequence[Exception]) -> Exception:
        """Choose the error that counts most, and tell of those that a handler raised."""
        for kind in (Fenced, StoreUnavailable):
            for error in errors:
                if isinstance(error, kind):
                    return error
        place, failures = self._failures.get(step.partition, (None, 0))
        failures = failures + 1 if place == step.place else 1
        self._failures[step.partition] = step.place, failures
        for error in errors:
            if isinstance(error, TransactionEnded):
                self._ended = str(error)
            self._options.observer.failed(self._options.name, step.partition, error, failures)
        return errors[0]

    def _tell(self, step: Any, tally: Tally) -> None:
        """Tell what was committed."""
        observer, where = self._options.observer, (self._options.name, step.partition)
        if tally.duplicates:
            observer.duplicate(*where, tally.duplicates)
        if tally.letters:
            failed = sum(error is not None for _, error in tally.letters)
            observer.set_aside(*where, failed, len(tally.letters) - failed)
            for event, error in tally.letters:
                _log.error(
                    "Event %r behind cursor %r is a dead letter: %s.",
                    event_id(event),
                    step.place.cursor,
                    f"applying it raised {type(error).__name__}"
                    if error
                    else "it was held back behind another one of its key",
                    extra={"consumer": self._options.name, "partition": step.partition},
                )
        if tally.events:
            observer.committed(*where, tally.events)


def _only(action: Action) -> Generator[Action, Any, Any]:
    return (yield action)
