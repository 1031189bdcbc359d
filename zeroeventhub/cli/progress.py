"""Progress on stderr: bars on a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["Meters"]

PLAIN_INTERVAL = 5.0


class Meters:
    """Show counters that grow, each under its name.

    Args:
        totals: where each counter ends; None where nobody knows.
    """

    def __init__(self, totals: dict[str, int | None]) -> None:
        self._totals = totals
        self._counts = dict.fromkeys(totals, 0)
        self._started = time.monotonic()
        self._last_line = self._started
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Start showing."""
        if sys.stderr.isatty():
            known = all(total is not None for total in self._totals.values())
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                *((BarColumn(), MofNCompleteColumn()) if known else ()),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bars.start()
            self._tasks = {
                name: self._bars.add_task(name, total=total, rate="")
                for name, total in self._totals.items()
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""
        if self._bars is not None:
            self._bars.stop()

    def show(self, name: str, count: int) -> None:
        """Move a counter."""
        self._counts[name] = count
        elapsed = time.monotonic() - self._started
        if self._bars is not None:
            rate = f"{count:,} events, {count / max(elapsed, 0.001):,.0f}/s"
            self._bars.update(self._tasks[name], completed=count, rate=rate)
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
