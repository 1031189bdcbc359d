"""Runs of consumers to the head of their feed, with pauses that take no time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from zeroeventhub.consumer.consumer import AsyncConsumer, Consumer
from zeroeventhub.consumer.steps import Pause
from zeroeventhub.coroutines import blocking, maybe_await

LONGEST_PAUSE = 0.001
"""Seconds of a pause in a test: other threads get their turn."""

MOST_RETRIES = 1000
"""Pauses after errors from which on a consumer tries for ever."""


@contextmanager
def no_pauses() -> Iterator[list[Pause]]:
    """Let the pauses of all consumers take no time in a block; yield those that were made.

    A Pause has its `seconds`, and the error that was its `reason`: None at the head of the feed.

    Raises:
        AssertionError: in a consumer that has tried again a thousand times.
    """
    pauses: list[Pause] = []
    former = Pause.begin

    def begin(self: Pause) -> float:
        pauses.append(self)
        if self.reason is not None and len(pauses) > MOST_RETRIES:
            raise AssertionError(
                f"The consumer has tried again {MOST_RETRIES:,} times: {self.reason}"
            ) from self.reason
        return min(former(self), LONGEST_PAUSE)

    Pause.begin = begin  # type: ignore[method-assign]
    try:
        yield pauses
    finally:
        Pause.begin = former  # type: ignore[method-assign]


def run_to_head(
    consumer: Consumer, apply: Callable[..., object], *, sessions: Callable[[], Any] | None = None
) -> list[Pause]:
    """Run a consumer until it has applied all that is there, without pauses; return these.

    Only its option `follow` is ignored.

    Args:
        consumer: the consumer, of which a copy is run.
        apply: as for `Consumer.run`.
        sessions: as for `Consumer.run`.

    Raises:
        Halted: `apply` has raised in every try.
        ZeroEventHubError: the feed has refused to be read.
    """
    return blocking(_run_to_head(consumer, apply, sessions))


async def async_run_to_head(
    consumer: AsyncConsumer,
    apply: Callable[..., object],
    *,
    sessions: Callable[[], Any] | None = None,
) -> list[Pause]:
    """Run an AsyncConsumer until it has applied all that is there; see `run_to_head`."""
    return await _run_to_head(consumer, apply, sessions)


async def _run_to_head(
    consumer: Consumer | AsyncConsumer,
    apply: Callable[..., object],
    sessions: Callable[[], Any] | None,
) -> list[Pause]:
    with no_pauses() as pauses:
        await maybe_await(replace(consumer, follow=False).run(apply, sessions=sessions))
    return pauses
