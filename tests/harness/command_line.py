"""The command line, in this process and in processes of its own."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from click.testing import CliRunner, Result

PROGRAM = [sys.executable, "-m", "zeroeventhub"]
DEADLINE = 60  # seconds that a process may take


def invoke(*arguments: object, answer: str | None = None) -> Result:
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


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        **options,
    )


@contextmanager
def started(*arguments: object, program: list[str] = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process of its own; it is killed in the end."""
    process = subprocess.Popen(
        [*program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
