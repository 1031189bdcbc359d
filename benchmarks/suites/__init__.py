"""The suites: each measures one thing, in a module with its name."""

from collections.abc import Callable

from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.suites.append import append
from benchmarks.suites.append_http import append_http
from benchmarks.suites.apply import apply
from benchmarks.suites.archive import archive
from benchmarks.suites.cache import cache
from benchmarks.suites.console import console
from benchmarks.suites.data_frames import data_frames
from benchmarks.suites.depth import depth
from benchmarks.suites.drain import drain
from benchmarks.suites.end_to_end import end_to_end
from benchmarks.suites.latency import latency
from benchmarks.suites.many import many
from benchmarks.suites.memory import memory
from benchmarks.suites.spark import spark
from benchmarks.suites.spark_memory import spark_memory
from benchmarks.suites.spark_tasks import spark_tasks
from benchmarks.suites.sqlite import mariadb, sqlite
from benchmarks.suites.waiters import waiters

__all__ = ["SUITES"]

SUITES: dict[str, Callable[[Stage], Result]] = {
    suite.__name__: suite
    for suite in (
        *(drain, cache, end_to_end, apply, append, append_http, sqlite, mariadb),
        *(latency, waiters, many, depth, memory, archive, console),
        *(data_frames, spark, spark_tasks, spark_memory),
    )
}
"""In the order of the document."""
