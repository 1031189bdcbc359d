"""The exceptions of this library, in one tree.

ZeroEventHubError
├── ConfigurationError      an option or argument cannot work
│   └── MissingExtra        a package of an optional extra is not installed
├── FeedError               a feed refused the request
│   ├── BadRequest          the protocol has no such request
│   │   └── BadCursor       the feed has not given the cursor
│   ├── Unauthorized        the request has no credentials that the feed accepts
│   ├── Forbidden           the caller may not read this feed
│   ├── NotFound            there is no feed at this address
│   ├── TooLarge            an event or a batch to append is too large
│   ├── UnsupportedMediaType  the feed does not read bodies of this form
│   ├── InvalidEvent        an event to append does not fit the schema of its type
│   ├── OutOfSequence       a producer's batch is not the next one, nor the last one again
│   ├── TokenChanged        the partitions have changed: repeat discovery
│   └── Gone                the feed no longer has the events after the cursor
│       ├── Trimmed         the cursor lies below the retained history
│       └── Diverged        the cursor belongs to another history than the feed's
├── FeedFailure             the publisher cannot serve a row of its table
├── ProtocolError           a publisher broke the protocol
│   └── PageTooLarge        a page or a line of it is longer than the client's limits
├── TransientError          nothing was lost: try again
│   ├── Unavailable         the feed cannot answer at the moment
│   │   ├── TooManyRequests the caller sends more requests than its quota
│   │   └── StorageFull     the log's database has no room left
│   ├── Unreachable         the network or the server did not answer
│   ├── CutPage             a page ended before its checkpoint
│   └── StoreUnavailable    the caller's own database did not answer, or asked for a retry
├── Conflict                the key has another version: nothing was appended or saved
├── IdReused                the log has another event with this id
├── NotAppended             an appender handed over events that the log did not take
├── Fenced                  the cursor moved since the page was read: nothing was applied
│   └── LeaseLost           another process of this consumer now reads the partition
├── TooManyDeadLetters      a partition has as many dead letters as its consumer allows
└── Halted                  the consumer cannot apply an event: its partition stopped

A feed in process and a client over HTTP raise the same classes: a client turns the problem document
of an answer back into the exception that the publisher raised.
"""

from importlib.util import find_spec


class ZeroEventHubError(Exception):
    """Catch everything that this library raises.

    Attributes:
        status: the HTTP status of the answer by which a feed reports it; 500 for its own failures.
        problem: the last segment of the problem document's type (RFC 9457).
        shown: what a feed that relays another one tells its own readers, of a refusal that a client
            has met; empty for the whole text.
    """

    status: int = 500
    problem: str = "failed"
    shown: str = ""


class ConfigurationError(ZeroEventHubError):
    """Say that an option or argument cannot work.

    Attributes:
        option: its name; empty if the error is about several, or about none alone.
    """

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class MissingExtra(ConfigurationError, ImportError):
    """Say that a package of an optional extra is not installed."""


class FeedError(ZeroEventHubError):
    """Say that a feed refused the request."""

    status = 400
    problem = "refused"


class BadRequest(FeedError):
    """Say that the protocol has no such request."""

    problem = "bad-request"


class BadCursor(BadRequest):
    """Say that the feed has not given the cursor."""

    problem = "bad-cursor"


class Unauthorized(FeedError):
    """Say that the request has no credentials that the feed accepts.

    Attributes:
        message: the feed's own text.
        challenge: the answer's header WWW-Authenticate (RFC 9110).
    """

    status = 401
    problem = "unauthorized"

    def __init__(self, message: str, *, challenge: str = "Bearer", advice: str = "") -> None:
        super().__init__(f"{message}{advice}")
        self.message = message
        self.challenge = challenge


class Forbidden(FeedError):
    """Say that the caller may not read this feed."""

    status = 403
    problem = "forbidden"


class NotFound(FeedError):
    """Say that there is no feed at this address."""

    status = 404
    problem = "not-found"


class TokenChanged(FeedError):
    """Say that the feed's partitions have changed, so the token no longer fits."""

    status = 409
    problem = "token-changed"


class Gone(FeedError):
    """Say that the feed no longer has the events after the cursor."""

    status = 410
    problem = "gone"


