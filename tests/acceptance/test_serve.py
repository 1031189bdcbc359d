"""Serving a table from the command line, as a user does."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
from harness.command_line import PATIENCE, children, started
from harness.readers import get
from harness.shop import fill, metadata
from harness.waiting import until


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
        opened = re.fullmatch(r"Open: (\S+)\n", process.stdout.readline())[1]
        assert "<h1>Feeds</h1>" in httpx.get(opened).text
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


def test_feed_says_what_is_wrong_though_nobody_reads_its_log(sqlite, sqlite_url):
    """A server whose stderr has lost its reader answers a failure with its problem document."""
    fill(sqlite, 3)
    table = ("--database", sqlite_url, "--table", "orders", "--data", "data")
    with started("serve", *table, "--port", 0) as process:
        url = re.fullmatch(r"Feed: (\S+)\n", process.stdout.readline())[1]
        assert get(url).status_code == 200
        process.stderr.close()
        metadata.drop_all(sqlite)
        answer = get(url)
        assert (answer.status_code, answer.json()["title"]) == (500, "The feed failed.")
        process.stderr = None


def test_server_ends_when_its_operator_does(sqlite, sqlite_url):
    """Ctrl-C ends a feed's server and a console in silence, as done."""
    fill(sqlite, 3)
    commands = (
        ("serve", "--database", sqlite_url, "--table", "orders"),
        ("console", "--feed", "http://127.0.0.1:1/orders"),
    )
    for command in commands:
        with started(*command, "--port", 0) as process:
            url = re.search(r"http://\S+", process.stdout.readline())[0]
            assert httpx.get(url).status_code == 200
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")


MODULE = """\
from sqlalchemy import create_engine
from zeroeventhub import TableFeed

from harness.shop import orders

feeds = {{"orders": TableFeed(orders, data="data").bind(create_engine({shop!r}))}}
"""


def workers(process):
    """The processes that answer requests, beside the one that keeps track of resources."""
    return children(process.pid, "spawn_main")


@pytest.mark.slow
def test_workers_share_the_requests_of_feeds_that_python_makes(sqlite, sqlite_url, tmp_path):
    """Workers serve a mapping of feeds, with metrics of all; one that is killed is replaced."""
    fill(sqlite, 10)
    (tmp_path / "shop.py").write_text(MODULE.format(shop=sqlite_url))
    environment = {"PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    options = ("--port", 0, "--workers", 2, "--metrics", "/metrics")
    with started("serve", "shop:feeds", *options, **environment) as process:
        url = re.fullmatch(r"Feed: (\S+/orders)\n", process.stdout.readline())[1]
        until(lambda: len(workers(process)) == 2, "both workers run", PATIENCE)
        first, second = workers(process)
        for _ in range(8):
            assert len(get(url).text.splitlines()) == 11
        for _ in range(4):  # any worker shows the metrics of all
            shown = httpx.get(httpx.URL(url).join("/metrics")).text
            assert 'events_total{feed="orders",route="events"} 80.0' in shown
            assert 'horizon_age_seconds{feed="orders"} 0.0' in shown
        os.kill(first, signal.SIGKILL)
        assert get(url).status_code == 200
        until(lambda: workers(process) - {first, second}, "another worker runs", PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) in {0, -signal.SIGTERM}, process.stderr.read()
    with pytest.raises(httpx.ConnectError):
        get(url)
