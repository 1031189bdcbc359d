"""The upkeep of feeds beside their server: commands that are run from time to time."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zeroeventhub.cli.options import age
from zeroeventhub.errors import ConfigurationError

_log = logging.getLogger(__name__)

_TICK = 0.5
"""Seconds between two looks at whether the server has ended."""

NEEDED = {"seal": "archive", "trim": None, "compact": "compacted", "tidy": "archive"}
"""The commands of upkeep, in the order in which they run, and the key that its feed needs."""


def check_upkeep(feed: Mapping[str, Any], *, knows_times: bool) -> None:
    """Refuse upkeep that would fail at every interval, or would leave no interval.

    Args:
        feed: what the file says of the feed.
        knows_times: whether the feed finds events by their times.
    """
    for command, needed in NEEDED.items():
        table, complaint = feed.get(command, {}), ""
        if "every" not in table:
            continue
        if not age(table["every"]):
            complaint = "every has to be more than zero."
        elif needed and not feed.get(needed):
            complaint = f"{command} needs a feed with {needed}: give it as well."
        elif command == "trim" and "older_than" not in table:
            complaint = "Say which events are old enough to trim: give older_than."
        elif "older_than" in table and not knows_times:
            complaint = "older_than needs the times of events: give time, the column of them."
        if complaint:
            raise ConfigurationError(complaint, command)


@dataclass(frozen=True)
class Task:
    """A command of upkeep."""

    command: str  # seal, trim, compact or tidy
    feed: str
    file: str  # that describes the feed
    every: str  # the interval, such as 1h

    @property
    def seconds(self) -> float:
        """Return the interval in seconds."""
        return age(self.every).total_seconds()

    def run(self, stopping: threading.Event) -> None:
        """Run the command to its end, or until the server ends: it may stop at any step.

        Sealing goes on until then: to start a process for it costs more than to seal a few events.
        """
        words = [self.command, self.feed, "--config", self.file]
        seal = ["--repeat", self.every, "--until-input-ends"]
        words += {"seal": seal, "tidy": []}.get(self.command, ["--yes"])
        # Its input ends with this process, however that ends.
        given, held = os.pipe()
        with (
            os.fdopen(given) as its_input,
            os.fdopen(held, "w"),
            subprocess.Popen(  # noqa: S603 - our own commands
                [sys.executable, "-m", "zeroeventhub", *words],
                stdin=its_input,
                stdout=subprocess.PIPE,
                stderr=None if self.command == "seal" else subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the server, which ends this one
            ) as process,
        ):
            its_input.close()
            while True:
                try:
                    output, errors = process.communicate(timeout=_TICK)
                    break
                except subprocess.TimeoutExpired:
                    if stopping.is_set():
                        process.kill()  # a signal that also ends one that is suspended
        if process.returncode == 0:
            _log.info("%s %s: %s", self.command, self.feed, output.strip())
        elif not stopping.wait(_TICK * 2):  # it may be stopped before the server
            _log.warning("%s %s failed: %s", self.command, self.feed, (errors or "").strip())


@contextmanager
def upkeep(tasks: Sequence[Task]) -> Iterator[None]:
    """Run each task now and at its interval while the server serves.

    Each is a process of its own, so that it does not slow down answers. Tasks run one after the
    other, but for those that seal, which do not wait for others. Several servers of the same feeds
    need no lock: these commands share their work in the database and the archive.
    """
    if not tasks:
        yield
        return
    stopping = threading.Event()

    def run(tasks: Sequence[Task]) -> None:
        due = dict.fromkeys(tasks, time.monotonic())
        while not stopping.wait(max(0.0, min(due.values()) - time.monotonic())):
            task = min(due, key=lambda each: due[each])
            try:
                task.run(stopping)
            except OSError as error:  # no process can be started now
                _log.warning("%s %s failed: %s", task.command, task.feed, error)
            due[task] = time.monotonic() + task.seconds

    # uvicorn raises the signal again that ended it, which would kill this process on the spot.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    others = [task for task in tasks if task.command != "seal"]
    groups = [[task] for task in tasks if task.command == "seal"] + ([others] if others else [])
    threads = [threading.Thread(target=run, args=(group,), name="upkeep") for group in groups]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        stopping.set()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join()
        signal.signal(signal.SIGTERM, before)
