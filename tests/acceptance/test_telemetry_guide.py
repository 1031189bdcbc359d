"""The guide to telemetry does what it says, in a process of its own."""

import logging
import os
import re
import subprocess
import sys

import promql_parser
import pytest
from harness.guides import DOCUMENTS, block, guide
from harness.readers import mounted
from harness.shop import fill, orders
from prometheus_client import CollectorRegistry
from sqlalchemy import insert

from zeroeventhub import TableFeed
from zeroeventhub.telemetry.metrics import (
    CONSUMER_METRICS,
    HORIZON_METRICS,
    LAG_METRICS,
    PUBLISHER_METRICS,
)
from zeroeventhub.telemetry.prometheus import PrometheusInstruments

CONSUMING = """
import functools, sys
import httpx
import zeroeventhub
from harness.stores import new_store
from sqlalchemy import create_engine
from zeroeventhub import Client, Observer

url, _, database = sys.argv[1:]
store = new_store(engine := create_engine(database))
client = Client(url, httpx.Client())
Consumer = functools.partial(zeroeventhub.Consumer, follow=False)

def apply(connection, page):
    pass
"""
PUBLISHING = """
import sys
from harness.shop import fill, orders
from sqlalchemy import create_engine
from starlette.applications import Starlette
from starlette.testclient import TestClient
from zeroeventhub import TableFeed, feed_routes

engine = create_engine(sys.argv[2])
"""
ASKING = """
http = TestClient(app)
http.get("/orders")
http.get("/orders/events?token=1&partition=0&cursor=_first")
"""
OPENTELEMETRY = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
"""
METRICS = """
found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
print({metric.name for metric in found})
"""
PROMETHEUS = "from prometheus_client import generate_latest\nprint(generate_latest().decode())\n"
CONSUMER = 'zeroeventhub_consumer_%s{consumer="billing",partition="0"} %s\n'


@pytest.mark.parametrize(
    ("mark", "around", "shown"),
    [
        (
            "prometheus",
            (CONSUMING, PROMETHEUS),
            [CONSUMER % ("events_total", 5.0), CONSUMER % ("lag_time_seconds", 0.0)],
        ),
        (
            "prometheus publisher",
            (PUBLISHING, ASKING + PROMETHEUS),
            [
                'zeroeventhub_publisher_events_total{feed="orders",route="events"} 5.0\n',
                'zeroeventhub_publisher_horizon_age_seconds{feed="orders"} 0.0\n',
            ],
        ),
        pytest.param(
            "opentelemetry",
            (CONSUMING + OPENTELEMETRY, METRICS),
            [
                *('"name": "process billing"', f'"trace_id": "0x{"1" * 32}"'),
                *("'zeroeventhub.consumer.events'", "'zeroeventhub.consumer.lag.time'"),
            ],
            marks=pytest.mark.test_all,
        ),
        pytest.param(
            "opentelemetry publisher",
            (PUBLISHING + OPENTELEMETRY, ASKING + METRICS),
            ["'zeroeventhub.publisher.events'", "'zeroeventhub.publisher.horizon.age'"],
            marks=pytest.mark.test_all,
        ),
    ],
)
def test_telemetry_is_wired_as_the_guide_says(sqlite, tmp_path, mark, around, shown):
    """The lines of the guide, with any port in place of theirs, make metrics and traces appear."""
    trace = "00-" + "1" * 32 + "-" + "a" * 16 + "-01"
    with fill(sqlite, 0).begin() as connection:
        rows = [{"data": {"specversion": "1.0", "traceparent": trace}} for _ in range(5)]
        connection.execute(insert(orders), rows)
    program = block("telemetry.md", mark).replace("9100", "0").join(around)
    with mounted(TableFeed(orders, data="data"), sqlite) as url:
        databases = [str(sqlite.url), f"sqlite:///{tmp_path / 'store.db'}"]
        ran = subprocess.run(
            [sys.executable, "-c", program, url, *databases],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert [each for each in shown if each not in ran.stdout] == []


def test_log_names_consumer_and_partition(capsys):
    """A line in the guide's format names both, or has a dash where a record names neither."""
    with guide("telemetry.md") as piece:
        handler = piece("logs")["handler"]
    try:
        where = {"consumer": "billing", "partition": 0}
        logging.getLogger("zeroeventhub.consumer").error("No.", extra=where)
        logging.getLogger("zeroeventhub.server").warning("Well.")
    finally:
        logging.getLogger("zeroeventhub").removeHandler(handler)
    lines = ["ERROR billing, partition 0: No.", "WARNING -, partition -: Well."]
    assert capsys.readouterr().err.splitlines() == lines


def scraped():
    """Return the labels of each time series that Prometheus would scrape, by its name."""
    registry = CollectorRegistry()
    for recorded, looked_up in (
        (CONSUMER_METRICS, LAG_METRICS),
        (PUBLISHER_METRICS, HORIZON_METRICS),
    ):
        instruments = PrometheusInstruments(recorded, registry, advice="")
        for metric in recorded:
            instruments.record(metric.name, 1.0, *metric.labels)
        labels = {metric.name: metric.labels for metric in looked_up}
        instruments.observe(looked_up, lambda name, labels=labels: [(1.0, labels[name])])
    samples = [sample for family in registry.collect() for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


SERIES = scraped()
ALERTS = [
    row[1].replace("\\|", "|")
    for row in re.finditer(
        r"^\| `([^`]*zeroeventhub_[^`]*)` \|",
        (DOCUMENTS / "telemetry.md").read_text(),
        re.MULTILINE,
    )
]


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_asks_for_series_that_there_are(alert):
    """Each alert is PromQL, and names time series and labels that the library reports."""
    named, asked = set(), set()

    def visit(part):
        match part:
            case promql_parser.VectorSelector():
                selectors.append(part)
            case promql_parser.MatrixSelector():
                selectors.append(part.vector_selector)
            case promql_parser.AggregateExpr():
                asked.update(part.modifier.labels if part.modifier else [])

    selectors = []
    promql_parser.walk(promql_parser.parse(alert), visit)
    for selector in selectors:
        named.add(selector.name)
        asked.update(matcher.name for matcher in selector.matchers.matchers)
    assert named
    assert named <= SERIES.keys()
    assert asked <= set.intersection(*(SERIES[name] for name in named))


def test_consumers_and_publishers_have_alerts():
    """The guide's tables of alerts are found, for both sides."""
    sides = [alert.partition("zeroeventhub_")[2].partition("_")[0] for alert in ALERTS]
    assert min(sides.count("consumer"), sides.count("publisher")) >= 5
