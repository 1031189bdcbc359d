"""A web server in a process of its own, to be told to end by a signal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.waiting import until

FOLDER = Path(__file__).parents[1]


@dataclass
class Server:
    """A server that runs.

    Attributes:
        url: where it listens, without a slash at its end.
        process: what it runs in.
        log: what it has said.
    """

    url: str
    process: subprocess.Popen
    log: Path

    def end(self) -> float:
        """Tell it to end; return how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - began


@contextmanager
def uvicorn(application: str, folder: Path, *options: str, **settings: str) -> Iterator[Server]:
    """Run uvicorn with an application of the harness until it is told to end, or no longer needed.

    Args:
        application: as uvicorn has it, such as "harness.waiting_application:application".
        folder: for its log.
        options: of uvicorn's.
        settings: of the environment.
    """
    log = folder / "uvicorn.log"
    words = [sys.executable, "-m", "uvicorn", application, "--port", "0", *options]
    environment = {**os.environ, **settings, "PYTHONPATH": str(FOLDER)}
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
    try:
        yield Server(_address(log, process), process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def _address(log: Path, process: subprocess.Popen) -> str:
    until(lambda: "running on " in log.read_text() or process.poll() is not None, "uvicorn starts")
    _, started, rest = log.read_text().partition("running on ")
    assert started, f"uvicorn did not start: {log.read_text()}"
    url = rest.split()[0]
    httpx.get(url)
    return url
