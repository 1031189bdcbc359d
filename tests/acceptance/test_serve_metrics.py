"""`zeroeventhub serve --metrics` shows what Prometheus wants to know."""

import re
import subprocess
import sys

import httpx
import pytest
from harness.shop import metadata, orders
from sqlalchemy import insert

WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
from zeroeventhub.cli import main
main()
"""


@pytest.fixture
def serve(sqlite, sqlite_url):
    """A function that starts the command with metrics, by Python's own arguments."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        connection.execute(insert(orders), [{"data": n} for n in range(5)])
    processes = []

    def serve(*python):
        options = ("--database", sqlite_url, "--table", "orders", "--data", "data", "--port", "0")
        process = subprocess.Popen(
            [sys.executable, *python, "serve", *options, "--metrics", "/metrics"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield serve
    for process in processes:
        process.kill()
        process.communicate()


def test_serve_shows_metrics(serve):
    """Requests and the age of the horizon are at the path, beside the feed."""
    process = serve("-m", "zeroeventhub")
    url = re.fullmatch(r"Feed: (\S+)/events\n", process.stdout.readline())[1]
    with httpx.Client(base_url=url, timeout=30) as http:
        http.get("/events/events?token=1&partition=0&cursor=_first")
        shown = http.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain; version=")
    assert set(shown.text.splitlines()) >= {
        'zeroeventhub_publisher_events_total{feed="feed",route="events"} 5.0',
        'zeroeventhub_publisher_horizon_age_seconds{feed="feed"} 0.0',
    }


def test_metrics_need_their_extra(serve):
    """Without the client library of Prometheus the command says how to install it."""
    process = serve("-c", WITHOUT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pip install 'zeroeventhub[prometheus]'" in error
