"""The guide to telemetry does what it says, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness.shop import metadata, orders
from harness.web import serving
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

GUIDE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()

CONSUMING = """
import functools, sys
import httpx
import zeroeventhub
from sqlalchemy import create_engine
from zeroeventhub import Client, CursorStore, Observer

url, _, database = sys.argv[1:]
engine = create_engine(database)
store = CursorStore(engine)
with engine.begin() as connection:
    store.create_tables(connection)
client = Client(url, httpx.Client())
Consumer = functools.partial(zeroeventhub.Consumer, follow=False)

def apply(connection, page):
    pass
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


PUBLISHING = """
import sys
from harness.shop import orders
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


@pytest.fixture
def run(sqlite, sqlite_url, tmp_path):
    """A function that runs a piece of the guide, with any port in place of its own, in a process.

    Before it comes a setting, behind it what shows the outcome; the arguments are the URL of a feed
    of five orders, the publisher's database and the consumer's.
    """
    metadata.create_all(sqlite)
    trace = "00-" + "1" * 32 + "-" + "a" * 16 + "-01"
    with sqlite.begin() as connection:
        rows = [{"data": {"specversion": "1.0", "traceparent": trace}} for _ in range(5)]
        connection.execute(insert(orders), rows)

    def run(marker, before, after):
        code = re.search(rf"<!-- {marker} -->\n```python\n(.*?)```", GUIDE, re.DOTALL)[1]
        routes = feed_routes("/feed", TableFeed(orders, data="data"), sqlite)
        with serving(Starlette(routes=routes)) as url:
            arguments = [f"{url}/feed", sqlite_url, f"sqlite:///{tmp_path / 'store.db'}"]
            ran = subprocess.run(
                [sys.executable, "-c", before + code.replace("9100", "0") + after, *arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


PROMETHEUS = "from prometheus_client import generate_latest\nprint(generate_latest().decode())\n"
METRICS = """
found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
print({metric.name for metric in found})
"""


def test_prometheus_is_wired_as_the_guide_says(run):
    """The lines of the guide make the metrics of a run appear where Prometheus looks."""
    shown = set(run("prometheus", CONSUMING, PROMETHEUS).splitlines())
    labels = '{consumer="billing",partition="0"}'
    assert shown >= {
        f"zeroeventhub_consumer_events_total{labels} 5.0",
        f"zeroeventhub_consumer_pages_total{labels} 1.0",
        f"zeroeventhub_consumer_apply_duration_seconds_count{labels} 1.0",
        f"zeroeventhub_consumer_lag_events{labels} 0.0",
        f"zeroeventhub_consumer_lag_time_seconds{labels} 0.0",
    }


@pytest.mark.test_all
def test_opentelemetry_is_wired_as_the_guide_says(run):
    """The lines of the guide make spans in the events' trace, and the metrics of a run."""
    shown = run("opentelemetry", CONSUMING + OPENTELEMETRY, METRICS)
    assert '"name": "process billing"' in shown
    assert f'"trace_id": "0x{"1" * 32}"' in shown
    for name in ("events", "pages", "fetch.duration", "apply.duration", "lag.events", "lag.time"):
        assert f"'zeroeventhub.consumer.{name}'" in shown


def test_prometheus_of_a_publisher_is_wired_as_the_guide_says(run):
    """The lines of the guide make the metrics of requests and of the horizon appear."""
    shown = set(run("prometheus publisher", PUBLISHING, ASKING + PROMETHEUS).splitlines())
    labels = '{feed="orders",route="events"}'
    assert shown >= {
        'zeroeventhub_publisher_requests_total{feed="orders",route="discovery",status="200"} 1.0',
        'zeroeventhub_publisher_requests_total{feed="orders",route="events",status="200"} 1.0',
        f"zeroeventhub_publisher_events_total{labels} 5.0",
        f"zeroeventhub_publisher_answer_duration_seconds_count{labels} 1.0",
        'zeroeventhub_publisher_horizon_age_seconds{feed="orders"} 0.0',
    }


@pytest.mark.test_all
def test_opentelemetry_of_a_publisher_is_wired_as_the_guide_says(run):
    """The lines of the guide make the metrics of requests and of the horizon."""
    shown = run("opentelemetry publisher", PUBLISHING + OPENTELEMETRY, ASKING + METRICS)
    for name in ("requests", "events", "sent", "answer.duration", "horizon.age"):
        assert f"'zeroeventhub.publisher.{name}'" in shown


@pytest.mark.test_all
def test_observer_of_ones_own_is_made_as_the_guide_says(run):
    """The subclass of the guide is told of what was committed."""
    before = """
from types import SimpleNamespace
counts = {}
statistics = SimpleNamespace(increment=lambda name, n: counts.update({name: n}))
"""
    after = """
Consumer(client, store, "billing", observer=Counting()).run(apply)
print(counts)
"""
    assert run("observer", CONSUMING + before, after) == "{'billing.events': 5}\n"
