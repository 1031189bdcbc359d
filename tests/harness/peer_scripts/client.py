"""Drain a feed with the peer's client; print data, headers and cursors as JSON lines."""

import asyncio
import json
import sys

import httpx
from zeroeventhub import FIRST_CURSOR, Client, Cursor, PageEventReceiver, receive_events


async def drain(url: str, partitions: int) -> None:
    """Fetch pages of all partitions at once until nothing new comes."""
    cursors = [Cursor(partition, FIRST_CURSOR) for partition in range(partitions)]
    async with httpx.AsyncClient() as session:
        client = Client(url, partitions, session)
        while True:
            page = PageEventReceiver()
            await receive_events(page, client.fetch_events(cursors, 7, ["_all"]))
            for event in page.events:
                print(json.dumps([event.partition_id, event.headers, event.data]))  # noqa: T201
            if not page.events:
                return
            cursors = page.latest_checkpoints


asyncio.run(drain(sys.argv[1], int(sys.argv[2])))
