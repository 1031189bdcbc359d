"""Processes that take part in a measurement: each does one thing and says what it took.

An actor is a module of `benchmarks.actors`. It gets its task as JSON in its one argument, writes a
line of JSON as soon as it is ready, and, if it acts, waits for a line and answers it with a line.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cpu import Meter
from benchmarks.measuring import Run

ROOT = Path(__file__).parents[1]


class Actor:
    """Talk to a process.

    Args:
        process: that writes and reads lines.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ready = self._line()
        """What it said when it was ready."""

    @property
    def number(self) -> int:
        """Return the process's number."""
        return self._process.pid

    def act(self, task: object = None) -> dict[str, Any]:
        """Let it do its part; return what it took."""
        self.begin(task)
        return self._line()

    def begin(self, task: object = None) -> None:
        """Let it begin."""
        assert self._process.stdin is not None  # noqa: S101 - it was started with one
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()

    def is_done(self, seconds: float) -> bool:
        """Wait so long for what it took; tell whether it is there."""
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def end(self) -> dict[str, Any]:
        """Wait until it is done; return what it took."""
        return self._line()

    def run(self, meters: Mapping[str, Meter], task: object = None) -> Run:
        """Let it do its part, and measure others meanwhile."""
        before = {name: meter() for name, meter in meters.items()}
        took = self.act(task)
        cpu = {name: meter() - before[name] for name, meter in meters.items()}
        if "cpu" in took:
            cpu["client"] = took["cpu"]
        return Run(took["events"], took["seconds"], cpu, took)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was started with one
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait(10)}.")
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def acting(module: str, task: object = None, *, python: Path | None = None) -> Iterator[Actor]:
    """Start an actor; end it behind the block.

    Args:
        module: its name.
        task: what it is to do.
        python: the interpreter of another environment, which runs the file for itself.
    """
    if python is None:
        words = [sys.executable, "-m", f"benchmarks.actors.{module}"]
    else:
        words = [str(python), "-I", str(ROOT / "benchmarks" / "actors" / f"{module}.py")]
    process = subprocess.Popen(  # noqa: S603 - of this folder
        [*words, json.dumps(task)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )
    try:
        yield Actor(process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
