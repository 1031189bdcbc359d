"""What is known of the peers: a publisher that answers as the Go one does, and lists of defects.

The Go peer itself, built from its sources over the same events, ended every check as this one.
"""

import json

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

__all__ = ["FLAWED_SERVER", "KNOWN_OF_GO", "KNOWN_OF_PYTHON", "go_like"]

EVENTS = 60
METHODS = ["GET", "HEAD", "PROPFIND"]  # whatever comes is answered

KNOWN_OF_GO = {
    "discovery-media-type",  # sniffed as text/plain
    "page-media-type",
    "layout-ids",  # startsAfterPartition is a JSON number
    "token-missing",  # 409 in place of 400
    "parameters-twice",  # the first one counts
    "page-checkpoint",  # nothing at all at the head
    "head",
    "cursor-malformed",  # 500
    "partition-malformed",  # takes "+1"
    "pagesizehint-malformed",  # takes "-1"
    "pagesizehint-zero",  # taken for none
    "pagesizehint-huge",  # over 64 bits
    "methods",
    "last",  # one event comes
    "faults-order",
    "event-types-both",  # skip-event-types is not known
    "problem-documents",  # text/plain
    "server-errors",
    "caching-no-store",
    "v1-several-cursors",  # removed
}
"""Checks that the Go peer fails."""

KNOWN_OF_PYTHON = {
    "v1-pagesizehint-zero",  # a 200 without a checkpoint
    "v1-pagesizehint-malformed",  # -1 reaches the reader
    "v1-lines-strict",  # NaN is sent
    "v1-parameters-twice",  # the last one counts
    "v1-cursor-malformed",  # the reader's error cuts a 200
    "v1-problem-documents",
    "v1-caching-no-store",
}
"""Checks that the Python peer fails."""


def go_like(token_at_start="the-token", token_now="the-token"):  # noqa: C901 - one peer, whole
    """Make an application that answers as the Go peer does."""
    partitions = [
        {"id": "0"},
        {"id": "1", "closed": True},
        {"id": "2", "startsAfterPartition": 1},
    ]

    def text(body, status=200):
        # A body without a type is sniffed, and NDJSON looks like text.
        return PlainTextResponse(body, status)

    def error(message, status):
        return PlainTextResponse(f"{message}\n", status, {"X-Content-Type-Options": "nosniff"})

    def write(cursor, size, partition=None):
        """Write events, each with its checkpoint, and nothing if there are none."""
        if cursor == "_first":
            last = -100
        elif cursor == "_last":
            last = EVENTS - 2
        else:
            try:
                last = int(cursor)
            except ValueError:
                return error("Internal server error", 500)
        lines = []
        named = {} if partition is None else {"partition": partition}
        for number in range(max(last + 1, 0), EVENTS)[: size if size > 0 else None]:
            lines.append(json.dumps({"data": {"Cursor": number, "Type": "Paid"}, **named}))
            lines.append(json.dumps({"cursor": str(number), **named}))
        return text("".join(f"{line}\n" for line in lines))

    def size_of(query):
        size = int(query.get("pagesizehint", "0"))
        if abs(size) >= 2**63:
            raise ValueError("value out of range")
        return size or 100

    def first(request):
        """Keep the first of what is there more than once."""
        return dict(reversed(request.query_params.multi_items()))

    def discover(request):
        query = first(request)
        if "n" not in query:
            return text(
                json.dumps({"token": token_now, "partitions": partitions, "exactlyOnce": False})
                + "\n"
            )
        try:
            if int(query["n"]) != len(partitions):
                return error("handshake error: partition count mismatch", 400)
            size = size_of(query)
        except ValueError as refusal:
            return error(str(refusal), 400)
        asked = [number for number in range(len(partitions)) if f"cursor{number}" in query]
        if len(asked) != 1:
            return error("one cursor, please", 400)
        return write(query[f"cursor{asked[0]}"], size, asked[0])

    def events(request):
        query = first(request)
        if query.get("token") != token_at_start:
            return error("illegal token, please fetch new from discovery endpoint", 409)
        try:
            partition = int(query.get("partition", ""))
        except ValueError as refusal:
            return error(str(refusal), 400)
        if partition not in {0, 1, 2}:
            return error("partition doesn't exist", 400)
        try:
            size = size_of(query)
        except ValueError:
            return error("pagesizehint not an integer", 400)
        if "cursor" not in query:
            return error("no cursor argument", 400)
        return write(query["cursor"], size)

    async def missing(request, exception):
        return Response(status_code=404)

    return Starlette(
        routes=[
            Route("/testfeed", discover, methods=METHODS),
            Route("/testfeed/events", events, methods=METHODS),
        ],
        exception_handlers={404: missing},
    )


FLAWED_SERVER = '''
import socket

import uvicorn
from fastapi import FastAPI, Request
from zeroeventhub import FIRST_CURSOR, LAST_CURSOR, ZeroEventHubFastApiHandler

EVENTS = 25


class Numbers:
    """Read numbers, as a reader does that trusts what its handler lets through."""

    def get_data(self, cursors, headers, page_size):
        for cursor in cursors:
            places = {FIRST_CURSOR: 0, LAST_CURSOR: EVENTS}
            place = places[cursor.cursor] if cursor.cursor in places else int(cursor.cursor)
            size = 10 if page_size is None else page_size
            sent = 0
            for number in range(place, EVENTS):
                if sent == size:
                    break
                sent += 1
                yield {
                    "partition": cursor.partition_id,
                    "headers": {"h": str(number)} if headers else None,
                    "data": {"n": number, "value": float("nan") if number == 3 else 1.5},
                }
            if size:
                yield {"partition": cursor.partition_id, "cursor": str(place + sent)}


app = FastAPI()


@app.get("/feed/v1")
async def feed(request: Request):
    return ZeroEventHubFastApiHandler(Numbers(), 2).handle(request)


with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])
'''
"""A script that publishes with the Python peer's handler, and with a reader that trusts it."""
