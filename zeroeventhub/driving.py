"""Drive decisions: carry each step out, and hand its result or its error back.

Decisions are generators without I/O. What carries their steps out is written once for threads and
tasks where it is a coroutine: in a thread, its coroutines never suspend, and `blocking` runs them.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

__all__ = ["blocking", "drive", "drop_traceback", "next_step", "settled"]

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def blocking(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that never suspends, because all that it waits for blocks its thread."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    work.close()
    raise RuntimeError("What is to block has suspended.")


async def settled(answer: Any) -> Any:
    """Return what a client has returned; an async one has returned what there is to await."""
    return await answer if isawaitable(answer) else answer


def drop_traceback(error: BaseException | None) -> None:
    """Drop the traceback of an error that is waited out, and of its causes.

    Its frames hold the page that it is about, and would keep that page in memory.
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


async def drive(
    steps: Generator[_Step, Any, _Result], carry_out: Callable[[_Step], Awaitable[Any]]
) -> _Result:
    """Carry out every step of a generator; return what it returns, or raise what it raises."""
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
        # The error's traceback holds this frame, which must not hold the error and its page.
        del go_on
        steps.close()
