"""Take the steps of sealing: ask the table through a connection, and work without one."""

from asyncio import Task, create_task, to_thread
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from zeroeventhub.publisher.archived.sealing import Ask, Sealed, Work

__all__ = ["async_drive", "drive"]

_Steps = Generator[Ask | Work, Any, Sealed]


def drive(steps: _Steps, ask: Callable[..., Any]) -> Sealed:
    """Take steps to their end, working in one thread beside this one.

    Args:
        steps: of sealing.
        ask: asks a question through a connection, given it and its arguments.
    """
    begun: Future[Any] | None = None
    with ThreadPoolExecutor(1) as worker:
        try:
            step = next(steps)
            while True:
                answer = None
                if isinstance(step, Ask):
                    answer = ask(step.question, *step.arguments)
                else:
                    if begun is not None:
                        begun.result()
                    begun = worker.submit(step.function)
                    answer = begun.result() if step.is_awaited else None
                step = steps.send(answer)
        except StopIteration as end:
            sealed: Sealed = end.value
            return sealed


async def async_drive(steps: _Steps, ask: Callable[..., Awaitable[Any]]) -> Sealed:
    """Take steps to their end, working in threads; see `drive`."""
    begun: Task[Any] | None = None
    try:
        step = next(steps)
        while True:
            answer = None
            if isinstance(step, Ask):
                answer = await ask(step.question, *step.arguments)
            else:
                if begun is not None:
                    await begun
                begun = create_task(to_thread(step.function))
                answer = await begun if step.is_awaited else None
            step = steps.send(answer)
    except StopIteration as end:
        sealed: Sealed = end.value
        return sealed
