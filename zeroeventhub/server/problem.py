"""Answer with a problem document (RFC 9457): constant text, a request id, nothing of the input."""

import logging
from typing import Any
from uuid import uuid4

import msgspec
from starlette.responses import Response

from zeroeventhub.errors import FeedError, Trimmed, Unavailable, ZeroEventHubError
from zeroeventhub.protocol import FIRST

__all__ = ["problem"]

_log = logging.getLogger("zeroeventhub.server")

_TITLES = {
    400: "The request is not one that this feed understands.",
    403: "This feed may not be read.",
    404: "There is no such feed.",
    409: "The feed's partitions have changed.",
    410: "What the cursor points at is no longer there.",
    500: "The feed failed.",
    503: "The feed cannot answer just now.",
}


def problem(error: ZeroEventHubError) -> Response:
    """Turn an error into an answer; what only the operator may know goes to the log."""
    request_id = str(uuid4())
    headers = {"Cache-Control": "no-store"}
    match error:
        case FeedError():
            status, kind, detail = error.status, error.problem, str(error)
        case Unavailable():
            status, kind, detail = 503, "unavailable", str(error)
            headers["Retry-After"] = str(round(error.retry_after or 1))
            _log.warning("request %s: %s", request_id, error, exc_info=error.__cause__)
        case _:
            status, kind, detail = 500, "failed", "The reason is in the publisher's log."
            _log.error("request %s: %s", request_id, error, exc_info=error)
    document: dict[str, Any] = {
        "type": f"urn:zeroeventhub:problem/{kind}",
        "title": _TITLES[status],
        "status": status,
        "detail": detail,
        "instance": f"urn:uuid:{request_id}",
    }
    if isinstance(error, Trimmed):
        document["earliestCursor"] = error.earliest or FIRST
    return Response(
        msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n",
        status_code=status,
        media_type="application/problem+json",
        headers=headers,
    )
