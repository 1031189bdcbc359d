"""What is known of the peers: a publisher that answers as the Go one does, and lists of defects.

The Go peer itself, built from its sources over the same events, ended every check as this one.
"""

import json

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

__all__ = ["EVENTS", "KNOWN_OF_GO", "KNOWN_OF_PYTHON", "go_like"]

EVENTS, TOKEN = 60, "the-token"
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


def go_like():  # noqa: C901 - one peer, whole
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
                json.dumps({"token": TOKEN, "partitions": partitions, "exactlyOnce": False}) + "\n"
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
        if query.get("token") != TOKEN:
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
