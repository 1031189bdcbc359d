"""One request finds a result for all requests that wait for it, and another one if it leaves."""

import anyio
import pytest

from zeroeventhub.server.long_poll import SingleFlight


@pytest.mark.anyio
async def test_result_is_found_for_those_that_stay_when_others_leave_one_after_the_other():
    """A request that leaves, at whatever moment, leaves it to the next one to find the result."""

    async def find(_):
        nonlocal tries
        tries += 1
        if tries == 1:
            await anyio.sleep_forever()
        return "the result"

    async def ask(scope):
        with scope:
            found.append((await flight.result())[0])

    for count in range(20):
        scopes, found, tries = [anyio.CancelScope() for _ in range(3)], [], 0
        flight = SingleFlight(find)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for scope in scopes:
                    group.start_soon(ask, scope)
                    await anyio.wait_all_tasks_blocked()
                scopes[0].cancel()
                for _ in range(count):
                    await anyio.lowlevel.checkpoint()
                scopes[1].cancel()
        assert found in (["the result"], ["the result"] * 2)
