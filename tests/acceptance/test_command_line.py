"""The command line as a user has it: real processes, pipes, signals and kills."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from harness.calling import INFO, PAGE, answer
from harness.command_line import PATIENCE, PROGRAM, started
from harness.readers import mounted
from harness.shop import fill, orders, write
from harness.waiting import until
from harness.web import answering
from sqlalchemy import column, create_engine, select, table
from sqlalchemy.exc import DBAPIError

from zeroeventhub import Capacity, CursorStore, TableFeed


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


def test_tail_follows(feed, sqlite):
    """Tail with --follow waits at the head and prints what comes."""
    with started("tail", feed, "--follow") as process:
        for _ in range(100):
            process.stdout.readline()
        write(sqlite, 1, first=100)
        assert numbers(process.stdout.readline()) == [100]


def test_command_works_though_its_streams_are_closed(feed, tmp_path):
    """A command whose standard streams its caller has closed does its work without a traceback."""
    url = f"sqlite:///{tmp_path}/closed.db"
    sync = f"sync {feed} --into {url} --table copy --consumer copy"
    for command, stream in ((f"tail {feed}", ">&-"), (sync, "2>&-"), (sync, ">&- 2>&- <&-")):
        line = f"{' '.join(PROGRAM)} {command} {stream}"
        shown = subprocess.run(["sh", "-c", line], capture_output=True, check=False)
        assert (shown.returncode, shown.stdout, shown.stderr) == (0, b"", b"")


def test_names_are_shown_in_any_encoding(tmp_path):
    """A character that the encoding of a command's output lacks is shown by its number."""
    url = f"sqlite:///{tmp_path}/named.db"
    engine = create_engine(url)
    store = CursorStore(engine)
    with engine.begin() as connection:
        store.create_tables(connection)
        store.load(connection, "käse→", 0, start="_first")
    engine.dispose()
    encoding = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [*PROGRAM, "cursors", "list", "--store", url]
    shown = subprocess.run(command, capture_output=True, env=encoding, check=True)
    assert shown.stdout.startswith("käse\\u2192: partitions 1".encode("latin-1"))


def test_sync_goes_on_though_nobody_reads_what_it_says(tmp_path):
    """A sync whose stderr has lost its reader retries a feed that is away, and lands its events."""
    copy = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    is_back = threading.Event()

    def serve(target):
        if not is_back.is_set():
            return answer(status="503 Service Unavailable")
        return answer(PAGE) if "/events" in target else answer(INFO)

    with answering(serve) as url:
        options = ("--into", copy.url, "--table", "landed", "--consumer", "copy", "--follow")
        with started("sync", url, *options) as process:
            assert "503" in process.stderr.readline()
            process.stderr.close()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            is_back.set()
            until(lambda: len(landed(copy)) == 3, "every event has landed", PATIENCE)
            process.stderr = None
    copy.dispose()


def test_tail_ends_quietly_when_its_reader_does(feed):
    """A pipe that is closed while tail prints is no error to be shown."""
    line = f"{' '.join(PROGRAM)} tail {feed} | head -n 1"
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (len(numbers(shown.stdout)), shown.stderr) == (1, "")


@pytest.mark.parametrize("command", ["tail", "discover"])
def test_full_disk_is_said_in_a_sentence(feed, command):
    """If what a command prints does not fit on the disk, it fails without a traceback."""
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [*PROGRAM, command, feed], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "Error: The operating system refused: [Errno 28] No space left on device\n"
    assert (shown.returncode, shown.stderr) == (1, said)


def test_syncs_that_are_killed_and_share_the_work_land_every_event_once(
    feed, any_engine, any_database_url
):
    """Killed between its pages and started again, twice at once, sync lands every event once."""
    into = ("--into", any_database_url, "--table", "landed", "--consumer", "copy", "--lease", 1.0)
    for count in (1, 30):
        with started("sync", feed, *into, "--page", 1) as process:
            until(
                lambda least=count: len(landed(any_engine)) >= least,
                f"{count} have landed",
                PATIENCE,
            )
            process.kill()
    with (
        started("sync", feed, *into, "--page", 1) as one,
        started("sync", feed, *into, "--page", 1) as other,
    ):
        for process in (one, other):
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
    rows = landed(any_engine)
    assert [row[:2] for row in rows] == [(part, n) for part in range(2) for n in range(1, 51)]
    assert len({row[2] for row in rows}) == 100


def test_sync_ends_on_sigterm(feed, tmp_path):
    """A sync that follows ends by SIGTERM after a page, with exit code 0."""
    copy = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    options = ("--into", copy.url, "--table", "landed", "--consumer", "copy", "--follow", "--json")
    with started("sync", feed, *options) as process:
        until(lambda: len(landed(copy)) == 100, "every event has landed", PATIENCE)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, json.loads(output)["landed"]) == (0, 100)
    copy.dispose()
