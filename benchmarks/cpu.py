"""How many seconds of processors a process has taken, user and system."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
from sqlalchemy import create_engine, text

Meter = Callable[[], float]


def of_process(number: int) -> Meter:
    """Measure one process by its number."""
    process = psutil.Process(number)
    return lambda: _own(process)


def of_family(number: int) -> Meter:
    """Measure a process with all that descend of it, alive or waited for."""
    process = psutil.Process(number)
    return lambda: _own(process) + _descended(process)


def of_descendants(number: int) -> Meter:
    """Measure all that descend of a process, alive or waited for, without itself."""
    process = psutil.Process(number)
    return lambda: _descended(process)


def of_postgresql(url: str) -> Meter:
    """Measure a PostgreSQL server: its backends are children of one process.

    What runs elsewhere, or in a container, cannot be measured, and is not a number.
    """
    engine = create_engine(url)
    with engine.connect() as connection:
        backend = connection.scalar(text("SELECT pg_backend_pid()"))
        try:
            process = psutil.Process(backend)
            is_here = process.name().startswith("postgres")
        except psutil.NoSuchProcess:
            is_here = False
        parent = process.ppid() if is_here else None
    engine.dispose()
    return (lambda: math.nan) if parent is None else of_family(parent)


def resident(number: int) -> float:
    """Return how many mebibytes of a process are in memory."""
    with suppress(psutil.NoSuchProcess):  # it may have come to its end
        return float(psutil.Process(number).memory_info().rss) / 1024**2
    return 0.0


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _descended(process: psutil.Process) -> float:
    times = process.cpu_times()
    dead = times.children_user + times.children_system
    return float(dead) + sum(_each(process.children()))


def _each(processes: list[psutil.Process]) -> Iterator[float]:
    for process in processes:
        # Who ends meanwhile is counted with the dead ones the next time.
        with suppress(psutil.NoSuchProcess):
            yield _own(process) + _descended(process)
