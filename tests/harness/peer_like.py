"""What is known of the peers: a publisher that answers as the Go one does, and lists of defects.

The Go peer itself, built from its sources over the same events, ended every check as this one.
"""

import json

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
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
    "cursor-malformed",  # 500
    "partition-malformed",  # takes "+1"
    "pagesizehint-malformed",  # takes "-1"
    "pagesizehint-zero",  # taken for none
    "pagesizehint-huge",  # over 64 bits
    "methods",
    "last",  # one event comes
    "faults-order",
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


PARTITIONS = [{"id": "0"}, {"id": "1", "closed": True}, {"id": "2", "startsAfterPartition": 1}]


class RefusedError(Exception):
    """What the peer refuses, and with which status."""


def number(query, name, *, status=400):
    """Read a number as Go does: with a sign, and of 64 bits."""
    try:
        found = int(query[name])
    except (KeyError, ValueError):
        raise RefusedError("no number", status) from None
    if abs(found) >= 2**63:
        raise RefusedError("value out of range", status)
    return found


def write(query, name, partition=None):
    """Write events, each with its checkpoint, and nothing if there are none."""
    size = (number(query, "pagesizehint") if "pagesizehint" in query else 0) or 100
    places = {"_first": -100, "_last": EVENTS - 2}
    last = places[query[name]] if query[name] in places else number(query, name, status=500)
    named = {} if partition is None else {"partition": partition}
    lines = []
    for n in range(max(last + 1, 0), EVENTS)[: size if size > 0 else None]:
        lines.append(json.dumps({"data": {"Cursor": n, "Type": "Paid"}, **named}))
        lines.append(json.dumps({"cursor": str(n), **named}))
    return "".join(f"{line}\n" for line in lines)


def discover(query):
    """Answer with the partitions, or in the words of version 1."""
    if "n" not in query:
        document = {"token": TOKEN, "partitions": PARTITIONS, "exactlyOnce": False}
        return json.dumps(document) + "\n"
    asked = [each for each in range(len(PARTITIONS)) if f"cursor{each}" in query]
    if number(query, "n") != len(PARTITIONS) or len(asked) != 1:
        raise RefusedError("handshake error", 400)
    return write(query, f"cursor{asked[0]}", asked[0])


def events(query):
    """Answer with a page."""
    if query.get("token") != TOKEN:
        raise RefusedError("illegal token, please fetch new from discovery endpoint", 409)
    if number(query, "partition") not in {0, 1, 2} or "cursor" not in query:
        raise RefusedError("no such partition, or no cursor", 400)
    return write(query, "cursor")


def route(path, reply):
    """Answer as Go does: the first of what is there twice counts, and whatever comes is text."""

    def answer(request):
        try:
            return PlainTextResponse(reply(dict(reversed(request.query_params.multi_items()))))
        except RefusedError as refusal:
            message, status = refusal.args
            return PlainTextResponse(f"{message}\n", status)

    return Route(path, answer, methods=METHODS)


def go_like():
    """Make an application that answers as the Go peer does."""
    return Starlette(routes=[route("/testfeed", discover), route("/testfeed/events", events)])
