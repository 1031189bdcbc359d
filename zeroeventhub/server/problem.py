"""Answer with a problem document (RFC 9457): constant text, a request id, nothing of the input."""

import math
from typing import Any

import msgspec
from starlette.responses import Response

from zeroeventhub.errors import Trimmed, ZeroEventHubError
from zeroeventhub.protocol import FIRST

__all__ = ["FAILED", "problem"]

FAILED = 500
"""The status of what is the publisher's own fault, whose reason is nobody's business."""

_TITLES = {
    400: "The request is not one that this feed understands.",
    401: "The feed does not know who asks.",
    403: "This feed may not be read.",
    404: "There is no such feed.",
    409: "The token is not the feed's.",
    410: "What the cursor points at is no longer there.",
    429: "These are too many requests.",
    500: "The feed failed.",
    503: "The feed cannot answer just now.",
}
_OTHER = "The feed refused the request."


def problem(error: ZeroEventHubError, request_id: str) -> Response:
    """Turn an error into an answer.

    An error tells by its attributes what is to be answered: `status` and `problem`, and where it
    has them, `retry_after` and `challenge`. What has no status is a failure of the publisher's.

    Args:
        error: the error.
        request_id: the id by which the answer is found in the log.
    """
    status = getattr(error, "status", FAILED)
    kind, detail = getattr(error, "problem", "failed"), str(error)
    if status == FAILED:
        detail = "The reason is in the publisher's log."
    document: dict[str, Any] = {
        "type": f"urn:zeroeventhub:problem/{kind}",
        "title": _TITLES.get(status, _OTHER),
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
        headers=_headers(error),
    )


def _headers(error: ZeroEventHubError) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if hasattr(error, "status") and hasattr(error, "retry_after"):
        # Whole seconds, of which 0 would be an invitation to ask at once.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after or 1)))
    if hasattr(error, "challenge"):
        headers["WWW-Authenticate"] = error.challenge
    return headers
