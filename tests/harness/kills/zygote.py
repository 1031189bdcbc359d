"""A process that has imported everything and runs one thread: lives are forked from it."""

import gc
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.kills.ways import Life, live, rehearse

PATIENCE = 60
"""Seconds after which a life that does not end is given up, also where it starves."""

LONGEST_PAUSE = 0.004
"""Seconds between two looks at a life, at most: most lives are over within some tens of these."""


@dataclass(frozen=True)
class Rehearsal:
    """Ask the one who forks to live a life herself.

    Attributes:
        life: which comes to its end by itself.
    """

    life: Life


@dataclass(frozen=True)
class End:
    """Tell how a life ended, or that it stands still.

    Attributes:
        pid: the process.
        signal: what killed or stopped it; None where it ended by itself.
        stopped: whether it stands still, and may go on.
        points: how many points it passed, where it ended by itself.
        strikes: how often it was struck, where it ended by itself.
        fenced: how often a commit of it was refused, where it ended by itself.
        error: what it ended in, where that was an error.
    """

    pid: int
    signal: int | None = None
    stopped: bool = False
    points: int = 0
    strikes: int = 0
    fenced: int = 0
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether somebody else ended it."""
        return self.signal is not None and not self.stopped


class Zygote:
    """Hold the process that forks."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._living: set[int] = set()

    def rehearse(self, life: Life) -> None:
        """Let the process that forks live a life itself; its children find everything ready."""
        self._ask(Rehearsal(life))

    def start(self, life: Life) -> int:
        """Let a life begin; return its process."""
        pid = self._ask(life)
        self._living.add(pid)
        return pid

    def poll(self, pid: int) -> End | None:
        """Return how a life has ended, or that it stands still; None while it goes on."""
        end = self._ask(pid)
        if end is not None and not end.stopped:
            self._living.discard(pid)
        return end

    def wait(self, pid: int, *, seconds: float = PATIENCE) -> End:
        """Wait until a life ends or stands still."""
        ending = time.monotonic() + seconds
        pause = 0.0005
        while (end := self.poll(pid)) is None:
            if time.monotonic() > ending:
                raise TimeoutError(f"A consumer did not come to an end in {seconds} s.")
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE)
        return end

    def run(self, life: Life) -> End:
        """Let a life take its course."""
        return self.wait(self.start(life))

    def close(self) -> None:
        """End the process, and all that have come from it."""
        for pid in tuple(self._living):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)
        self._line.close()
        self._process.join(PATIENCE)
        self._process.close()

    def _ask(self, question: Rehearsal | Life | int) -> Any:
        self._line.send(question)
        if not self._line.poll(PATIENCE):
            raise TimeoutError("The process that forks does not answer.")
        return self._line.recv()


@contextmanager
def zygote() -> Iterator[Zygote]:
    """Run a zygote; who is still alive behind it is killed."""
    mother = Zygote()
    try:
        yield mother
    finally:
        mother.close()


def _serve(line: Connection) -> None:
    """Fork lives and reap them, until the other end of the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What they wait out and get over is expected here, and they do it by the thousand.
    logging.disable()
    reports: dict[int, int] = {}
    while True:
        try:
            asked = line.recv()
        except EOFError:
            return
        match asked:
            case Rehearsal(life):
                line.send(_rehearse(life))
            case Life():
                pid, report = _fork(asked)
                reports[pid] = report
                line.send(pid)
            case pid:
                line.send(_reap(pid, reports))


def _rehearse(life: Life) -> None:
    rehearse(life)
    gc.collect()
    # Nobody who is forked looks at what is left, and so nobody has to copy it.
    gc.freeze()


def _fork(life: Life) -> tuple[int, int]:
    threads = Path("/proc/self/task")
    assert not threads.exists() or len(list(threads.iterdir())) == 1
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _live(life, theirs)
    os.close(theirs)
    return pid, ours


def _live(life: Life, report: int) -> None:
    """Live, tell how it was, and never return into the mother's work."""
    code = 1
    told: dict[str, object] = {}
    try:
        told = asdict(live(life))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, somebody else has to hear of it
        told["error"] = traceback.format_exc()[-8000:]
    finally:
        os.write(report, json.dumps(told).encode())
        sys.stdout.flush()
        os._exit(code)


def _reap(pid: int, reports: dict[int, int]) -> End | None:
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if not found:
        return None
    if os.WIFSTOPPED(status):
        return End(pid, os.WSTOPSIG(status), stopped=True)
    with os.fdopen(reports.pop(pid), "rb") as report:
        told = json.loads(report.read() or b"{}")
    return End(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, **told)
