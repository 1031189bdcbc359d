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
from harness.shop import metadata, place
from harness.waiting import until
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, CursorStore


@pytest.fixture
def shop(any_engine, any_database_url):
    """A database with 100 orders in 2 partitions."""
    metadata.create_all(any_engine)
    with any_engine.begin() as connection:
        place(connection, 100, partitions=2)
    return any_database_url


@contextmanager
def serving(shop, *options):
    """Serve the orders by the command; yield its process and the feed's URL."""
    with started(
        "serve", "--database", shop, "--table", "orders", "--port", 0, *options
    ) as process:
        announced = process.stdout.readline()
        assert announced, process.stderr.read()
        yield process, re.fullmatch(r"Feed: (\S+)\n", announced)[1]


@pytest.fixture
def feed(sqlite, sqlite_url):
    """The URL of the orders as CloudEvents, of a publisher on SQLite."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 100, partitions=2)
    options = ("--partition", "part", "--data", "data", "--type", "kind", "--cloudevents")
    with serving(sqlite_url, *options) as (_, url):
        yield url


def numbers(lines):
    """Read the numbers of the orders from CloudEvents, a line each."""
    return [json.loads(line)["data"]["n"] for line in lines.splitlines()]


def landed(engine):
    """Read what has landed: partition, arrival and id of each event, in order."""
    query = text("SELECT partition, arrival, id FROM landed ORDER BY partition, arrival")
    with engine.connect() as connection:
        try:
            return [tuple(row) for row in connection.execute(query)]
        except DBAPIError:  # sync has not created its table yet
            return []


@pytest.fixture
def copy(tmp_path):
    """The engine of an SQLite database to sync into."""
    engine = create_engine(f"sqlite:///{tmp_path / 'copy.db'}", connect_args={"timeout": 60})
    yield engine
    engine.dispose()


EVERY_ARRIVAL = [(partition, arrival) for partition in range(2) for arrival in range(1, 51)]


def test_serve_announces_a_curl_line_that_works(shop):
    """What serve prints behind `Try:` shows the first events, and SIGTERM ends it."""
    options = ("--columns", "id,customer", "--path", "/shop/orders", "--arrow", "--compressed")
    with serving(shop, *options) as (process, url):
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
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) in {0, -signal.SIGTERM}


def test_tail_follows(feed, sqlite):
    """Tail with --follow waits at the head and prints what comes."""
    with started("tail", feed, "--follow") as process:
        for _ in range(100):
            process.stdout.readline()
        with sqlite.begin() as connection:
            place(connection, 1, first=100)
        assert numbers(process.stdout.readline()) == [100]


def test_tail_ends_quietly_when_its_reader_does(feed):
    """A pipe that is closed while tail prints is no error to be shown."""
    line = f"{' '.join(PROGRAM)} tail {feed} | head -n 1"
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (len(numbers(shown.stdout)), shown.stderr) == (1, "")


@pytest.fixture
def restless(feed, sqlite):
    """A writer in a process of its own that appends orders to both partitions without a pause."""
    url = sqlite.url.render_as_string()
    program = (
        "import time\n"
        "from harness.shop import place\n"
        "from sqlalchemy import create_engine\n"
        f"engine, first = create_engine({url!r}, connect_args={{'timeout': 60}}), 100\n"
        "while True:\n"
        "    with engine.begin() as connection:\n"
        "        place(connection, 2, first=first, partitions=2)\n"
        "    first += 2\n"
        "    time.sleep(0.005)  # SQLite lets no reader in while it writes\n"
    )
    with started(program=[sys.executable, "-c", program]) as process:
        yield process


@pytest.mark.usefixtures("restless")
def test_commands_end_at_the_head_beside_a_writer_that_never_pauses(feed, copy):
    """Tail and sync take what is there when they read, and end though more comes all the time."""
    shown = run("tail", feed)
    assert (shown.returncode, shown.stderr) == (0, "")
    seen = numbers(shown.stdout)
    assert set(range(100)) <= set(seen)
    assert len(set(seen)) == len(seen)
    into = ("--into", copy.url, "--table", "landed", "--consumer", "copy", "--json")
    shown = run("sync", feed, *into)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["landed"] == len(landed(copy)) >= len(seen)


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
    assert [row[:2] for row in rows] == EVERY_ARRIVAL
    assert len({row[2] for row in rows}) == 100


def test_sync_ends_on_sigterm(feed, copy):
    """A sync that follows ends by SIGTERM after a page, with exit code 0."""
    options = ("--into", copy.url, "--table", "landed", "--consumer", "copy", "--follow", "--json")
    with started("sync", feed, *options) as process:
        until(lambda: len(landed(copy)) == 100, "every event has landed")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=15)
        assert (process.returncode, json.loads(output)["landed"]) == (0, 100)


def test_scenarios_of_conformance_are_served_until_sigint():
    """`conformance --serve` prints where the scenarios are, and ends without a word."""
    with started("conformance", "--serve", "--port", 0) as process:
        url = process.stdout.readline().removeprefix("Scenarios: ").strip()
        assert "tail" in [entry["name"] for entry in httpx.get(url).json()]
        assert httpx.get(f"{url}tail").json()["token"] == "1"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=15) == 0
        assert process.stderr.read() == ""


def test_operator_is_asked_before_cursors_are_reset(sqlite, sqlite_url):
    """A process of the command asks, and changes nothing unless it is answered."""
    store = CursorStore(sqlite)
    with sqlite.begin() as connection:
        store.create_tables(connection)
        store.load(connection, "billing", 0, start="a")

    def cursors():
        with sqlite.begin() as connection:
            return store.cursors(connection, "billing")

    reset = ("cursors", "reset", "--store", sqlite_url, "--consumer", "billing")
    refused = run(*reset, input="n\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "start again in partition 0" in refused.stderr
    assert cursors() == {0: "a"}
    done = run(*reset, "--yes")
    assert (done.returncode, done.stdout) == (0, "Partitions that start again: 1\n"), done.stderr
    assert cursors() == {0: FIRST}
