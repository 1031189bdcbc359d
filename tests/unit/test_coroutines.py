"""Coroutines that block: run to their end in a plain thread."""

import asyncio

import pytest

from zeroeventhub.coroutines import blocking, settled


def test_coroutine_that_never_suspends_is_run_to_its_end():
    """What a sync client returns is taken as it is, and the coroutine's result is returned."""

    async def doubled():
        return 2 * await settled(21)

    assert blocking(doubled()) == 42


def test_coroutine_that_suspends_is_refused():
    """What waits for an event loop is closed, not left half done."""
    ended = []

    async def suspending():
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="has suspended"):
        blocking(suspending())
    assert ended == [True]
