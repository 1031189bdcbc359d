"""Publish numbers with the peer's handler, on a port that is printed."""

import socket

import uvicorn
from fastapi import FastAPI, Request
from zeroeventhub import FIRST_CURSOR, ZeroEventHubFastApiHandler

PARTITIONS = 2
EVENTS = 25


class Numbers:
    """Read numbers: events 0 to 24 in each partition."""

    def get_data(self, cursors, headers, page_size):
        """Yield a page of each cursor's partition."""
        for cursor in cursors:
            place = 0 if cursor.cursor == FIRST_CURSOR else int(cursor.cursor)
            end = min(place + (page_size or 10), EVENTS)
            for number in range(place, end):
                yield {
                    "partition": cursor.partition_id,
                    "headers": {"h": str(number)} if headers else None,
                    "data": {"n": number, "text": "line\u2028break"},
                }
            yield {"partition": cursor.partition_id, "cursor": str(end)}


app = FastAPI()


@app.get("/feed/v1")
async def feed(request: Request):
    """Answer as the peer's documentation shows."""
    return ZeroEventHubFastApiHandler(Numbers(), PARTITIONS).handle(request)


with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
