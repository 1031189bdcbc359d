"""How a consumer reports its work: hooks for telemetry, its log, and where errors were raised."""

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from zeroeventhub.consumer.steps import Pause
from zeroeventhub.errors import Halted, LeaseLost, TokenChanged, ZeroEventHubError
from zeroeventhub.protocol import Event
from zeroeventhub.wire.cloud_event import event_id

_log = logging.getLogger("zeroeventhub.consumer")


class Observer:
    """Notice a consumer's work; every method does nothing unless a subclass overrides it.

    The methods are called in the thread or task that does the work. They must not raise, and must
    not take long. `consumer` is the consumer's name, `partition` the id of the partition, and
    `events` the number of events, or in `applying` the events themselves.

    Example:
        class Counting(Observer):
            def committed(self, consumer, partition, events):
                print(f"{consumer} applied {events} events of partition {partition}")

        Consumer(client, store, "billing", observer=Counting()).run(apply)
    """

    def fetched(self, consumer: str, partition: int, events: int, seconds: float) -> None:
        """Notice a page that was fetched, for which the feed took a number of seconds."""

    def applying(
        self,
        consumer: str,  # noqa: ARG002 - subclasses want it
        partition: int,  # noqa: ARG002 - subclasses want it
        events: Sequence[Event],  # noqa: ARG002 - subclasses want it
    ) -> AbstractContextManager[None]:
        """Return a context manager for the transaction that applies events of a page."""
        return nullcontext()

    def committed(self, consumer: str, partition: int, events: int) -> None:
        """Notice a page that was committed, a part of it, or a dead letter applied again.

        `events` counts those that were applied: not duplicates, nor new dead letters.
        """

    def failed(self, consumer: str, partition: int, error: Exception, attempt: int) -> None:
        """Notice an error of the function that applies a page, at an attempt, counted from 1."""

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:
        """Notice dead letters that were committed.

        `events` were set aside because their handler raised; `held` were held back after an earlier
        dead letter of their key.
        """

    def waited(
        self, consumer: str, partition: int | None, error: Exception, seconds: float
    ) -> None:
        """Notice that the consumer waits after an error, for a number of seconds, to try again.

        `partition` is None if the error does not belong to a single partition.
        """

    def fenced(self, consumer: str, partition: int) -> None:
        """Notice a commit that was refused: another process has taken over the partition."""

    def halted(self, consumer: str, partition: int, error: Exception) -> None:
        """Notice a partition that has halted with an error."""

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        """Notice all partitions that this process holds leases of now."""

    def duplicate(self, consumer: str, partition: int, events: int) -> None:
        """Notice events that the inbox has dropped, because they were applied before."""


class RunLog:
    """Log what happens, without data of events, and call the hooks of the observer as well."""

    def __init__(self, name: str, observer: Observer, lease: float) -> None:
        self._name = name
        self._observer = observer
        self._lease = lease
        self._is_left_out = False

    def waits(self, pause: Pause, partition: int | None = None) -> None:
        """Log a pause if an error is the reason; an error of a handler only by its class."""
        error = pause.reason
        if error is None:
            return
        _log.warning(
            "%s Trying again in %.1f s.",
            _sentence(error),
            pause.seconds,
            extra=self._where(partition),
        )
        self._observer.waited(self._name, partition, error, pause.seconds)

    def fenced(self, partition: int, error: Exception) -> None:
        """Log a commit that was refused."""
        _log.info("%s", _sentence(error), extra=self._where(partition))
        self._observer.fenced(self._name, partition)

    def ended(self, partition: int, error: Exception) -> None:
        """Log an error that ended the reading of a partition."""
        level = logging.INFO if isinstance(error, TokenChanged | LeaseLost) else logging.ERROR
        _log.log(level, "%s", _sentence(error), extra=self._where(partition))
        if isinstance(error, Halted):
            self._observer.halted(self._name, partition, error)

    def holds(self, partitions: frozenset[int], elsewhere: Collection[int] = ()) -> None:
        """Log which leases are held now, and once if other processes hold all of them."""
        _log.debug("Leases are held now: %s", sorted(partitions), extra=self._where(None))
        is_left_out = bool(elsewhere) and not partitions
        if is_left_out and not self._is_left_out:
            _log.warning(
                "Other processes of consumer %r hold all partitions that this one may read: it "
                "begins when they release one. If one was killed, its partitions are free %g s "
                "after it last renewed its leases.",
                self._name,
                self._lease,
                extra=self._where(None),
            )
        self._is_left_out = is_left_out
        self._observer.held(self._name, partitions)

    def left_undone(self, message: str, error: Exception, partition: int | None = None) -> None:
        """Log an error after which the run goes on; `message` says what was left undone: %s."""
        _log.warning(message, _sentence(error), extra=self._where(partition))

    def _where(self, partition: int | None) -> dict[str, Any]:
        return {"consumer": self._name, "partition": partition}


def _sentence(error: Exception) -> str:
    """Describe an error; one of another library only by its class, as its text may hold data."""
    place = at_place(error)
    if isinstance(error, ZeroEventHubError):
        text = str(error)
        if place:
            return f"{text.removesuffix('.')},{place}."
        return text if text.endswith((".", "!", "?")) else f"{text}."
    return f"{type(error).__name__} was raised{place}."


_NOTE = "zeroeventhub: "
"""How the note begins that says at which event an error was raised; stored texts have it too."""


def place_of(event: Event, events: Sequence[Event], cursor: str) -> str:
    """Describe where an event is in the page that follows a cursor, and its id if it has one."""
    number = next(number for number, other in enumerate(events, start=1) if other is event)
    identity = event_id(event)
    with_id = "" if identity is None else f" (id {identity!r})"
    return f"event {number} of {len(events)} after cursor {cursor!r}{with_id}"


def note_place(error: BaseException, place: str) -> None:
    """Add to an error the event at which it was raised; only once if it is raised again."""
    if at_place(error) != f" at {place}":
        with suppress(AttributeError):  # of a frozen dataclass, which takes no notes
            error.add_note(f"{_NOTE}{place}")


def place_in(text: str) -> str:
    """Return the place that the stored text of an error names; empty if it names none."""
    lines = [line for line in text.splitlines() if line.startswith(f"{_NOTE}event ")]
    return lines[-1].removeprefix(_NOTE) if lines else ""


def at_place(error: BaseException) -> str:
    """Return " at " and the place of an error, for the end of a sentence; empty without a place."""
    place = place_in("\n".join(getattr(error, "__notes__", ())))
    return f" at {place}" if place else ""
