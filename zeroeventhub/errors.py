"""Every exception this library raises, in one tree.

ZeroEventHubError
├── ConfigurationError      what was asked for cannot work as it was written
│   └── MissingExtra        a package of an optional extra is not installed
├── FeedError               a feed refused the request
│   ├── BadRequest          the request is not one the protocol knows
│   │   └── BadCursor       the cursor is not one that this feed has given
│   ├── Unauthorized        the request has no credentials that the feed accepts
│   ├── Forbidden           the caller may not read this feed
│   ├── NotFound            there is no feed at this address
│   ├── TokenChanged        the partitions have changed: discover again
│   └── Gone                what the cursor points at is no longer there
│       ├── Trimmed         the cursor lies below the retained history
│       └── Diverged        the cursor belongs to a history the feed does not have
├── FeedFailure             the publisher cannot serve a row it holds
├── ProtocolError           a publisher sent what the protocol does not allow
│   └── PageTooLarge        a page or a line of it is longer than the client takes
├── TransientError          try again: nothing was lost
│   ├── Unavailable         the feed cannot answer just now
│   │   └── TooManyRequests the caller asks for more than its share
│   ├── Unreachable         the network or the server did not answer
│   ├── CutPage             a page ended before its checkpoint
│   └── StoreUnavailable    the caller's own database did not answer, or asked to try again
├── Conflict                another writer has appended to the key: nothing was appended
├── IdReused                an event of this id is there, and says something else
├── Fenced                  the cursor moved since the page was read: nothing was applied
│   └── LeaseLost           another process of this consumer reads the partition now
├── TooManyDeadLetters      a partition has as many dead letters as its consumer allows
└── Halted                  events could not be applied: their partition stands still

The same classes are raised by a feed in process and by a client over HTTP: a client turns
the problem document of an answer back into the exception that the publisher raised.
"""

from importlib.util import find_spec

__all__ = [
    "BadCursor",
    "BadRequest",
    "ConfigurationError",
    "Conflict",
    "CutPage",
    "Diverged",
    "FeedError",
    "FeedFailure",
    "Fenced",
    "Forbidden",
    "Gone",
    "Halted",
    "IdReused",
    "LeaseLost",
    "MissingExtra",
    "NotFound",
    "PageTooLarge",
    "ProtocolError",
    "StoreUnavailable",
    "TokenChanged",
    "TooManyDeadLetters",
    "TooManyRequests",
    "TransientError",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "ZeroEventHubError",
]


class ZeroEventHubError(Exception):
    """Catch everything that this library raises."""


class ConfigurationError(ZeroEventHubError):
    """Say that what was asked for cannot work as it was written."""


class MissingExtra(ConfigurationError, ImportError):  # noqa: N818 - named for what is missing
    """Say that a package of an optional extra is not installed."""


class FeedError(ZeroEventHubError):
    """Say that a feed refused the request.

    Attributes:
        status: the HTTP status of the answer.
        problem: the last segment of the problem document's type (RFC 9457).
    """

    status = 400
    problem = "refused"


class BadRequest(FeedError):  # noqa: N818 - the name of the HTTP status
    """Say that the request is not one the protocol knows."""

    problem = "bad-request"


class BadCursor(BadRequest):
    """Say that the cursor is not one that this feed has given."""

    problem = "bad-cursor"


class Unauthorized(FeedError):  # noqa: N818 - the name of the HTTP status
    """Say that the request has no credentials that the feed accepts.

    Attributes:
        message: what the feed said.
        challenge: how to say it: the answer's header WWW-Authenticate (RFC 9110).
    """

    status = 401
    problem = "unauthorized"

    def __init__(self, message: str, *, challenge: str = "Bearer", advice: str = "") -> None:
        super().__init__(f"{message}{advice}")
        self.message = message
        self.challenge = challenge


class Forbidden(FeedError):  # noqa: N818 - the name of the HTTP status
    """Say that the caller may not read this feed."""

    status = 403
    problem = "forbidden"


class NotFound(FeedError):  # noqa: N818 - the name of the HTTP status
    """Say that there is no feed at this address."""

    status = 404
    problem = "not-found"


class TokenChanged(FeedError):  # noqa: N818 - named for what happened
    """Say that the feed's partitions have changed, so the token no longer fits."""

    status = 409
    problem = "token-changed"


