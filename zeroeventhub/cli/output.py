"""What commands print: results, questions and progress."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.cli.options import as_json as as_json_option
from zeroeventhub.errors import ConfigurationError, TransientError


def write_log(*, verbose: bool) -> None:
    """Write the log of this package to stderr: warnings, and with `verbose` other events."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_BesideBars()])
    logging.getLogger("zeroeventhub").setLevel(logging.INFO if verbose else logging.WARNING)


class _BesideBars(logging.Handler):
    """Write records to what stderr is at the moment: a bar that is drawn puts them above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; go on if the reader of stderr is gone."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")  # click writes beside it
        except OSError:
            self.handleError(record)


def report(
    document: Any, lines: Iterable[str], *, as_json: bool, indent: int | None = None
) -> None:
    """Print what a command found or did: a document as JSON, or lines of text.

    A document has JSON values, dataclasses, times, and text in UTF-8.
    """
    if as_json:
        lines = [json.dumps(document, default=_plain, indent=indent)]
    for line in lines:
        click.echo(line)


Answer = tuple[Any, Iterable[str]]
"""What a command returns: a document for `--json`, and lines of text."""


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Add `--json` to a command, and print what it returns."""

    @as_json_option
    @wraps(command)
    def printing(*, as_json: bool, **options: Any) -> None:
        report(*command(**options), as_json=as_json)

    return printing


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(type(value).__name__)


def refusal(error: SQLAlchemyError) -> str:
    """Say in a sentence what the database refused."""
    reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return f"The database refused: {reason}"


@contextmanager
def as_misuse() -> Iterator[None]:
    """Let an error end a command with 2 if its exit code 1 says what it has found."""
    try:
        yield
    except TransientError as error:
        raise ConfigurationError(str(error)) from error
    except SQLAlchemyError as error:
        raise ConfigurationError(refusal(error)) from error


def write_file(file: Path, content: bytes) -> None:
    """Write a file that an option names."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}.") from None


def confirm(consequence: str, *, yes: bool) -> None:
    """End the command unless the operator agrees; the question goes to stderr."""
    if not yes:
        click.confirm(f"{consequence} Go on?", abort=True, err=True)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


PLAIN_INTERVAL = 5.0
"""Seconds between two lines of progress, if stderr is not a terminal."""


class Meter:
    """Show a counter that grows to its total, which may be unknown."""

    def __init__(self, name: str, total: int | None = None) -> None:
        self.name = name
        self._started = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                *(() if total is None else (BarColumn(), MofNCompleteColumn())),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(name, total=total, rate="")

    def __enter__(self) -> Self:
        """Start showing."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, count: int, total: int | None = None) -> None:
        """Set the counter, and its total if that has become known."""
        if self._bar is not None:
            elapsed = time.monotonic() - self._started
            rate = f"{count:,} events, {count / max(elapsed, 0.001):,.0f}/s"
            self._bar.update(self._task, completed=count, total=total, rate=rate)
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL:
            self._last_line = time.monotonic()
            self.say(f"{self.name} {count:,}")

    def say(self, line: str) -> None:
        """Write a line beside the counter."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            with suppress(OSError):  # the reader of stderr is gone: the work goes on
                click.echo(line, err=True)
