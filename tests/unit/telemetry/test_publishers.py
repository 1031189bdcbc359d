"""The metrics of feeds, in OpenTelemetry and in Prometheus."""

from datetime import timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.horizon_monitor import HorizonReport
from zeroeventhub.publisher.ordering import Blocker
from zeroeventhub.server import Answered
from zeroeventhub.telemetry import OpenTelemetryPublisher, PrometheusPublisher
from zeroeventhub.telemetry.metrics import HORIZON_METRICS, PUBLISHER_METRICS

ROUTE = {"feed": "orders", "route": "events"}
PAGE = Answered(
    **ROUTE, principal="alice", status=200, events=5, size=1000, seconds=20.2, waited=20.0
)
BLOCKERS = (
    Blocker(4711, "shop", "import", timedelta(seconds=73.5), timedelta(seconds=2)),
    Blocker(4712, "shop", "", timedelta(seconds=3), timedelta(seconds=3)),
)


class Watched:
    """A feed whose horizon a test sets."""

    def __init__(self, age=0.0, blockers=(), archive_lag=None):
        self.report = HorizonReport(
            settled=1, drawn=2, age=age, blockers=tuple(blockers), archive_lag=archive_lag
        )

    def horizon(self):
        if isinstance(self.report, Exception):
            raise self.report
        return self.report


def short(metric):
    """The name of a metric without its prefix."""
    return metric.name.removeprefix("publisher.")


def test_answer_is_measured(registry, value, reader, collected):
    """Requests, events, bytes, the time without the waiting and waiters show by route."""
    for observer in (
        PrometheusPublisher(registry),
        OpenTelemetryPublisher(MeterProvider([reader])),
    ):
        observer.answered(PAGE)
        observer.answered(PAGE)
        observer.waiting("orders", 7)
        observer.waiting("orders", 3)
    assert value("publisher_requests_total", status="200", **ROUTE) == 2
    assert value("publisher_events_total", **ROUTE) == 10
    assert value("publisher_sent_bytes_total", **ROUTE) == 2000
    assert value("publisher_answer_duration_seconds_bucket", le="0.25", **ROUTE) == 2
    assert value("publisher_answer_duration_seconds_bucket", le="0.1", **ROUTE) == 0
    assert value("publisher_waiters", feed="orders") == 3
    assert b"alice" not in generate_latest(registry)
    found = {name: metric.data.data_points for name, metric in collected().items()}
    assert {short(metric) for metric in PUBLISHER_METRICS} == {*found}
    where = {
        "messaging.system": "zeroeventhub",
        "messaging.destination.name": "orders",
        "zeroeventhub.route": "events",
    }
    assert found["requests"][0].attributes == where | {"http.response.status_code": 200}
    assert (found["events"][0].value, found["sent"][0].value) == (10, 2000)
    assert found["sent"][0].attributes == where
    assert found["answer.duration"][0].sum == pytest.approx(0.4)
    assert found["waiters"][0].value == 3


def test_span_of_the_host_is_told_of_the_answer(reader, spans):
    """The current span gets the feed's attributes; where there is none, none is made."""
    exporter, provider = spans
    observer = OpenTelemetryPublisher(MeterProvider([reader]))
    observer.answered(PAGE)
    with provider.get_tracer("host").start_as_current_span("GET /orders/events"):
        observer.answered(PAGE)
    (span,) = exporter.get_finished_spans()
    assert span.attributes == {
        "messaging.system": "zeroeventhub",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 5,
        "zeroeventhub.route": "events",
        "zeroeventhub.waited": 20.0,
    }


def test_age_and_oldest_blocker_of_each_horizon_are_shown(registry, value, reader, collected):
    """A horizon shows its age, its oldest writer while it is held back, and the archive's lag."""
    prometheus = PrometheusPublisher(registry)
    opentelemetry = OpenTelemetryPublisher(MeterProvider([reader]))
    for observer in (prometheus, opentelemetry):
        observer.observe_horizon(Watched(70.0, BLOCKERS, archive_lag=3.5), "orders")
    prometheus.observe_horizon(Watched(0.5), "invoices")
    prepared = Blocker(None, "shop", "gid", timedelta(seconds=9), None)
    prometheus.observe_horizon(Watched(9.0, [prepared]), "carts")
    assert value("publisher_horizon_age_seconds", feed="orders") == 70
    assert value("publisher_horizon_age_seconds", feed="invoices") == 0.5
    assert value("publisher_archive_lag_seconds", feed="orders") == 3.5
    assert value("publisher_archive_lag_seconds", feed="invoices") is None
    assert value("publisher_blocker_age_seconds", feed="orders", pid="4711") == 73.5
    assert value("publisher_blocker_query_age_seconds", feed="orders", pid="4711") == 2
    assert value("publisher_blocker_age_seconds", feed="carts", pid="") == 9
    assert value("publisher_blocker_query_age_seconds", feed="carts", pid="") is None
    shown = generate_latest(registry)
    assert b"4712" not in shown
    assert b'blocker_age_seconds{feed="invoices"' not in shown
    found = {name: metric.data.data_points for name, metric in collected().items()}
    assert {short(metric) for metric in HORIZON_METRICS} == {*found}
    assert found["blocker.age"][0].value == 73.5
    assert found["blocker.age"][0].attributes["zeroeventhub.blocker.pid"] == 4711


def test_horizon_that_cannot_be_had_is_absent(registry, value, caplog):
    """If a feed does not answer, the log says why, and other feeds are shown."""
    broken = Watched()
    broken.report = Unavailable("The database is away.")
    observer = PrometheusPublisher(registry)
    observer.observe_horizon(broken, "orders")
    observer.observe_horizon(Watched(), "invoices")
    assert value("publisher_horizon_age_seconds", feed="invoices") == 0
    assert value("publisher_horizon_age_seconds", feed="orders") is None
    (record,) = [one for one in caplog.records if one.name == "zeroeventhub.telemetry"]
    assert record.getMessage() == (
        "The horizon of feed 'orders' is not known: The database is away."
    )
    assert record.feed == "orders"


def test_feed_that_is_added_while_metrics_are_collected_breaks_no_scrape(registry, value):
    """The scrape shows the feeds before it, and the next one shows the new one as well."""
    observer = PrometheusPublisher(registry)

    class Slow(Watched):
        def horizon(self):
            observer.observe_horizon(Watched(3.0), "invoices")
            return super().horizon()

    observer.observe_horizon(Slow(2.0), "orders")
    assert b'horizon_age_seconds{feed="orders"} 2.0' in generate_latest(registry)
    assert value("publisher_horizon_age_seconds", feed="invoices") == 3
