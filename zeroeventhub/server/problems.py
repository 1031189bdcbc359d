"""Problems of a feed: the answer to the reader and the record in the log, both without secrets."""

import errno
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

from starlette.responses import Response

from zeroeventhub.errors import (
    ConfigurationError,
    Conflict,
    InvalidEvent,
    OutOfSequence,
    Trimmed,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.protocol import FIRST
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.wire.documents import encode_document

FAILED = 500
"""The status of a failure of the publisher, whose reason is for its log alone."""

_TITLES = {
    400: "The request is not one that this feed understands.",
    401: "The request has no credentials that the feed accepts.",
    403: "This feed does not allow it.",
    404: "There is no such feed.",
    409: "The request does not fit what the feed has now.",
    410: "What the cursor points at is no longer there.",
    413: "This is more than the feed takes at once.",
    415: "The feed does not read bodies of this form.",
    422: "An event does not fit the schema of its type.",
    429: "These are too many requests.",
    500: "The feed failed.",
    503: "The feed cannot answer just now.",
    507: "The feed has no room for more events.",
}


_is_page = re.compile(r'https?://[!-"$-~]{1,500}').fullmatch
"""Match an address without an anchor; with that of a kind it fits what clients show."""


def check_help(help_url: str) -> None:
    """Refuse a page of errors that people could not open."""
    if help_url and not _is_page(help_url):
        raise ConfigurationError(
            "help_url is the address of a page: it starts with http:// or https://, and has up to "
            "500 characters of ASCII without spaces and #.",
            "help_url",
        )


def problem(error: ZeroEventHubError, request_id: str, help_url: str = "") -> Response:
    """Return the answer that reports an error.

    The answer follows from the error's class, and its attributes `status`, `problem` and
    `challenge`. The log has a record with the request's id; the page of errors has an anchor for
    each kind.
    """
    status, kind, detail = error.status, error.problem, error.shown or str(error)
    if status == FAILED:
        detail = "The feed failed: the reason is in the publisher's log."
    document: dict[str, Any] = {
        "type": f"urn:zeroeventhub:problem/{kind}",
        "title": _TITLES.get(status, "The feed refused the request."),
        "status": status,
        "detail": detail,
        "instance": f"urn:uuid:{request_id}",
    }
    if help_url:
        document["help"] = f"{help_url}#{kind}"
    match error:
        case Trimmed():
            document["earliestCursor"] = error.earliest or FIRST
        case Conflict():
            document |= {"key": error.key, "version": error.version}
        case OutOfSequence():
            document["sequence"] = error.sequence
        case InvalidEvent():
            document["path"] = error.path
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unavailable):
        # Whole seconds; 0 would invite the client to retry at once.
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after or 1)))
    if hasattr(error, "challenge"):
        headers["WWW-Authenticate"] = error.challenge
    body, media_type = encode_document(document), "application/problem+json"
    return Response(body, status_code=status, media_type=media_type, headers=headers)


MOST_LINKS = 10
"""How many errors of a chain the log describes."""

MOST_PLACES = 20
"""How many places of an error the log names: the innermost ones."""

_CODE = re.compile(r"[0-9A-Z_]{1,40}")
_OF_DRIVERS = {"DatabaseError", "InterfaceError"}


def describe(error: BaseException) -> str:
    """Describe an error and what it was raised from, with their places, in lines of text."""
    lines: list[str] = []
    for link in _chain(error):
        code, text = _code(link), ""
        if isinstance(link, ZeroEventHubError):
            # Without the texts of other packages' errors, which it may repeat.
            text = f": {link}"
            for cause in _chain(link)[1:]:
                if not isinstance(cause, ZeroEventHubError) and (theirs := _text(cause)):
                    text = text.replace(theirs, type(cause).__name__)
        reason = "because of " if lines else ""
        lines.append(f"{reason}{_name(link)}{f' ({code})' if code else ''}{text}")
        lines += [f"    {file}:{line} in {name}" for file, line, name in _places(link)]
    return "\n".join(lines)


def _chain(error: BaseException) -> list[BaseException]:
    """Follow an error to what it was raised from, through groups as well."""
    found: list[BaseException] = []
    ahead = [error]
    while ahead and len(found) < MOST_LINKS:
        link = ahead.pop()
        if any(link is known for known in found):
            continue
        found.append(link)
        origin = link.__cause__
        if origin is None and not link.__suppress_context__:
            origin = link.__context__
        if origin is not None:
            ahead.append(origin)
        if isinstance(link, BaseExceptionGroup):
            ahead += reversed(link.exceptions)
    return found


