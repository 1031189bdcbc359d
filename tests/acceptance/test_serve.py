"""Serving a table from the command line, as a user does."""

import json
import re
import signal
import subprocess

import httpx
import pytest
from harness.command_line import PATIENCE, started
from harness.shop import fill


@pytest.fixture
def shop(any_engine, any_database_url):
    """A database with 100 orders in 2 partitions."""
    fill(any_engine, 100, partitions=2)
    return any_database_url


def test_serve_announces_a_curl_line_that_works(shop):
    """What serve prints after `Try:` works, pages come in all forms, and SIGTERM ends it."""
    options = ("--columns", "id,customer", "--path", "/shop/orders", "--arrow", "--compressed")
    table = ("serve", "--database", shop, "--table", "orders", "--port", 0)
    with started(*table, *options, "--metrics", "/metrics") as process:
        announced = process.stdout.readline()
        assert announced, process.stderr.read()
        url = re.fullmatch(r"Feed: (\S+)\n", announced)[1]
        line = process.stdout.readline().removeprefix("Try:  ")
        shown = subprocess.run(
            ["bash", "-c", f"{line.strip()} -s"], capture_output=True, check=True
        )
        cursor = json.loads(shown.stdout.splitlines()[-1])["cursor"]
        assert cursor.startswith("2-3-")
        assert shown.stdout.decode() == (
            '{"data":{"id":1,"customer":"c0"}}\n'
            '{"data":{"id":2,"customer":"c1"}}\n'
            '{"data":{"id":3,"customer":"c2"}}\n'
            f'{{"cursor":"{cursor}"}}\n'
        )
        forms = {"Accept": "application/vnd.apache.arrow.stream", "Accept-Encoding": "gzip"}
        query = {"token": "1", "partition": 0, "cursor": "_first"}
        answer = httpx.get(f"{url}/events", params=query, headers=forms)
        assert answer.headers["content-type"] == forms["Accept"]
        assert answer.headers["content-encoding"] == "gzip"
        metrics = httpx.get(httpx.URL(url).join("/metrics"))
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert set(metrics.text.splitlines()) >= {
            'zeroeventhub_publisher_events_total{feed="feed",route="events"} 103.0',
            'zeroeventhub_publisher_horizon_age_seconds{feed="feed"} 0.0',
        }
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) in {0, -signal.SIGTERM}
