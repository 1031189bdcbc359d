"""Drive decisions: carry each step out, and hand its result or its error back."""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

__all__ = ["drive", "drive_async", "drop_traceback", "next_step"]

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def drop_traceback(error: BaseException | None) -> None:
    """Forget where an error came from that was logged and is waited out.

    The frames that it came through hold the page that it is about, and some hold the error: such
    a cycle would keep the page in memory until the garbage collector runs.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


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
        # An error holds this frame; if the frame held the error, the cycle would keep its page.
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
        # An error holds this frame; if the frame held the error, the cycle would keep its page.
        del go_on
        steps.close()
