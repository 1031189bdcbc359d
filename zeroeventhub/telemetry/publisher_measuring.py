"""Measurements out of what an observer of a feed sees."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from zeroeventhub.server.observer import Answered, Observer
from zeroeventhub.telemetry.horizon_reading import HorizonReading, Watched
from zeroeventhub.telemetry.metric import Metric
from zeroeventhub.telemetry.publisher_metric import (
    ANSWER,
    BLOCKER_AGE,
    BLOCKER_QUERY_AGE,
    BYTES,
    EVENTS,
    HORIZON_AGE,
    LONGEST_EVENT,
    REGISTERED,
    REQUESTS,
    UNPUBLISHED,
    WAITERS,
)

__all__ = ["PublisherMeasuring"]


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
