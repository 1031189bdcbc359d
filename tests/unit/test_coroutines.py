"""Coroutines that block: run to their end in a plain thread."""

import asyncio

import pytest

from zeroeventhub.coroutines import blocking, maybe_await


def test_coroutine_is_run_to_its_end_unless_it_suspends():
    """A coroutine's result is returned; one that waits for an event loop is closed."""
    ended = []

    async def doubled():
        return 2 * await maybe_await(21)

    async def suspending():
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    assert blocking(doubled()) == 42
    with pytest.raises(RuntimeError, match="has suspended"):
        blocking(suspending())
    assert ended == [True]