class Gone(FeedError):  # noqa: N818 - the name of the HTTP status
    """Say that what the cursor points at is no longer there."""

    status = 410
    problem = "gone"


class Trimmed(Gone):
    """Say that the cursor lies below the retained history.

    Attributes:
        earliest: the first cursor that can still be read from, where the feed said so.
    """

    problem = "trimmed"

    def __init__(self, message: str, *, earliest: str | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest


class Diverged(Gone):
    """Say that the cursor belongs to a history that the feed does not have."""

    problem = "diverged"


class FeedFailure(ZeroEventHubError):  # noqa: N818 - named for what happened
    """Say that the publisher cannot serve a row it holds."""


class ProtocolError(ZeroEventHubError):
    """Say that a publisher sent what the protocol does not allow."""


class PageTooLarge(ProtocolError):  # noqa: N818 - named for what happened
    """Say that a page, or a line of it, is longer than the client takes."""


class TransientError(ZeroEventHubError):
    """Say that trying again may help; nothing was lost."""

    retry_after: float | None = None
    """Seconds that the feed asked to be left alone, where it said so."""


class Unavailable(TransientError):  # noqa: N818 - the name of the HTTP status
    """Say that the feed cannot answer just now.

    Attributes:
        status: the HTTP status of the answer.
        problem: the last segment of the problem document's type (RFC 9457).
    """

    status = 503
    problem = "unavailable"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyRequests(Unavailable):
    """Say that the caller asks for more than its share."""

    status = 429
    problem = "too-many-requests"


class Unreachable(TransientError):  # noqa: N818 - named for what happened
    """Say that the network or the server did not answer."""


class CutPage(TransientError):  # noqa: N818 - named for what happened
    """Say that a page ended before its checkpoint."""


class StoreUnavailable(TransientError):  # noqa: N818 - named for what happened
    """Say that the caller's own database did not answer, or asked to try again."""


class Conflict(ZeroEventHubError):  # noqa: N818 - the field's word for a version that has moved
    """Say that a key has another version than was expected; nothing was appended.

    Attributes:
        key: the key.
        version: the version that it has: that of its last event, 0 where there is none.
    """

    def __init__(self, message: str, *, key: str | int, version: int) -> None:
        super().__init__(message)
        self.key = key
        self.version = version


class IdReused(ZeroEventHubError):  # noqa: N818 - named for what happened
    """Say that an event of this id is there, and says something else."""


class Fenced(ZeroEventHubError):  # noqa: N818 - the field's word for a refused commit
    """Say that the cursor moved since the page was read; nothing was applied."""


class LeaseLost(Fenced):
    """Say that another process of this consumer reads the partition now."""


class TooManyDeadLetters(ZeroEventHubError):  # noqa: N818 - named for what happened
    """Say that a partition has as many dead letters as its consumer allows."""


class Halted(ZeroEventHubError):  # noqa: N818 - named for what happened
    """Say that events could not be applied, so that their partition stands still.

    The error that applying them ended in is this one's `__cause__`.

    Attributes:
        partition: the partition that stands still.
    """

    def __init__(self, message: str, *, partition: int) -> None:
        super().__init__(message)
        self.partition = partition


def require(package: str, *, extra: str, user: str) -> None:
    """Raise MissingExtra unless a package can be imported.

    Args:
        package: the package's import name.
        extra: the extra of this distribution that installs it.
        user: what needs it, as the subject of the sentence that the reader will see.
    """
    if find_spec(package) is None:
        name = {"opentelemetry": "opentelemetry-api"}.get(package, package.replace("_", "-"))
        raise MissingExtra(
            f"{user} needs the package {package}: pip install {name} "
            f"(zeroeventhub's extra [{extra}] installs it with all that belongs to it)"
        )


def printable(text: str, *, keep: str = "", longest: int | None = None) -> str:
    """Return foreign text so that a terminal shows it, and it cannot leave its line.

    What cannot be printed is escaped: line ends, control characters of ASCII and of C1, and marks
    that turn the direction of writing.

    Args:
        text: the text.
        keep: characters that may stay, though they cannot be printed.
        longest: how many characters are shown, before what stands for the rest; None for all.
    """
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}…"
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )
