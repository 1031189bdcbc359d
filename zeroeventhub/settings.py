"""Bound what a client takes of a feed, and what a feed takes of its process and database."""

import math
from collections.abc import Container
from dataclasses import dataclass, fields

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import LARGEST_PAGE

__all__ = ["Capacity", "Limits"]

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bound what a client takes from a feed.

    A page that breaks a bound after one of its checkpoints counts up to that checkpoint. Otherwise
    it is an error: a transient one for a bound of time, a final one for a bound of size.

    Attributes:
        seconds: for a whole answer with its headers, in addition to the `wait` that was asked for.
        bytes_per_second: how many bytes a body has to bring over the network, on average.
        grace: seconds from the headers on in which it may be slower, in addition to the `wait`.
        page_bytes: the length of a page's body, unpacked.
        page_events: how many events a page may have; lines may be twice as many, and 1,000 more.
        line_bytes: the length of a line of a page, which is an event in its envelope.
    """

    seconds: float = 60.0
    bytes_per_second: float = 1000.0
    grace: float = 10.0
    page_bytes: int = 16 * _MEBIBYTE
    page_events: int = 100_000
    line_bytes: int = 8 * _MEBIBYTE

    def __post_init__(self) -> None:
        """Refuse bounds that cannot be kept, or that bound nothing.

        Raises:
            ConfigurationError: a bound is no number, negative, a million seconds or more, or zero;
                only `bytes_per_second` and `grace` may be zero.
        """
        _check(self, below=1_000_000, may_be_zero={"bytes_per_second", "grace"})


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bound what one feed takes of its process and of its database; each process has its own.

    Attributes:
        connections: how many connections of the engine the feed uses at once, at most; with a sync
            engine, also the threads that it works in.
        queue: how many requests may stand in line for a connection.
        patience: seconds for which a request stands in line before it is answered with 503.
        statement_seconds: for one statement of the feed's in the database.
        page_events: the largest page that may be asked for.
        page_bytes: how much data a page holds, unless a single event is larger.
        waiters: how many requests may wait at the head for something to read.
        wait_seconds: how long one of them waits at most; proxies give up after sixty.
        look_seconds: between two looks at the head while somebody waits; up to ten times as much
            where nothing comes, and more where looks take long or many feeds are waited for.
        sending_bytes: how much data of all answers together may be on its way to readers.
        sending_seconds: for a piece of an answer to be taken by its reader.
        kept_bytes: how much data of full pages is kept for the next who ask for them.
        kept_seconds: how long a page is kept.
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
    kept_bytes: int = 16 * _MEBIBYTE
    kept_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse bounds that cannot be kept, or that bound nothing.

        Raises:
            ConfigurationError: a bound is no number, not above zero, or infinite.
        """
        _check(self, below=math.inf)


def _check(settings: Limits | Capacity, below: float, may_be_zero: Container[str] = ()) -> None:
    """Refuse what is no number of the field's type, above zero and below a bound.

    Args:
        settings: their fields are of the types int and float.
        below: the bound of those of the type float.
        may_be_zero: the fields that may be zero.
    """
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
