"""The options of a consumer, and what it does with events that cannot be applied."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from operator import index
from typing import Any, Literal

from zeroeventhub.consumer.observer import Observer, RunLog
from zeroeventhub.consumer.store.cursor_store import CursorStore, check_consumer_name
from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, Event, TypeFilter, is_cursor
from zeroeventhub.wire.cloud_event import event_identity, event_key

LONGEST = 1_000_000
"""Seconds below which a wait has to be: the operating system cannot wait for some longer ones."""

_KINDS: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    int | None: (int | None, "a whole number"),
    float: (float | int, "a number"),
    str: (str, "text"),
}


def _check_types(options: "Failures | Config") -> None:
    """Raise ConfigurationError if an option is no number or text where it has to be one."""
    for option in fields(options):
        kinds, name = _KINDS.get(option.type, (object, ""))
        value = getattr(options, option.name)
        if not isinstance(value, kinds):
            raise ConfigurationError(f"{option.name} is {name}, not {value!r}.")


@dataclass(frozen=True)
class Failures:
    """What to do with a page whose handler raises.

    Example:
        failures = Failures(tries=5, then="set-aside", hold_back=True)
        Consumer(client, store, "billing", failures=failures).run(apply)

    Attributes:
        tries: how often to try a page before it counts as failed; 1 or more.
        then: "halt" stops the partition; "set-aside" writes the failing events to the dead
            letters, in the transaction that moves the cursor, and continues. Each event is then
            applied separately; a handler of pages gets pages of one event.
        hold_back: whether to set aside later events of the same key after one that failed, so
            that the key's order is kept.
        at_most: how many dead letters a partition may have, failed and held back; the next one
            halts it. 1 or more.

    Raises:
        ConfigurationError: a value is out of its range, or two contradict each other.
    """

    tries: int = 3
    then: Literal["halt", "set-aside"] = "halt"
    hold_back: bool = False
    at_most: int = 1000

    def __post_init__(self) -> None:
        """Check the values."""
        _check_types(self)
        for name in ("tries", "at_most"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"Failures.{name} has to be 1 or more.")
        if self.then not in {"halt", "set-aside"}:
            raise ConfigurationError(
                f'What fails can "halt" its partition or be "set-aside", not {self.then!r}.'
            )
        if self.hold_back and self.then == "halt":
            raise ConfigurationError(
                'hold_back needs then="set-aside": a partition that halts holds no events back.'
            )


@dataclass(eq=False, repr=False)
class Config:
    """The options of a consumer; `Consumer` documents each of them.

    Attributes:
        log: logs what happens, and calls the observer.
    """

    client: Any
    store: CursorStore
    name: str
    _: KW_ONLY
    start: str = FIRST
    partitions: Collection[int] | None = None
    follow: bool = True
    limit: int | None = None
    types: TypeFilter | None = None
    poll_interval: float = 0.5
    attempts: int | None = None
    concurrency: int = 8
    lanes: int = 1
    lease: float = 30.0
    failures: Failures = Failures()
    models: Mapping[str, Any] = field(default_factory=dict)
    key: Callable[[Event], str | None] = event_key
    identity: Callable[[Event], str | None] = event_identity
    inbox: bool | None = None
    inbox_days: float = 7.0
    observer: Observer = Observer()  # noqa: RUF009 - it holds nothing
    register_progress: bool = False
    synchronous_commit: bool = True
    log: RunLog = field(init=False)

    def __post_init__(self) -> None:
        """Check the options; raise ConfigurationError if one is out of its range."""
        self.log = RunLog(self.name, self.observer, self.lease)
        _check_types(self)
        check_consumer_name(self.name)
        if self.partitions is not None:
            try:
                self.partitions = frozenset(map(index, self.partitions))
            except TypeError:
                raise ConfigurationError(
                    "partitions are whole numbers, such as [0, 1]; None is for all."
                ) from None
        for can_work, complaint in (
            (
                isinstance(self.types, TypeFilter | None),
                "types is a TypeFilter, such as TypeFilter({'order.placed'}).",
            ),
            (is_cursor(self.start), "start is FIRST, LAST, or a cursor of the feed."),
            (
                self.partitions is None or self.partitions,
                "A consumer of no partitions reads nothing: leave partitions out to read all.",
            ),
            (
                0 <= self.poll_interval < LONGEST,
                f"poll_interval is a number of seconds, 0 or more and below {LONGEST:,}.",
            ),
            (
                self.limit is None or self.limit >= 1,
                "A consumer asks for at least one event in a page: limit is 1 or more.",
            ),
            (
                self.attempts is None or self.attempts >= 1,
                "A consumer tries at least once: attempts is 1 or more.",
            ),
            (
                self.concurrency >= 1,
                "A consumer reads at least one partition: concurrency is 1 or more.",
            ),
            (
                isinstance(self.failures, Failures),
                'failures is a Failures, such as Failures(then="set-aside").',
            ),
            (
                isinstance(self.observer, Observer),
                "observer is one of consumers, such as Prometheus() of zeroeventhub.telemetry.",
            ),
            (self.lanes >= 1, "A partition has at least one lane: lanes is 1 or more."),
            (
                0 < self.lease < LONGEST,
                f"A lease is a number of seconds above 0 and below {LONGEST:,}.",
            ),
            (0 < self.inbox_days < math.inf, "An inbox keeps events for a number of days above 0."),
            (
                self.synchronous_commit or database_of(self.store.engine).commits_without_disk,
                "synchronous_commit=False is for a store in PostgreSQL.",
            ),
            (
                callable(self.key),
                "key is a function that returns the key of an event, for its order, or None.",
            ),
            (
                callable(self.identity),
                "identity is a function that returns the id of an event for the inbox, or None.",
            ),
        ):
            if not can_work:
                raise ConfigurationError(complaint)
