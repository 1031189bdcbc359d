"""The metrics of publishers, and what measures them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final, Protocol

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.server.app import Answered, Observer
from zeroeventhub.telemetry.consumer_metrics import Kind, Metric, Reading

if TYPE_CHECKING:
    from zeroeventhub.publisher.horizon import HorizonReport

__all__ = [
    "HORIZON_METRICS",
    "PUBLISHER_METRICS",
    "PublisherMeasuring",
]

_metric = partial(Metric, side="publisher")
_ROUTE = ("feed", "route")
_BLOCKER = ("feed", "pid")

REQUESTS: Final = _metric(
    "requests",
    Kind.COUNTER,
    "{request}",
    "Requests that were answered.",
    ("feed", "route", "status"),
)
EVENTS: Final = _metric(
    "events", Kind.COUNTER, "{event}", "Events in answers; not those of streams.", _ROUTE
)
BYTES: Final = _metric(
    "sent", Kind.COUNTER, "By", "Bytes in the bodies of answers; not those of streams.", _ROUTE
)
ANSWER: Final = _metric(
    "answer.duration",
    Kind.HISTOGRAM,
    "s",
    "How long the feed took for an answer, without its waiting at the head.",
    _ROUTE,
)
WAITERS: Final = _metric(
    "waiters", Kind.GAUGE, "{request}", "Requests that wait at the head now.", ("feed",)
)
HORIZON_AGE: Final = _metric(
    "horizon.age",
    Kind.GAUGE,
    "s",
    "How long the oldest position that is drawn and not settled has been seen so.",
    ("feed",),
)
BLOCKER_AGE: Final = _metric(
    "blocker.age",
    Kind.GAUGE,
    "s",
    "How long the oldest writer that holds the horizon back has been open.",
    _BLOCKER,
)
BLOCKER_QUERY_AGE: Final = _metric(
    "blocker.query_age",
    Kind.GAUGE,
    "s",
    "How long ago the last statement of this writer began.",
    _BLOCKER,
)

UNPUBLISHED: Final = _metric(
    "unpublished",
    Kind.GAUGE,
    "1",
    "1 while the table has events that are in no partition of the feed, otherwise 0.",
    ("feed",),
)
LONGEST_EVENT: Final = _metric(
    "longest_event",
    Kind.GAUGE,
    "By",
    "How long the longest event is that this process has read; some consumers take 65,535 bytes.",
    ("feed",),
)
REGISTERED: Final = _metric(
    "registered",
    Kind.GAUGE,
    "{consumer}",
    "Consumers that say how far they have come, for which trimming waits.",
    ("feed",),
)

PUBLISHER_METRICS: Final = (REQUESTS, EVENTS, BYTES, ANSWER, WAITERS)
"""All that an observer measures."""

HORIZON_METRICS: Final = (
    HORIZON_AGE,
    BLOCKER_AGE,
    BLOCKER_QUERY_AGE,
    UNPUBLISHED,
    LONGEST_EVENT,
    REGISTERED,
)
"""What is looked up when somebody wants to know it."""


class Watched(Protocol):
    """Be a feed that knows its horizon, as a TableFeed does that is bound to a sync engine."""

    def horizon(self) -> "HorizonReport":
        """Tell how far the feed may be read, since when that is so, and who holds it back."""


class HorizonReading(Reading["HorizonReport | None"]):
    """Look up how old a feed's horizon is, and who holds it back.

    Args:
        feed: it knows.
        name: the name of the feed's routes.

    Raises:
        ConfigurationError: the feed has no horizon, or is bound to an async engine.
    """

    def __init__(self, feed: Watched, name: str) -> None:
        super().__init__(f"The horizon of feed {name!r}", None, {"feed": name})
        look = getattr(feed, "horizon", None)
        if look is None or iscoroutinefunction(look):
            raise ConfigurationError(
                "Metrics are collected by sync code: to show a feed's horizon, give a TableFeed "
                "that is bound to a sync engine, as by feed.bind(create_engine(…))."
            )
        self._feed = feed

    def _look(self) -> "HorizonReport | None":
        return self._feed.horizon()


class PublisherMeasuring(Observer, ABC):
    """Measure what feeds do; who keeps the measurements is up to subclasses."""

    def __init__(self) -> None:
        self._horizons: dict[str, HorizonReading] = {}

    @abstractmethod
    def _record(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Keep a measurement, with a value for each of the metric's labels."""

    def answered(self, answered: Answered) -> None:
        """Count a request and what was answered."""
        where = (answered.feed, answered.route)
        self._record(REQUESTS, 1, *where, answered.status)
        self._record(EVENTS, answered.events, *where)
        self._record(BYTES, answered.size, *where)
        self._record(ANSWER, max(0.0, answered.seconds - answered.waited), *where)

    def waiting(self, feed: str, requests: int) -> None:
        """Show how many requests wait."""
        self._record(WAITERS, requests, feed)

    def observe_horizon(self, feed: Watched, name: str = "feed") -> None:
        """Show how old a feed's horizon is, whenever metrics are collected, and who holds it back.

        Where the horizon cannot be had, nothing is shown and the log says why.

        Args:
            feed: a TableFeed that is bound to a sync engine; it need not be the one that is
                served.
            name: the name of the feed's routes.

        Raises:
            ConfigurationError: the feed has no horizon, or is bound to an async engine.
        """
        self._horizons[name] = HorizonReading(feed, name)

    def _observed(self, metric: Metric) -> Iterator[tuple[float, tuple[str | int, ...]]]:
        """Yield what is seen now of horizons: values, each with its labels."""
        for name, reading in self._horizons.items():
            report = reading.read()
            if report is None:
                continue
            if metric is HORIZON_AGE:
                yield report.age, (name,)
            elif metric is UNPUBLISHED:
                yield float(report.unpublished is not None), (name,)
            elif metric is LONGEST_EVENT:
                yield report.longest_event, (name,)
            elif metric is REGISTERED:
                yield report.registered, (name,)
            for blocker in report.blockers[:1]:
                labels = (name, "" if blocker.pid is None else blocker.pid)
                if metric is BLOCKER_AGE:
                    yield blocker.age.total_seconds(), labels
                elif metric is BLOCKER_QUERY_AGE and blocker.query_age is not None:
                    yield blocker.query_age.total_seconds(), labels
