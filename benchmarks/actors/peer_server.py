"""Publish a table with the published Python peer, on a port that is said."""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from zeroeventhub import FIRST_CURSOR, Cursor, ZeroEventHubFastApiHandler

wanted = json.loads(sys.argv[1])
connection = psycopg.connect(wanted["database"], autocommit=True)
rows = f"SELECT id, data FROM {wanted['table']} WHERE id > %s ORDER BY id LIMIT %s"  # noqa: S608


class Reader:
    """Read the table, as the peer's documentation shows."""

    def get_data(
        self, cursors: Sequence[Cursor], _headers: object, page_size: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a page, and its cursor."""
        for cursor in cursors:
            place = 0 if cursor.cursor == FIRST_CURSOR else int(cursor.cursor)
            partition = cursor.partition_id
            for found, data in connection.execute(rows, [place, page_size]):
                place = found
                yield {"partition": partition, "headers": None, "data": data}
            yield {"partition": partition, "headers": None, "data": data}
            yield {"partition": partition, "cursor": str(place)}


app = FastAPI()


@app.get("/feed/v1")
async def feed(request: Request) -> StreamingResponse:
    """Answer as the peer's documentation shows."""
    return ZeroEventHubFastApiHandler(Reader(), 1).handle(request)


with socket.create_server(("127.0.0.1", 0)) as listening:
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)  # noqa: T201 - the answer
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
