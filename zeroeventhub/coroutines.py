"""Drive decisions: carry out each step, and send its result or its error back.

Decisions are generators without I/O. A coroutine carries out their steps, for tasks and threads
alike: in a thread, `blocking` runs it, and it never suspends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def blocking(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine that blocks its thread wherever it waits, and so never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    work.close()
    raise RuntimeError("What is to block has suspended.")


def as_blocking(
    method: Callable[Concatenate[Any, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Any, _Given], _Result]:
    """Make a blocking method of a coroutine that blocks its thread wherever it waits."""

    @wraps(method)
    def call(owner: Any, /, *arguments: _Given.args, **options: _Given.kwargs) -> _Result:
        return blocking(method(owner, *arguments, **options))

    return call


async def maybe_await(answer: Any) -> Any:
    """Return a client's answer; await it first if the client is async."""
    return await answer if isawaitable(answer) else answer


def is_cancelled() -> bool:
    """Return whether this task is to end, and not only another one that it has waited for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread has no task to be cancelled
        return False
    return task is None or task.cancelling() > 0


def drop_traceback(error: BaseException | None) -> None:
    """Drop the traceback of an error before a retry: its frames would keep the page in memory."""
    while error is not None and error.__traceback__ is not None:
        error.with_traceback(None)  # an assignment fails where the class is a frozen dataclass
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
    """Carry out every step of a generator; return its result, or raise its error."""
    go_on: Callable[[], _Step] = partial(next, steps)
    try:
        while True:
            step = go_on()
            try:
                go_on = partial(steps.send, await carry_out(step))
            except Exception as error:  # noqa: BLE001 - the decisions get it
                go_on = partial(steps.throw, error)
    except StopIteration as end:
        result: _Result = end.value
        return result
    finally:
        # The error's traceback holds this frame, which must not hold the error and its page.
        del go_on
        steps.close()
