"""One request that finds a result for all that wait for it, whoever leaves."""

import anyio
import pytest

from zeroeventhub.server.long_poll import SingleFlight


@pytest.mark.anyio
async def test_result_is_found_by_the_next_when_those_before_leave_in_the_same_moment():
    """A request that leaves just as it is to find the result leaves that to the next one."""
    scopes = [anyio.CancelScope() for _ in range(3)]
    found, tries = [], []

    async def find(_):
        tries.append(None)
        if len(tries) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                scopes[1].cancel()
        return "the result"

    flight = SingleFlight(find)

    async def ask(scope):
        with scope:
            found.append(await flight.result())

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for scope in scopes:
                group.start_soon(ask, scope)
                await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
    assert found == [("the result", True)]
