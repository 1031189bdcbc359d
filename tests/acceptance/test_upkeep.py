"""Upkeep beside the server: what the file asks for is done from time to time."""

import errno
import os
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from harness.command_line import PATIENCE, PROGRAM, children, invoke, started
from harness.guides import block
from harness.readers import get
from harness.shop import orders, write
from harness.statements import count_of
from harness.trimmed import numbers, ten_days
from harness.waiting import until

from zeroeventhub import TableFeed
from zeroeventhub.archive import Archive
from zeroeventhub.cli.serve import serve
from zeroeventhub.cli.upkeep import Task, upkeep
from zeroeventhub.publisher.retention import Retention

FILE = """\
[serve]
port = 0

[feeds.orders]
database = "env:SHOP"
table = "orders"
data = "data"
time = "placed"
archive = "archive"
seal = { every = "1s" }
trim = { every = "1s", older_than = "4d" }
"""


@pytest.fixture
def shop(sqlite, sqlite_url, empty_folder, monkeypatch):
    """The engine of ten orders, one a day, whose upkeep the file of the working directory wants."""
    monkeypatch.setenv("SHOP", sqlite_url)
    (empty_folder / "zeroeventhub.toml").write_text(FILE)
    ten_days(sqlite)
    with closing(sqlite3.connect(empty_folder / "test.db")) as connection:
        connection.executescript(invoke("ddl", "orders").stdout)
    return sqlite


def feed(engine, archive):
    """Return the feed of the file."""
    source = TableFeed(orders, data="data", time="placed", retention=Retention(), archive=archive)
    return source.bind(engine)


