"""What commands print: results, questions and progress."""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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

from zeroeventhub.cli.options import as_json as as_json_option
from zeroeventhub.errors import ConfigurationError


def write_log(*, verbose: bool) -> None:
    """Write the log of this package to stderr: warnings, and with `verbose` other events."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("zeroeventhub").setLevel(logging.INFO if verbose else logging.WARNING)


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


class Meters:
    """Show counters that grow to their totals, which may be unknown."""

    def __init__(self, totals: dict[str, int | None]) -> None:
        self._counts = dict.fromkeys(totals, 0)
        self._started = self._last_line = time.monotonic()
        self._bars: Progress | None = None
        if sys.stderr.isatty():
            known = all(total is not None for total in totals.values())
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                *((BarColumn(), MofNCompleteColumn()) if known else ()),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._tasks = {
                name: self._bars.add_task(name, total=total, rate="")
                for name, total in totals.items()
            }

    def __enter__(self) -> Self:
        """Start showing."""
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, count: int, total: int | None = None) -> None:
        """Set a counter, and its total if that has become known."""
        self._counts[name] = count
        if self._bars is not None:
            elapsed = time.monotonic() - self._started
            rate = f"{count:,} events, {count / max(elapsed, 0.001):,.0f}/s"
            self._bars.update(self._tasks[name], completed=count, total=total, rate=rate)
        elif time.monotonic() - self._last_line >= PLAIN_INTERVAL:
            self._last_line = time.monotonic()
            self.say(", ".join(f"{name} {count:,}" for name, count in self._counts.items()))

    def say(self, line: str) -> None:
        """Write a line beside the counters."""
        if self._bars is not None:
            self._bars.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
