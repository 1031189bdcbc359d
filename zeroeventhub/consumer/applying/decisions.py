"""What is decided about a page while it is applied, without I/O.

In one transaction stand the cursor, the inbox, the dead letters and the effects. The cursor comes
first: a second process of the same name waits there, and then gives way.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Connection

from zeroeventhub._follow import Deliver, Place, Redeliver
from zeroeventhub.consumer.applying.duplicates import without_duplicates
from zeroeventhub.consumer.options import Options
from zeroeventhub.cursors.dead_letters import DeadLetter
from zeroeventhub.errors import ConfigurationError, TooManyDeadLetters
from zeroeventhub.protocol import Event

__all__ = ["Action", "Attempt", "Call", "Decisions", "Do", "Tally"]

_log = logging.getLogger("zeroeventhub.consumer")


@dataclass(frozen=True)
class Do:
    """Call a function with the transaction's connection; the result is what it returns."""

    function: Callable[[Connection], Any]


@dataclass(frozen=True)
class Call:
    """Have events applied."""

    events: Sequence[Event]


@dataclass(frozen=True)
class Attempt:
    """Have events applied, and undone if that raises; the result is the error, or None."""

    events: Sequence[Event]


Action: TypeAlias = Do | Call | Attempt


@dataclass
class Tally:
    """Count what was decided about events in a transaction.

    Attributes:
        events: all of them.
        duplicates: those that were dropped, because the inbox had them.
        letters: those that were set aside, each with its error; None if it was held back.
    """

    events: int
    duplicates: int = 0
    letters: list[tuple[Event, Exception | None]] = field(default_factory=list)


@dataclass
class Decisions:
    """Decide what is done with events inside a transaction.

    Attributes:
        options: how the consumer applies.
        inbox: whether events are remembered, to drop those that come twice.
    """

    options: Options
    inbox: bool
    _warned: bool = field(default=False, init=False)

    def decide(
        self, step: Deliver, events: Sequence[Event], fence: Callable[[Connection], None]
    ) -> Generator[Action, Any, Tally]:
        """Have events of a page applied, behind a fence.

        Args:
            step: the page's delivery.
            events: those of its events that this transaction is for.
            fence: moves what says that they are applied, or raises Fenced.
        """
        tally = Tally(len(events))
        yield Do(fence)
        if self.inbox and events:
            events = yield from self._without_duplicates(step.partition, events)
            tally.duplicates = tally.events - len(events)
        held_keys: set[str] = set()
        if self.options.failures.hold_back and events:
            keys = {key for event in events if (key := self.options.key(event)) is not None}
            held_keys |= yield Do(self._bound(self.options.store.dead_letters.blocked, keys))
        if step.set_aside or held_keys:
            events = yield from self._held_back(step, events, held_keys, tally)
        if events:
            yield Call(events)
        return tally

    def redo(self, step: Redeliver, letter: DeadLetter) -> Generator[Action, Any, Tally | None]:
        """Have the event of a dead letter applied once more, if it is still the next one."""
        yield self._stay(step)
        due = yield self.due(step)
        if [one.id for one in due] != [letter.id]:
            return None
        error = yield from self._tried(step.partition, letter.event, letter.tries)
        if error is not None:
            yield self._failed_again(letter, error, self.options.failures.tries)
            return None
        settle = self.options.store.dead_letters.settle
        yield Do(lambda connection: settle(connection, letter))
        return Tally(1)

    def fail_again(
        self, step: Redeliver, letter: DeadLetter, error: Exception
    ) -> Generator[Action, Any, None]:
        """Write down that the event of a dead letter failed once more, when it was committed."""
        self.options.observer.failed(self.options.name, step.partition, error, letter.tries + 1)
        yield self._stay(step)
        yield self._failed_again(letter, error, 1)

    def due(self, step: Redeliver) -> Do:
        """Find the next dead letter that was marked to be applied again."""
        return Do(self._bound(self.options.store.dead_letters.due, step.partition, limit=1))

    def _stay(self, step: Redeliver) -> Do:
        """Be fenced like a move of the cursor, which stays where it is."""
        return Do(partial(self.move, step.partition, step.place, step.place.cursor))

    def _failed_again(self, letter: DeadLetter, error: Exception, tries: int) -> Do:
        write, in_all = self.options.store.dead_letters.failed_again, letter.tries + tries
        return Do(lambda connection: write(connection, letter, error, in_all))

    def move(self, partition: int, place: Place, cursor: str, connection: Connection) -> None:
        """Move a cursor, or raise Fenced."""
        self.options.store.advance(connection, self.options.name, partition, place, cursor)

    def _held_back(
        self, step: Deliver, events: Sequence[Event], held_keys: set[str], tally: Tally
    ) -> Generator[Action, Any, list[Event]]:
        """Hold back what is behind a dead letter; return what is then to be applied together.

        Where events are set aside that fail, each is applied for itself, and none is left.
        """
        together = []
        room = 0
        for event in events:
            key = self.options.key(event)
            error = None
            if key is None or key not in held_keys:
                if not step.set_aside:
                    together.append(event)
                    continue
                error = yield from self._tried(step.partition, event, 0)
                if error is None:
                    continue
                if key is not None and self.options.failures.hold_back:
                    held_keys.add(key)
            if not tally.letters:
                known = yield Do(self._bound(self.options.store.dead_letters.count))
                room = self.options.failures.at_most - known.get(step.partition, 0)
            if len(tally.letters) >= room:
                raise TooManyDeadLetters(
                    f"The partition has {self.options.failures.at_most} dead letters, as many as "
                    "Failures.at_most allows: have them retried or discarded, and start again."
                )
            tries = 0 if error is None else self.options.failures.tries
            add = self.options.store.dead_letters.add
            yield Do(self._bound(add, step.partition, event, key=key, error=error, tries=tries))
            tally.letters.append((event, error))
        return together

    def _tried(
        self, partition: int, event: Event, before: int
    ) -> Generator[Action, Any, Exception | None]:
        """Try to apply an event as often as may be; return the last error."""
        error: Exception | None = None
        for attempt in range(before + 1, before + 1 + self.options.failures.tries):
            error = yield Attempt((event,))
            if error is None:
                return None
            self.options.observer.failed(self.options.name, partition, error, attempt)
        return error

    def _without_duplicates(
        self, partition: int, events: Sequence[Event]
    ) -> Generator[Action, Any, list[Event]]:
        ids = [self.options.identity(event) for event in events]
        if None in ids:
            self._complain()
        known = [one for one in ids if one is not None]
        unseen = yield Do(self._bound(self.options.store.inbox.unseen, partition, known))
        return without_duplicates(events, ids, unseen)

    def _complain(self) -> None:
        """Say that an event has no id, and so may be applied twice.

        Raises:
            ConfigurationError: the caller has asked for an inbox.
        """
        if self.options.inbox:
            raise ConfigurationError(
                "An event has no id, so the inbox cannot tell whether it comes twice: give "
                "`identity`, a function that returns the id of an event, or do without the inbox."
            )
        if not self._warned:
            self._warned = True
            _log.warning(
                "The feed may publish events twice, and has events without an id: the consumer %r "
                "applies them as often as they come. Give it `identity`, a function that returns "
                "the id of an event, or inbox=False.",
                self.options.name,
            )

    def _bound(
        self, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Callable[[Connection], Any]:
        return lambda connection: function(connection, self.options.name, *arguments, **named)
