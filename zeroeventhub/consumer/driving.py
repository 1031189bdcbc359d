"""Drive decisions: carry each step out, and hand its result or its error back."""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

__all__ = ["drive", "drive_async", "next_step"]

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def next_step(go_on: Callable[[], _Step]) -> _Step | None:
    """Return a generator's next step; None at its end."""
    try:
        return go_on()
    except StopIteration:
        return None


def drive(steps: Generator[_Step, Any, _Result], carry_out: Callable[[_Step], Any]) -> _Result:
    """Carry out every step of a generator; return what it returns, or raise what it raises."""
    go_on: Callable[[], _Step] = partial(next, steps)
    try:
        while True:
            step = go_on()
            try:
                go_on = partial(steps.send, carry_out(step))
            except Exception as error:  # noqa: BLE001 - decisions judge it
                go_on = partial(steps.throw, error)
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        # What was raised knows this frame, which must not know it: nobody would forget the page.
        del go_on
        steps.close()


async def drive_async(
    steps: Generator[_Step, Any, _Result], carry_out: Callable[[_Step], Awaitable[Any]]
) -> _Result:
    """Carry out every step of a generator; see `drive`."""
    go_on: Callable[[], _Step] = partial(next, steps)
    try:
        while True:
            step = go_on()
            try:
                go_on = partial(steps.send, await carry_out(step))
            except Exception as error:  # noqa: BLE001 - decisions judge it
                go_on = partial(steps.throw, error)
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        # What was raised knows this frame, which must not know it: nobody would forget the page.
        del go_on
        steps.close()