class Trimmed(Gone):
    """Say that the cursor lies below the retained history.

    Attributes:
        earliest: the first cursor of the retained events; None if the feed did not send it.
    """

    problem = "trimmed"

    def __init__(self, message: str, *, earliest: str | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest


class Diverged(Gone):
    """Say that the cursor belongs to another history than the feed's."""

    problem = "diverged"


class TooLarge(FeedError):
    """Say that an event or a batch to append is larger than the feed accepts."""

    status = 413
    problem = "too-large"


class UnsupportedMediaType(FeedError):
    """Say that the feed does not read bodies of this media type or content coding."""

    status = 415
    problem = "unsupported-media-type"


class InvalidEvent(FeedError):
    """Say that an event to append does not fit the schema of its type; nothing was appended.

    Attributes:
        path: the JSON path of what is wrong, in the batch.
    """

    status = 422
    problem = "invalid-event"

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class OutOfSequence(FeedError):
    """Say that a producer's batch is neither the next one nor the last one again.

    Attributes:
        sequence: the number of the producer's last batch; 0 without one.
    """

    status = 409
    problem = "out-of-sequence"

    def __init__(self, message: str, *, sequence: int) -> None:
        super().__init__(message)
        self.sequence = sequence


class FeedFailure(ZeroEventHubError):
    """Say that the publisher cannot serve a row of its table."""


class ProtocolError(ZeroEventHubError):
    """Say that a publisher broke the protocol."""


class PageTooLarge(ProtocolError):
    """Say that a page, or a line of it, is longer than the client's limits."""


class TransientError(ZeroEventHubError):
    """Say that a retry may help; nothing was lost."""

    retry_after: float | None
    """Seconds to wait before the retry; None if the feed did not send them."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(TransientError):
    """Say that the feed cannot answer at the moment."""

    status = 503
    problem = "unavailable"


class TooManyRequests(Unavailable):
    """Say that the caller sends more requests than its quota."""

    status = 429
    problem = "too-many-requests"


class StorageFull(Unavailable):
    """Say that the log's database has no room left; nothing was appended."""

    status = 507
    problem = "storage-full"


class Unreachable(TransientError):
    """Say that the network or the server did not answer."""


class CutPage(TransientError):
    """Say that a page ended before its checkpoint."""


class StoreUnavailable(TransientError):
    """Say that the caller's own database did not answer, or asked for a retry."""


class Conflict(ZeroEventHubError):
    """Say that a key has another version than was expected; nothing was appended or saved.

    Attributes:
        key: the key.
        version: the version of its last event; 0 for a key without events.
    """

    status = 409
    problem = "conflict"

    def __init__(self, message: str, *, key: str | int, version: int) -> None:
        super().__init__(message)
        self.key = key
        self.version = version


class IdReused(ZeroEventHubError):
    """Say that the log has another event with this id."""

    status = 409
    problem = "id-reused"


class NotAppended(ZeroEventHubError):
    """Say that an appender handed over events that the log did not take.

    Attributes:
        errors: why, by the id of each of these events, in their order.
    """

    def __init__(self, message: str, *, errors: dict[str, Exception]) -> None:
        super().__init__(message)
        self.errors = errors


class Fenced(ZeroEventHubError):
    """Say that the cursor moved since the page was read; nothing was applied."""


class LeaseLost(Fenced):
    """Say that another process of this consumer now reads the partition."""


class TooManyDeadLetters(ZeroEventHubError):
    """Say that a partition has as many dead letters as its consumer allows."""


class Halted(ZeroEventHubError):
    """Say that a partition stopped, because the consumer cannot apply an event.

    Its `__cause__` is the error of the application.

    Attributes:
        partition: the partition that stopped.
        epoch: that of the cursor at which it stopped; where the cursor's is higher, it was moved.
    """

    def __init__(self, message: str, *, partition: int, epoch: int = 0) -> None:
        super().__init__(message)
        self.partition = partition
        self.epoch = epoch


def require(package: str, *, extra: str, user: str) -> None:
    """Raise MissingExtra unless a package can be imported.

    Args:
        package: the package's import name.
        extra: the extra of this distribution that installs it.
        user: the subject of the error's sentence: the part of the library that needs it.
    """
    if find_spec(package) is None:
        name = {"opentelemetry": "opentelemetry-api"}.get(package, package.replace("_", "-"))
        raise MissingExtra(
            f"{user} needs the package {package}: pip install {name} "
            f"(zeroeventhub's extra [{extra}] installs it with all that belongs to it)"
        )


def printable(text: str, *, keep: str = "", longest: int | None = None) -> str:
    """Escape what is not printable in foreign text: it cannot leave its line in a terminal.

    Line ends, control characters of ASCII and C1, and marks of writing direction are escaped.

    Args:
        text: the text.
        keep: characters that are not printable, and not escaped.
        longest: the most characters to show, before an ellipsis; None for all.
    """
    if longest is not None and len(text) > longest:
        text = f"{text[:longest]}…"
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode()
        for one in text
    )
