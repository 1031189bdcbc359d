"""The table of metrics, and lookups of values when metrics are collected."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

from zeroeventhub.errors import ZeroEventHubError

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of a histogram of seconds; a feed may wait 30 seconds at its head."""


Kind = Literal["counter", "gauge", "histogram"]
"""How measurements add up: to a sum, to the last value, or to a distribution."""


@dataclass(frozen=True)
class Metric:
    """Describe a metric."""

    name: str  # in words with dots between
    kind: Kind
    unit: str  # in UCUM
    labels: tuple[str, ...]  # their names
    description: str


def _table(text: str) -> tuple[Metric, ...]:
    """Read metrics of two lines each: name, kind, unit and labels, then the description."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return tuple(
        Metric(name, cast("Kind", kind), unit, tuple(labels), description)
        for (name, kind, unit, *labels), description in zip(
            map(str.split, lines[::2]), lines[1::2], strict=True
        )
    )


CONSUMER_METRICS: Final = _table(
    """
    consumer.events  counter  {event}  consumer partition
        Events that were applied and committed; dead letters once they are, duplicates never.
    consumer.pages  counter  {page}  consumer partition
        Commits of pages, of lanes' parts of pages, and of dead letters that were applied.
    consumer.fetch.duration  histogram  s  consumer partition
        How long the feed took for a page, and waited for it at the head.
    consumer.apply.duration  histogram  s  consumer partition
        How long the transaction of a page took.
    consumer.failures  counter  {failure}  consumer partition error
        Tries to apply a page that raised.
    consumer.dead_letters  counter  {event}  consumer partition state
        Events set aside: failed, or held back after a failed event of their key.
    consumer.duplicates  counter  {event}  consumer partition
        Events that the inbox dropped, because they came twice.
    consumer.fenced  counter  {commit}  consumer partition
        Commits refused because another process has gone on.
    consumer.retries  counter  {retry}  consumer partition error
        Pauses before something is tried again.
    consumer.backoff  counter  s  consumer partition error
        Time spent in those pauses.
    consumer.partitions_held  gauge  {partition}  consumer
        Partitions that this process holds by lease.
    consumer.partition_halted  gauge  1  consumer partition
        1 for a partition that stands still, 0 once it moves again.
    """
)
"""Recorded by the hooks of a consumer's observer."""

LAG_METRICS: Final = _table(
    """
    consumer.lag.events  gauge  {event}  consumer partition
        Events after the consumer's cursor; a lower bound.
    consumer.lag.time  gauge  s  consumer partition
        How long ago the first of these events happened.
    consumer.dead_letters.open  gauge  {event}  consumer partition
        Dead letters that are neither settled nor discarded.
    """
)
"""Looked up for a consumer when metrics are collected."""

PUBLISHER_METRICS: Final = _table(
    """
    publisher.requests  counter  {request}  feed route status
        Requests that were answered.
    publisher.events  counter  {event}  feed route
        Events in answers; not those of streams.
    publisher.sent  counter  By  feed route
        Bytes in the bodies of answers; not those of streams.
    publisher.answer.duration  histogram  s  feed route
        How long the feed took for an answer, without its waiting at the head.
    publisher.waiters  gauge  {request}  feed
        Requests that wait at the head now.
    """
)
"""Recorded by the hooks of a publisher's observer."""

HORIZON_METRICS: Final = _table(
    """
    publisher.horizon.age  gauge  s  feed
        For how long the oldest position that is drawn has been seen not to be settled.
    publisher.blocker.age  gauge  s  feed pid
        How long the oldest writer that holds the horizon back has been open.
    publisher.blocker.query_age  gauge  s  feed pid
        How long ago the last statement of this writer began.
    publisher.unpublished  gauge  1  feed
        1 while the table has events that are in no partition of the feed, otherwise 0.
    publisher.longest_event  gauge  By  feed
        How long the longest event is that this process has read; some consumers take 65,535 bytes.
    publisher.registered  gauge  {consumer}  feed
        Consumers that say how far they have come, for which trimming waits.
    publisher.archive.lag  gauge  s  feed
        How long the oldest settled event that is not in the archive has been seen.
    """
)
"""Looked up for a feed when metrics are collected."""

Observations = Iterable[tuple[float, Sequence[str | int]]]
"""Values of a metric, each with a value for each of its labels."""

Collect = Callable[[str], Observations]
"""Returns the values of a metric by its name, as they are now."""


class Instruments(Protocol):
    """Keep measurements for one system of telemetry."""

    def record(self, name: str, value: float, *labels: str | int) -> None:
        """Keep a measurement of a metric, with a value for each of its labels."""

    def observe(self, metrics: Sequence[Metric], collect: Collect) -> None:
        """Look up gauges whenever metrics are collected."""


FRESH = 1.0
"""Seconds for which a value is kept, so that the gauges of one collection share one query."""

_log = logging.getLogger("zeroeventhub.telemetry")

_Found = TypeVar("_Found")


class Lookup(Generic[_Found]):
    """Look up a value at each collection of metrics; if that fails, log why."""

    def __init__(self, subject: str, look_up: Callable[[], _Found], extra: dict[str, Any]) -> None:
        self._subject = subject
        self._look_up = look_up
        self._extra = extra
        self._lock = Lock()
        self._value: _Found | None = None
        self._read_at: float | None = None

    def read(self) -> _Found | None:
        """Return the value, at most FRESH seconds old; None if it is not known."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH:
                self._value = self._try()
                self._read_at = time.monotonic()
            return self._value

    def _try(self) -> _Found | None:
        try:
            return self._look_up()
        except ZeroEventHubError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - other metrics are collected all the same
            reason = f"{type(error).__name__} was raised."  # its text may have SQL in it
        _log.warning("%s is not known: %s", self._subject, reason, extra=self._extra)
        return None
