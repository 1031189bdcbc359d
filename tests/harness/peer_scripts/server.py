"""Publish numbers with the peer's handler, on a port that is printed.

With the argument "trusting", its reader trusts what the handler lets through, and sends NaN.
"""

import socket
import sys

import uvicorn
from fastapi import FastAPI, Request
from zeroeventhub import FIRST_CURSOR, LAST_CURSOR, ZeroEventHubFastApiHandler

PARTITIONS = 2
EVENTS = 25
TRUSTING = "trusting" in sys.argv


class Numbers:
    """Read numbers: events 0 to 24 in each partition."""

    def get_data(self, cursors, headers, page_size):
        """Yield a page of each cursor's partition."""
        size = (10 if page_size is None else page_size) if TRUSTING else page_size or 10
        for cursor in cursors:
            places = {FIRST_CURSOR: 0, LAST_CURSOR: EVENTS}
            place = places[cursor.cursor] if cursor.cursor in places else int(cursor.cursor)
            # A size below nothing brings all that there is, and none brings nothing at all.
            end = EVENTS if size < 0 else min(place + size, EVENTS)
            for number in range(place, end):
                odd = {"value": float("nan")} if TRUSTING and number == 3 else {}
                yield {
                    "partition": cursor.partition_id,
                    "headers": {"h": str(number)} if headers else None,
                    "data": {"n": number, "text": "line\u2028break", **odd},
                }
            if size:
                yield {"partition": cursor.partition_id, "cursor": str(end)}


app = FastAPI()


@app.get("/feed/v1")
async def feed(request: Request):
    """Answer as the peer's documentation shows."""
    return ZeroEventHubFastApiHandler(Numbers(), PARTITIONS).handle(request)


with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])
