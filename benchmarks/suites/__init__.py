"""The suites: each measures one thing, in a module with its name."""

from collections.abc import Callable

from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.suites.apply import apply
from benchmarks.suites.drain import drain
from benchmarks.suites.end_to_end import end_to_end
from benchmarks.suites.sqlite import sqlite

__all__ = ["SUITES", "Suite"]

Suite = Callable[[Stage], Result]

SUITES: dict[str, Suite] = {suite.__name__: suite for suite in (drain, end_to_end, apply, sqlite)}
