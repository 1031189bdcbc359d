"""The command line, in this process and in processes of its own."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from harness.waiting import until

PROGRAM = [sys.executable, "-m", "zeroeventhub"]
PATIENCE = 200  # seconds that a process may take for anything
ADDRESS = re.compile(r"(?:[Rr]unning on|Listening at:|server at) (http://[0-9.]+:[0-9]+)")
"""How uvicorn, gunicorn and Django say where they listen."""


def invoke(*arguments: object, answer: str | bytes | None = None) -> Result:
    """Run a command in this process, to its end."""
    from zeroeventhub.cli.commands import commands

    logger = logging.getLogger("zeroeventhub")
    level = logger.level
    try:
        result = CliRunner().invoke(commands, [*map(str, arguments)], input=answer)
    finally:
        logger.setLevel(level)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def output_of(*arguments: object, answer: str | bytes | None = None) -> str:
    """Run a command that must not fail, in this process; return what it prints."""
    result = invoke(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return result.stdout


def run(
    *arguments: object, program: list[str] = PROGRAM, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, to its end."""
    return subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **options,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    """Read what a server says until it says where it listens."""
    said = []
    for line in process.stderr:
        said.append(line)
        if found := ADDRESS.search(line):
            return found[1]
    raise AssertionError(f"It does not listen:\n{''.join(said)}")


@dataclass
class Server:
    """A server that runs in a process of its own."""

    url: str
    process: subprocess.Popen
    log: Path

    def end(self) -> float:
        """Tell it to end; return how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        return time.monotonic() - began


@contextmanager
def logged(command: list[object], log: Path, **environment: str) -> Iterator[Server]:
    """Run a server that says in its log where it listens; its processes are killed in the end."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env=os.environ | environment,
            start_new_session=True,  # so that its workers end with it
        )
    try:
        until(
            lambda: ADDRESS.search(log.read_text()) or process.poll() is not None,
            "it listens",
            PATIENCE,
        )
        found = ADDRESS.search(log.read_text())
        assert found, log.read_text()
        yield Server(found[1], process, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def children(process: int, words: str) -> set[int]:
    """Return the processes that a process has started by a command line with these words."""
    found = subprocess.run(
        ["pgrep", "-P", str(process), "-f", words], capture_output=True, text=True, check=False
    )
    return {int(line) for line in found.stdout.split()}


@contextmanager
def started(
    *arguments: object, program: list[str] = PROGRAM, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process of its own; it is killed in the end."""
    process = subprocess.Popen(
        [*program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
