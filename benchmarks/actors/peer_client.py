"""Consume a feed with the published Python peer's client."""

import asyncio
import json
import resource
import sys
import time

import httpx

from zeroeventhub import FIRST_CURSOR, Client, Cursor

wanted = json.loads(sys.argv[1])


async def consume() -> int:
    """Fetch pages up to a number of events; return how many there were."""
    events, cursors = 0, [Cursor(0, FIRST_CURSOR)]
    async with httpx.AsyncClient() as session:
        client = Client(wanted["url"], 1, session)
        while events < wanted["events"]:
            async for one in client.fetch_events(cursors, wanted["limit"]):
                if isinstance(one, Cursor):
                    cursors = [one]
                else:
                    events += bool(one.data["id"])
    return events


def cpu() -> float:
    """Return the seconds of processors of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


print("{}", flush=True)  # noqa: T201 - it is ready
sys.stdin.readline()
began, taken = time.perf_counter(), cpu()
events = asyncio.run(consume())
found = {"events": events, "seconds": time.perf_counter() - began, "cpu": cpu() - taken}
print(json.dumps(found), flush=True)  # noqa: T201 - the answer
