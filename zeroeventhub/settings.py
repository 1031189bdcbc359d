"""Bounds: of what a client accepts from a feed, and of what a feed uses of its process."""

import math
from collections.abc import Container
from dataclasses import dataclass, fields

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bound what a client accepts from a feed.

    A page that breaks a bound after a checkpoint ends at that checkpoint. Without a checkpoint, a
    bound of time is a transient error, and a bound of size a final one.

    Example:
        limits = Limits(page_events=1_000, seconds=10)
        client = Client("https://shop.example/orders", http, limits=limits)

    Attributes:
        seconds: the longest time for a whole answer, in addition to a requested `wait`.
        bytes_per_second: the least average rate of a body; 0 for none.
        grace: seconds after the headers (and a requested `wait`) before that rate counts.
        page_bytes: the most bytes of a page's body, decompressed.
        page_events: the most events of a page; there may be twice as many lines, and 1,000 more.
        line_bytes: the most bytes of a line of a page, which is an event in its envelope.

    Raises:
        ConfigurationError: a bound is not a number, negative, a million seconds or more, or zero;
            only `bytes_per_second` and `grace` may be zero.
    """

    seconds: float = 60.0
    bytes_per_second: float = 1000.0
    grace: float = 10.0
    page_bytes: int = 16 * _MEBIBYTE
    page_events: int = 100_000
    line_bytes: int = 8 * _MEBIBYTE

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check(self, below=1_000_000, may_be_zero={"bytes_per_second", "grace"})


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bound what one feed uses of its process and database; each process has its own bounds.

    Example:
        capacity = Capacity(connections=8, page_events=1_000)
        routes = feed_routes("/orders", feed, engine, capacity=capacity)

    Attributes:
        connections: the most connections of the engine in use at once; with a sync engine, also
            the number of threads.
        queue: the most requests that wait for a connection.
        patience: seconds that a request waits for a connection before the server answers 503.
        statement_seconds: the longest time of one statement in the database.
        page_events: the most events of a page.
        page_bytes: the most bytes of data in a page, unless a single event is larger.
        waiters: the most requests that wait at the head for new events (long polls).
        wait_seconds: the longest wait of one of them; proxies often give up after sixty.
        look_seconds: the pause between two polls of the head while requests wait; up to twenty
            times as long without new events, and longer where polls are slow or many feeds have
            waiters.
        sending_bytes: the most bytes of all answers on their way to readers.
        sending_seconds: the longest time for a reader to accept a piece of an answer.
        receiving_bytes: the most bytes of all batches of events that are being appended, with those
            of each event's object.
        receiving_seconds: the longest time for a writer to send a batch.
        kept_bytes: the most bytes of full pages in the cache.
        kept_seconds: the longest time that a page stays in the cache.

    Raises:
        ConfigurationError: a bound is not a number, not above zero, or infinite.
    """

    connections: int = 4
    queue: int = 1_000
    patience: float = 5.0
    statement_seconds: float = 10.0
    page_events: int = LARGEST_PAGE
    page_bytes: int = 8 * _MEBIBYTE
    waiters: int = 10_000
    wait_seconds: float = 30.0
    look_seconds: float = 0.002
    sending_bytes: int = 64 * _MEBIBYTE
    sending_seconds: float = 30.0
    receiving_bytes: int = 64 * _MEBIBYTE
    receiving_seconds: float = 30.0
    kept_bytes: int = 16 * _MEBIBYTE
    kept_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check(self, below=math.inf)


def _check(settings: Limits | Capacity, below: float, may_be_zero: Container[str] = ()) -> None:
    """Refuse a field that is not a number of its type, above zero, and as a float below a bound."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        kinds = {int} if field.type is int else {int, float}
        may_be = field.name in may_be_zero and value == 0
        most = math.inf if field.type is int else below
        if type(value) not in kinds or not (0 < value < most or may_be):
            number = "a whole number" if field.type is int else "a number"
            bound = f" and below {most:,}" if math.isfinite(most) else ""
            above = "zero or more" if field.name in may_be_zero else "more than zero"
            raise ConfigurationError(
                f"{type(settings).__name__}.{field.name} has to be {number}, {above}{bound}."
            )
