"""Wake many without keeping the event loop from everybody else."""

from collections.abc import Callable, Iterable

import anyio
import anyio.lowlevel

__all__ = ["in_slices"]

SLICE = 4
"""How many are woken at once: what they then do takes a millisecond or two."""

PAUSE = 0.005
"""Seconds at most between one slice and the next."""


async def in_slices(calls: Iterable[Callable[[], object]]) -> None:
    """Make calls, a few at a time, and let others go on in between.

    All are made, also if whoever makes them is cancelled: then the rest at once.
    """
    left = iter(calls)
    began = anyio.current_time()
    try:
        with anyio.CancelScope(shield=True):
            for number, call in enumerate(left, 1):
                call()
                if number % SLICE == 0:
                    await anyio.lowlevel.checkpoint()
                    # As long again as they took: half of the time is everybody else's.
                    await anyio.sleep(min(anyio.current_time() - began, PAUSE))
                    began = anyio.current_time()
    finally:
        for call in left:
            call()
