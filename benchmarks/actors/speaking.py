"""What an actor does to be talked to: a task in, lines out."""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def task() -> Any:
    """Return what the actor is to do."""
    return json.loads(sys.argv[1])


def say(what: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def told() -> Any:
    """Wait for a line; end if there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def cpu() -> float:
    """Return the seconds of processors of this process and of the children that it waited for."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    usages = [resource.getrusage(kind) for kind in kinds]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def perform(work: Callable[[Any], dict[str, Any]], **ready: object) -> None:
    """Do a work each time that a line says so, and say how long it took.

    Args:
        work: gets what the line says; returns at least how many events there were.
        ready: what to say first.
    """
    say(ready)
    while True:
        order = told()
        taken, began = cpu(), time.perf_counter()
        found = work(order)
        seconds = time.perf_counter() - began
        say({"seconds": seconds, "cpu": cpu() - taken, **found})