def end(process):
    """Tell a server to end; return what it has said."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode in {0, -signal.SIGTERM}
    return errors


@pytest.mark.slow
def test_upkeep_is_done_at_once_and_what_fails_is_logged(shop, tmp_path, caplog):
    """What the file asks for is done at the start, sealing goes on, and failures are logged."""
    tasks = serve.make_context("serve", []).obj.upkeep
    assert [(task.command, task.seconds) for task in tasks] == [("seal", 1), ("trim", 1)]
    missing = Task("compact", "nothing", "zeroeventhub.toml", "1h")
    archive = Archive(tmp_path / "archive")
    with upkeep([missing, tasks[0]]):
        until(lambda: archive.look().sealed == 10, "all events are sealed", PATIENCE)
        write(shop, first=11)
        until(lambda: archive.look().sealed == 11, "the next one is sealed", PATIENCE)
        failure = "compact nothing failed: Error: zeroeventhub.toml has no 'nothing'"
        until(lambda: failure in caplog.text, "the failure is logged", PATIENCE)


def test_upkeep_goes_on_after_no_process_could_be_started(monkeypatch, caplog):
    """If the machine has no room for a process, the next interval tries again."""
    starts = []

    def refuse(*_arguments, **_options):
        starts.append(1)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with upkeep([Task("tidy", "orders", "zeroeventhub.toml", "1s")]):
        until(lambda: len(starts) > 1, "it is tried again", PATIENCE)
    assert "tidy orders failed: [Errno 11]" in caplog.text


def test_upkeep_that_is_stopped_as_it_begins_leaves_no_thread(monkeypatch):
    """SIGTERM while the threads are started ends them, and so the process."""
    start = threading.Thread.start

    def start_and_stop(thread):
        start(thread)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Task, "run", lambda _, stopping: stopping.wait(PATIENCE))
        patched.setattr(threading.Thread, "start", start_and_stop)
        tasks = [Task("tidy", "orders", "zeroeventhub.toml", "1h")]
        with pytest.raises(SystemExit), upkeep(tasks):
            pass
    assert "upkeep" not in {thread.name for thread in threading.enumerate()}


def test_sealing_ends_with_a_server_that_is_killed(shop, tmp_path):
    """The process that seals ends when the server that started it is killed."""
    with started("serve") as process:
        archive = Archive(tmp_path / "archive")
        until(lambda: archive.look().sealed == 10, "all events are sealed", PATIENCE)
        process.kill()
        process.communicate(timeout=PATIENCE)  # to the end of stderr, which sealing shares


def test_server_ends_although_its_sealing_is_suspended(shop, tmp_path):
    """A server that gets SIGTERM ends although a process of its upkeep is suspended."""
    with started("serve") as process:
        archive = Archive(tmp_path / "archive")
        until(lambda: archive.look().sealed == 10, "all events are sealed", PATIENCE)
        (sealing,) = children(process.pid, "zeroeventhub seal")
        os.kill(sealing, signal.SIGSTOP)
        try:
            end(process)
        finally:
            with suppress(ProcessLookupError):
                os.kill(sealing, signal.SIGCONT)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_server_that_is_stopped_with_its_processes_says_nothing_of_them(shop, tmp_path, ending):
    """Ctrl-C, or a service manager that ends all processes, is no failure of the upkeep."""
    with started("serve", program=["setsid", *PROGRAM]) as process:
        archive = Archive(tmp_path / "archive")
        until(lambda: archive.look().sealed == 10, "all events are sealed", PATIENCE)
        sealing = children(process.pid, "zeroeventhub seal")
        if ending == signal.SIGTERM:
            for one in sealing:
                os.kill(one, ending)
        os.killpg(process.pid, ending)
        assert process.communicate(timeout=PATIENCE)[1] == ""


def test_archive_is_sealed_continuously(shop, tmp_path):
    """What the guide to archives puts into the file is the upkeep that it speaks of."""
    shown = block("archive.md", "continuous")
    (tmp_path / "zeroeventhub.toml").write_text(FILE.partition("seal =")[0] + shown)
    tasks = serve.make_context("serve", []).obj.upkeep
    assert [(task.command, task.seconds) for task in tasks] == [("seal", 10), ("tidy", 3600)]


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (', older_than = "4d"', "", "feeds.orders.trim: Say which events are old enough"),
        ('time = "placed"\n', "", "feeds.orders.trim: older_than needs the times of events"),
    ],
)
def test_upkeep_that_would_fail_each_time_is_refused(shop, tmp_path, good, bad, words):
    """A server whose trimming cannot work ends with a sentence that names the line."""
    (tmp_path / "zeroeventhub.toml").write_text(FILE.replace(good, bad))
    result = invoke("serve")
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.test_all
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_workers_leave_upkeep_to_their_server(shop, tmp_path, ending):
    """A server seals, not its workers; one that dies is replaced, and all end with it."""
    archive = Archive(tmp_path / "archive")
    with started("serve", "--workers", 2) as process:
        url = process.stdout.readline().split()[1]
        until(lambda: archive.look().sealed == 10, "all events are sealed", PATIENCE)
        until(lambda: len(children(process.pid, "spawn_main")) == 2, "both run", PATIENCE)
        first, second = children(process.pid, "spawn_main")
        for other in (first, second):  # the one that is not stopped answers
            os.kill(other, signal.SIGSTOP)
            assert get(url).text.count("data") == 10
            os.kill(other, signal.SIGCONT)
        os.kill(first, signal.SIGKILL)

        def replaced():
            return children(process.pid, "spawn_main") - {first, second}

        until(replaced, "another worker runs", PATIENCE)
        write(shop, first=11)
        until(lambda: archive.look().sealed == 11, "the next one is sealed", PATIENCE)
        assert get(url).text.count("data") == 11
        (sealing,) = children(process.pid, "zeroeventhub seal")
        running = {second, sealing, *replaced()}
        assert [children(one, "zeroeventhub") for one in running] == [set()] * 3
        process.send_signal(ending)
        process.communicate(timeout=PATIENCE)  # to the end of stderr, which all of them share
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in running), "all end", 5)


@pytest.mark.test_all
def test_servers_need_no_lock(shop, tmp_path):
    """Two servers do the upkeep of one feed: every event is sealed once, and old ones are gone."""
    archive = Archive(tmp_path / "archive")
    with started("serve") as one, started("-v", "serve") as other:
        until(lambda: count_of(shop, orders) == 3, "old events are gone", PATIENCE)
        write(shop, 5, first=11)
        until(lambda: archive.look().sealed >= 15, "new events are sealed", PATIENCE)
        end(one)
        assert "trim orders: " in end(other)
    assert numbers(feed(shop, archive)) == [*range(10, 0, -1), *range(11, 16)]
    assert sum(segment.events for segment in archive.look().segments) == 15
