"""Stop a process of the writers between any two of its steps, for some milliseconds."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from sqlalchemy import Engine, text

from harness.torture.engines import WRITERS

FROZEN = 0.03
"""Seconds at most that a process is stopped."""

_BACKENDS = text("""
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = :writers
""")


class Freezer(Thread):
    """Freeze one process after the other until told to stop.

    Args:
        victims: finds the processes that may be frozen now.
        seed: of the dice.
    """

    def __init__(self, victims: Callable[[], Iterable[int]], seed: str) -> None:
        super().__init__(daemon=True)
        self.frozen = 0
        self._victims = victims
        self._dice = random.Random(seed)
        self._ending = Event()

    def run(self) -> None:
        """Freeze until told to stop."""
        while not self._ending.is_set():
            if victims := sorted(self._victims()):
                self._freeze(self._dice.choice(victims))
            time.sleep(self._dice.random() * FROZEN)

    def end(self) -> None:
        """Stop, with nobody left frozen."""
        self._ending.set()
        self.join()

    def _freeze(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(self._dice.random() * FROZEN)
            finally:
                os.kill(pid, signal.SIGCONT)
            self.frozen += 1


def backends(engine: Engine) -> list[int]:
    """Find the writers' backends of a PostgreSQL server that runs here and lets itself be stopped.

    Elsewhere, as in a container, a number may be somebody else's: a backend of here shows the
    name of its database, which nobody else has, in its command line.
    """
    with engine.connect() as connection:
        found = connection.scalars(_BACKENDS, {"writers": WRITERS}).all()
    return [pid for pid in found if _serves(pid, engine.url.database)]


def _serves(pid: int, database: str) -> bool:
    try:
        os.kill(pid, 0)
        return database.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
