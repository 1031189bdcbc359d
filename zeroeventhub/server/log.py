"""What a feed says of its problems to the log: everything once, and nobody's secrets."""

import logging
import re

from starlette.requests import Request

from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.server.causes import cause_of, describe
from zeroeventhub.server.incidents import Incidents
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.problem import FAILED

__all__ = ["Log"]

_log = logging.getLogger("zeroeventhub.server")

_LEVELS = {
    401: logging.INFO,
    403: logging.INFO,
    410: logging.INFO,
    429: logging.INFO,
    503: logging.WARNING,
}
"""How loud a problem is by its status; what a reader can mend alone is for debugging."""

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Log:
    """Tell of the problems of one feed.

    Args:
        feed: the name of the feed's routes.
    """

    def __init__(self, feed: str) -> None:
        self._feed = feed
        self._failures = Incidents()
        self._refusals = Incidents()

    def answered(self) -> None:
        """Note that the feed works: a failure that comes from now on is another one."""
        self._failures.over()

    def failed(
        self,
        error: ZeroEventHubError,
        *,
        route: str,
        request: Request,
        principal: Principal,
        request_id: str,
    ) -> None:
        """Tell of a problem, unless it is one of many.

        Args:
            error: what it is.
            route: which route answers.
            request: what was asked.
            principal: who asked.
            request_id: the id that the answer has.
        """
        status = getattr(error, "status", FAILED)
        kind = getattr(error, "problem", "failed")
        level = _LEVELS.get(status, logging.ERROR if status >= FAILED else logging.DEBUG)
        times: int | None = 1
        if status >= FAILED:
            times = self._failures.happened((status, cause_of(error)))
        elif level > logging.DEBUG:
            times = self._refusals.happened((status, kind, principal.name))
        if times is None or not _log.isEnabledFor(level):
            return
        theirs = request.headers.get("x-request-id", "")
        told = {
            "feed": self._feed,
            "route": route,
            "request_id": request_id,
            "x_request_id": theirs if _SAFE.fullmatch(theirs) else None,
            "principal": principal.name,
            "status": status,
            "problem": kind,
            "times": times,
        }
        words = [f"{name}={value}" for name, value in told.items() if value not in {None, ""}]
        # What a reader did wrong is said to the reader; a hook's words may repeat a token.
        reason = f"\n{describe(error)}" if status >= FAILED else ""
        _log.log(
            level,
            "A request was answered with a problem: %s%s",
            " ".join(words),
            reason,
            extra=told,
        )