def _text(error: BaseException) -> str:
    """Return the text of another package's error; an empty one if it has none that can be made."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a class of the host's may raise anything
        return ""


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _code(error: BaseException) -> str:
    """Return the code that a driver or the system gives an error, if it has one."""
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, "")
    code = getattr(error, "sqlstate", None) or getattr(error, "sqlite_errorname", None)
    # A driver without such attributes gives its number first (PEP 249 names the exceptions).
    if code is None and _OF_DRIVERS & {kind.__name__ for kind in type(error).__mro__}:
        code = str(error.args[0]) if error.args and isinstance(error.args[0], int) else None
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _places(error: BaseException) -> list[tuple[str, int, str]]:
    return [
        (frame.f_code.co_filename, line, frame.f_code.co_qualname)
        for frame, line in walk_tb(error.__traceback__)
    ][-MOST_PLACES:]


MOST = 100
"""How many causes are counted; the least recent one is dropped."""

AGAIN = 300.0
"""Seconds after which a cause that persists is logged again."""

PAUSE = 10.0
"""Minimum seconds between two log records of a cause, if only some requests fail."""


@dataclass
class _Incident:
    logged_at: float
    ended: bool = False
    unlogged: int = 0


class LogThrottle(OrderedDict[Hashable, _Incident]):
    """Count what happens by its cause, and decide when to log it."""

    def count(self, cause: Hashable) -> int | None:
        """Count a cause; return how often it has occurred since it was last logged.

        Return None if it is not to be logged now: it is logged when it first occurs, when it
        returns after it was over, and every `AGAIN`.
        """
        now = time.monotonic()
        incident = self.get(cause)
        if incident is None:
            self[cause] = _Incident(now)
            if len(self) > MOST:
                self.popitem(last=False)
            return 1
        self.move_to_end(cause)
        incident.unlogged += 1
        if now - incident.logged_at < (PAUSE if incident.ended else AGAIN):
            return None
        self[cause] = _Incident(now)
        return incident.unlogged

    def over(self) -> None:
        """Record that what failed works again."""
        for incident in self.values():
            incident.ended = True


_log = logging.getLogger("zeroeventhub.server")

_LEVELS = {
    401: logging.INFO,
    403: logging.INFO,
    410: logging.INFO,
    429: logging.INFO,
    503: logging.WARNING,
}
"""The log level of a problem by its status; DEBUG for a problem that the reader can correct."""

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass
class Log:
    """Log the problems of one feed."""

    _feed: str  # the name of its routes
    # Those of the publisher; call `over` when the feed works.
    failures: LogThrottle = field(default_factory=LogThrottle)
    _refusals: LogThrottle = field(default_factory=LogThrottle)

    def failed(
        self, error: ZeroEventHubError, *, route: str, request: FeedRequest, request_id: str
    ) -> None:
        """Log the problem that answered a request, unless its cause was logged recently."""
        status, kind = error.status, error.problem
        level = _LEVELS.get(status, logging.ERROR if status >= FAILED else logging.DEBUG)
        times: int | None = 1
        if status >= FAILED:
            # Equal for all errors of one cause, though their texts may differ.
            cause = tuple((_name(link), _code(link), *_places(link)[-1:]) for link in _chain(error))
            times = self.failures.count((status, cause))
        elif level > logging.DEBUG:
            times = self._refusals.count((status, kind, request.principal.name))
        if times is None or not _log.isEnabledFor(level):
            return
        theirs = request.headers.get("x-request-id", "")
        fields = {
            "feed": self._feed,
            "route": route,
            "request_id": request_id,
            "x_request_id": theirs if _SAFE.fullmatch(theirs) else None,
            "principal": request.principal.name,
            "status": status,
            "problem": kind,
            "times": times,
        }
        words = [f"{name}={value}" for name, value in fields.items() if value not in {None, ""}]
        # The reader's own mistakes are reported to it alone; a hook's text may repeat a token.
        reason = f"\n{describe(error)}" if status >= FAILED else ""
        text = "A request was answered with a problem: %s%s"
        _log.log(level, text, " ".join(words), reason, extra=fields)
