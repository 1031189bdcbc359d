"""Measure what feeds do, for OpenTelemetry and for Prometheus."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.horizon_monitor import HorizonReport
from zeroeventhub.server.app import Answered, Observer
from zeroeventhub.telemetry.metrics import (
    HORIZON_METRICS,
    PUBLISHER_METRICS,
    Instruments,
    Lookup,
    Observations,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    from zeroeventhub.publisher.bound_feed import BoundFeed


class HorizonGauges:
    """Look up the horizons of feeds, and the oldest writer that holds each of them back."""

    def __init__(self) -> None:
        self._horizons: dict[str, Lookup[HorizonReport]] = {}

    def add(self, feed: "BoundFeed", name: str) -> None:
        """Look up the horizon of this feed from now on; refuse a feed without one."""
        horizon = getattr(feed, "horizon", None)
        if horizon is None or iscoroutinefunction(horizon):
            raise ConfigurationError(
                "Metrics are collected by sync code: to show a feed's horizon, give a TableFeed "
                "that is bound to a sync engine, as by feed.bind(create_engine(…))."
            )
        if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            horizon = partial(_shared_horizon, horizon, Path(folder), name)
        self._horizons[name] = Lookup(f"The horizon of feed {name!r}", horizon, {"feed": name})

    def collect(self, metric: str) -> Observations:
        """Yield the values of a metric, of each feed or of its oldest blocker."""
        for name, horizon in [*self._horizons.items()]:  # another thread may add feeds
            if (report := horizon.read()) is None:
                continue
            values: dict[str, float | None] = {
                "publisher.horizon.age": report.age,
                "publisher.unpublished": float(report.unpublished is not None),
                "publisher.longest_event": report.longest_event,
                "publisher.registered": report.registered,
                "publisher.archive.lag": report.archive_lag,
            }
            if (value := values.get(metric)) is not None:
                yield value, (name,)
            for blocker in report.blockers[:1]:
                ages = {
                    "publisher.blocker.age": blocker.age,
                    "publisher.blocker.query_age": blocker.query_age,
                }
                if (age := ages.get(metric)) is not None:
                    yield age.total_seconds(), (name, "" if blocker.pid is None else blocker.pid)


def _shared_horizon(
    look_up: Callable[..., HorizonReport], folder: Path, name: str
) -> HorizonReport:
    """Look up a feed's horizon, with the readings of the other processes of a server.

    Any process may answer a scrape, and each has read the horizon at other times. So each writes
    its reading into a file of its own, and reads the files of the others, also of processes that
    have ended: a position that was drawn stays drawn. The files are in the folder of
    prometheus_client.
    """
    start = f"horizon={quote(name, safe='')}="
    known = [
        msgspec.json.decode(file.read_bytes(), type=HorizonReport)
        for file in folder.glob(f"{start}*.json")
    ]
    report = look_up(known)
    own = folder / f"{start}{os.getpid()}"
    own.write_bytes(msgspec.json.encode(report))
    own.replace(own.with_name(f"{own.name}.json"))
    return replace(report, longest_event=max(one.longest_event for one in [report, *known]))


class _PublisherMetrics(Observer):
    """Measure what feeds do."""

    def __init__(self, instruments: Instruments) -> None:
        self._record = instruments.record
        self._horizons = HorizonGauges()
        instruments.observe(HORIZON_METRICS, self._horizons.collect)

    def answered(self, answered: Answered) -> None:
        """Count a request and what was answered."""
        where = (answered.feed, answered.route)
        seconds = max(0.0, answered.seconds - answered.waited)
        self._record("publisher.requests", 1, *where, answered.status)
        self._record("publisher.events", answered.events, *where)
        self._record("publisher.sent", answered.size, *where)
        self._record("publisher.answer.duration", seconds, *where)

    def waiting(self, feed: str, requests: int) -> None:
        """Show how many requests wait."""
        self._record("publisher.waiters", requests, feed)

    def observe_horizon(self, feed: "BoundFeed", name: str = "feed") -> None:
        """Show the age of a feed's horizon and its oldest writer whenever metrics are collected.

        If the horizon cannot be read, the series are absent and the log says why.

        Args:
            feed: a TableFeed that is bound to a sync engine; it need not be the one that is
                served.
            name: the name of the feed's routes.

        Raises:
            ConfigurationError: the feed has no horizon, or is bound to an async engine.
        """
        self._horizons.add(feed, name)


class PrometheusPublisher(_PublisherMetrics):
    """Measure feeds for Prometheus; one observer for all feeds of a process.

    Example:
        routes = feed_routes("/orders", feed, engine, observer=PrometheusPublisher())

    Args:
        registry: where the metrics are registered; None for the client library's own registry.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        from zeroeventhub.telemetry.prometheus import PrometheusInstruments  # noqa: PLC0415 - of another extra

        super().__init__(
            PrometheusInstruments(
                PUBLISHER_METRICS,
                registry,
                advice="make one PrometheusPublisher(), and give it to all feeds of the process.",
            )
        )


def horizon_collector(feed: "BoundFeed", name: str = "feed") -> "Collector":
    """Return a collector that looks up a feed's horizon and its oldest writer at each scrape.

    For a registry of its own, such as that of several processes; otherwise, `observe_horizon` of
    PrometheusPublisher shows the same.

    Args:
        feed: as for `observe_horizon`.
        name: the name of the feed's routes.

    Raises:
        ConfigurationError: the feed has no horizon, or is bound to an async engine.
    """
    from zeroeventhub.telemetry.prometheus import Gauges  # noqa: PLC0415 - of another extra

    gauges = HorizonGauges()
    gauges.add(feed, name)
    return Gauges(HORIZON_METRICS, gauges.collect)


class OpenTelemetryPublisher(_PublisherMetrics):
    """Measure feeds with OpenTelemetry, and describe answers in the spans of the host.

    Example:
        routes = feed_routes("/orders", feed, engine, observer=OpenTelemetryPublisher())

    Args:
        meter_provider: makes the metrics; None for the global one.
    """

    def __init__(self, meter_provider: "MeterProvider | None" = None) -> None:
        from zeroeventhub.telemetry import open_telemetry  # noqa: PLC0415 - of another extra

        super().__init__(open_telemetry.OpenTelemetryInstruments(PUBLISHER_METRICS, meter_provider))
        self._describe = open_telemetry.describe_current_span

    def answered(self, answered: Answered) -> None:
        """Count a request, and set attributes of the current span, if one is recorded."""
        super().answered(answered)
        self._describe(
            {
                "messaging.destination.name": answered.feed,
                "messaging.batch.message_count": answered.events,
                "zeroeventhub.route": answered.route,
                "zeroeventhub.waited": answered.waited,
            }
        )
